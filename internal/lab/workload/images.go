package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"steadyfit/data"
	"steadyfit/internal/lab/cell"
	"steadyfit/tfbind"
)

// S3: images come from a generator, step by step.

// imagesPerPass is how many the generator makes before it begins anew.
const imagesPerPass = 64 // batches

func newS3(ctx context.Context, c *cell.Child) (job, error) {
	o, err := imageKnobs(c)
	if err != nil {
		return nil, err
	}
	if o.input == "tensor" {
		return newTensorImages(c, o)
	}
	t, err := newTrainer(ctx, c)
	if err != nil {
		return nil, err
	}
	s, err := t.synth()
	if err == nil {
		var ds data.Dataset
		if ds, err = o.dataset(s, c.Spec.Seed); err == nil {
			return &loop{trainer: t, source: newPasses(ds, o.batch, c.Spec.From)}, nil
		}
	}
	return nil, errors.Join(err, t.Close())
}

type imageOptions struct {
	input            string
	augment, varying bool
	prefetch         int
	batch            int // samples of a step, the most where they vary
	least            int // where they vary
}

func imageKnobs(c *cell.Child) (o imageOptions, err error) {
	if o.input, err = c.Choice("input", "tensor", "buffer", "prefetch"); err != nil {
		return o, err
	}
	augment, err := c.Choice("augment", "0", "1")
	if err != nil {
		return o, err
	}
	shapes, err := c.Choice("shapes", "fixed", "varying")
	if err != nil {
		return o, err
	}
	ahead := 0
	if o.input == "prefetch" {
		ahead = 2
	}
	if o.prefetch, err = c.Int("prefetch", ahead); err != nil {
		return o, err
	}
	o.augment, o.varying, o.batch = augment == "1", shapes == "varying", c.Spec.Batch
	if o.varying {
		// 8 to 40 for a batch of 32.
		o.least, o.batch = max(1, o.batch/4), o.batch*5/4
	}
	return o, nil
}

// dataset generates images, ahead of their use if so asked.
func (o imageOptions) dataset(s *synth, seed int64) (data.Dataset, error) {
	g := &generated{synth: s, samples: imagesPerPass * o.batch}
	if o.varying {
		g.size = func(key uint64) int {
			return o.least + rand.New(rand.NewPCG(uint64(seed), key)).IntN(o.batch-o.least+1)
		}
	}
	if o.augment {
		var err error
		if g.change, err = augmentation(s); err != nil {
			return nil, err
		}
	}
	return data.Prefetch(g, o.prefetch), nil
}

// tensorImages makes a tensor of each batch, and closes it after the step unless it
// is told not to.
type tensorImages struct {
	plain
	*tensorTrainer
	source batches
	keep   bool
	left   tfbind.Counts
}

func newTensorImages(c *cell.Child, o imageOptions) (job, error) {
	release, err := c.Choice("release", "close", "gc")
	if err != nil {
		return nil, err
	}
	micro, err := c.Int("micro", 1)
	if err != nil {
		return nil, err
	}
	t, err := newTensorTrainer(c, micro)
	if err != nil {
		return nil, err
	}
	s, err := newSynth(t.model, t.model.Roles.Train, c.Spec.Seed)
	if err == nil {
		var ds data.Dataset
		if ds, err = o.dataset(s, c.Spec.Seed); err == nil {
			return &tensorImages{tensorTrainer: t, source: newPasses(ds, o.batch, 0), keep: release == "gc"}, nil
		}
	}
	return nil, errors.Join(err, t.close())
}

func (j *tensorImages) step(ctx context.Context, _ int) (float64, error) {
	b, err := j.source.take(ctx)
	if err != nil {
		return 0, err
	}
	micro := min(j.micro, b.Size)
	loss := 0.0
	for i := range micro {
		from, to := i*b.Size/micro, (i+1)*b.Size/micro
		part := b
		if micro > 1 {
			part = b.Slice(from, to)
		}
		l, err := j.trainOn(ctx, part)
		if err != nil {
			return 0, err
		}
		loss += l * float64(to-from) / float64(b.Size)
	}
	if j.micro > 1 {
		if _, err := j.run(ctx, j.apply, nil); err != nil {
			return 0, err
		}
	}
	return loss, nil
}

func (j *tensorImages) trainOn(ctx context.Context, b data.Batch) (float64, error) {
	tensors, err := j.tensors(b)
	if err != nil {
		return 0, err
	}
	loss, err := j.train(ctx, tensors)
	if !j.keep || err != nil {
		return loss, errors.Join(err, tensors.close())
	}
	j.left.Tensors += int64(len(tensors))
	for _, x := range tensors {
		j.left.TensorBytes += x.Bytes()
	}
	return loss, nil
}

func (j *tensorImages) close() (tfbind.Counts, error) {
	return j.left, errors.Join(j.source.close(), j.tensorTrainer.close())
}

// augmentation flips, crops and brightens the images of a batch. Each of the three
// makes a new image, as pipelines of such functions do.
func augmentation(s *synth) (func(b data.Batch, key uint64), error) {
	for i, f := range s.fields {
		if len(f.shape) == 3 && f.dtype == tfbind.Float32 && !f.label {
			h, w, c := f.shape[0], f.shape[1], f.shape[2]
			return func(b data.Batch, key uint64) {
				values, ok := b.Fields[i].Values.([]float32)
				if !ok {
					return
				}
				rng := rand.New(rand.NewPCG(s.seed, key))
				for n := range b.Size {
					image := values[n*f.width : (n+1)*f.width]
					flipped := image
					if rng.IntN(2) == 1 {
						flipped = flip(image, h, w, c)
					}
					cropped := crop(flipped, h, w, c, rng.IntN(h/8+1), rng.IntN(w/8+1))
					copy(image, jitter(cropped, 0.9+0.2*rng.Float32()))
				}
			}, nil
		}
	}
	return nil, &cell.KnobError{Failure: cell.NotApplicable, Name: "augment", Value: "1", Reason: fmt.Sprintf("no input of %d is an image", len(s.fields))}
}

// flip mirrors an image, left to right.
func flip(image []float32, h, w, c int) []float32 {
	out := make([]float32, len(image))
	for y := range h {
		row, to := image[y*w*c:(y+1)*w*c], out[y*w*c:(y+1)*w*c]
		for x := range w {
			copy(to[x*c:(x+1)*c], row[(w-1-x)*c:])
		}
	}
	return out
}

// crop moves an image up and left, and leaves the rest black.
func crop(image []float32, h, w, c, up, left int) []float32 {
	out := make([]float32, len(image))
	for y := range h - up {
		copy(out[y*w*c:(y*w+w-left)*c], image[((y+up)*w+left)*c:])
	}
	return out
}

func jitter(image []float32, by float32) []float32 {
	out := make([]float32, len(image))
	for i, v := range image {
		out[i] = v * by
	}
	return out
}
