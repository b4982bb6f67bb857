package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"steadyfit/data"
	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/synth"
	"steadyfit/internal/lab/worker"
	"steadyfit/tfbind"
)

const imagesPerPass = 64

// newS3 trains on generated images.
func newS3(ctx context.Context, b *builder) (*loop.Loop, error) {
	input, augment := b.Choice("input", "tensor", "buffer", "prefetch"), b.Choice("augment", "0", "1") == "1"
	varying := b.Choice("shapes", "fixed", "varying") == "varying"
	ahead := 0
	if input == "prefetch" {
		ahead = 2
	}
	prefetch := b.Int("prefetch", ahead)
	least, most := b.Spec.Batch, b.Spec.Batch // samples per step
	if varying {
		least, most = max(1, most/4), most*5/4 // 8 to 40 for a batch of 32
	}
	take := func(s *synth.Synth, err error) (func(context.Context) (data.Batch, error), error) {
		if err != nil {
			return nil, err
		}
		g := &synth.Generated{Synth: s, Samples: imagesPerPass * most}
		if varying {
			g.Size = func(key uint64) int {
				return least + rand.New(rand.NewPCG(uint64(b.Spec.Seed), key)).IntN(most-least+1)
			}
		}
		if augment {
			if g.Change, err = augmentation(s, b.Spec.Seed); err != nil {
				return nil, err
			}
		}
		return b.passes(data.Prefetch(g, prefetch), most, b.Spec.From), nil
	}
	if input == "tensor" {
		keep, micro := b.Choice("release", "close", "gc") == "gc", b.Int("micro", 1)
		t, err := b.tensorTrainer(micro)
		if err != nil {
			return nil, err
		}
		next, err := take(synth.New(t.model, t.model.Roles.Train, b.Spec.Seed))
		if err != nil {
			return nil, err
		}
		return t.loop(func(ctx context.Context, _ int) (float64, error) {
			batch, err := next(ctx)
			if err != nil {
				return 0, err
			}
			return b.trainParts(ctx, t, batch, micro, keep)
		}), nil
	}
	t, err := b.trainer(ctx)
	if err != nil {
		return nil, err
	}
	next, err := take(t.synth())
	if err != nil {
		return nil, err
	}
	return t.loop(next), nil
}

// trainParts creates tensors for each part of a batch, trains on them, and closes them unless
// the workload keeps them.
func (b *builder) trainParts(ctx context.Context, t *tensorTrainer, batch data.Batch, parts int, keep bool) (loss float64, err error) {
	n := min(parts, batch.Size)
	for i := range n {
		from, to := i*batch.Size/n, (i+1)*batch.Size/n
		part := batch
		if n > 1 {
			part = batch.Slice(from, to)
		}
		set, err := tensorsOf(t.whole.inputs, part)
		if err != nil {
			return 0, err
		}
		l, err := t.train(ctx, set)
		if keep && err == nil {
			b.leave(set)
		} else if err = errors.Join(err, set.close()); err != nil {
			return 0, err
		}
		loss += l * float64(to-from) / float64(batch.Size)
	}
	if parts > 1 {
		_, err = t.run(ctx, t.apply, nil, tfbind.RunOptions{})
	}
	return loss, err
}

// augmentation flips, crops and brightens images. Each of the three creates a new image, as in
// common pipelines.
func augmentation(s *synth.Synth, seed int64) (func(b data.Batch, key uint64), error) {
	for i, f := range s.Fields {
		if len(f.Shape) != 3 || f.DType != tfbind.Float32 || f.Label {
			continue
		}
		h, w, c := f.Shape[0], f.Shape[1], f.Shape[2]
		return func(b data.Batch, key uint64) {
			values, ok := b.Fields[i].Values.([]float32)
			if !ok {
				return
			}
			rng := rand.New(rand.NewPCG(uint64(seed), key))
			for n := range b.Size {
				image := values[n*f.Width : (n+1)*f.Width]
				flipped := image
				if rng.IntN(2) == 1 {
					flipped = flip(image, h, w, c)
				}
				cropped := crop(flipped, h, w, c, rng.IntN(h/8+1), rng.IntN(w/8+1))
				copy(image, brighten(cropped, 0.9+0.2*rng.Float32()))
			}
		}, nil
	}
	return nil, &worker.ParameterError{Failure: worker.NotApplicable, Name: "augment", Value: "1", Reason: fmt.Sprintf("none of the %d inputs is an image", len(s.Fields))}
}

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

// crop moves an image up and left. The rest is black.
func crop(image []float32, h, w, c, up, left int) []float32 {
	out := make([]float32, len(image))
	for y := range h - up {
		copy(out[y*w*c:(y*w+w-left)*c], image[((y+up)*w+left)*c:])
	}
	return out
}

func brighten(image []float32, by float32) []float32 {
	out := make([]float32, len(image))
	for i, v := range image {
		out[i] = v * by
	}
	return out
}
