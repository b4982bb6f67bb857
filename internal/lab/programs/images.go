package programs

import (
	"context"
	"math/rand/v2"
	"slices"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/synth"
)

const imagesPerPass = 64

// newS3 trains on generated images.
func newS3(ctx context.Context, b *run) *program.Loop {
	input, augment := b.Choice("input", "tensor", "buffer"), b.Choice("augment", "0", "1") == "1"
	varying, prefetch := b.Choice("shapes", "fixed", "varying") == "varying", b.Int("prefetch", 0)
	least, most := b.Batch, b.Batch // samples per step
	if varying {
		least, most = max(1, most/4), most*5/4 // 8 to 40 for a batch of 32
	}
	take := func(s *synth.Synth) func(context.Context) data.Batch {
		g := &synth.Generated{Synth: s, Samples: imagesPerPass * most}
		if varying {
			g.Size = func(key uint64) int {
				return least + rand.New(rand.NewPCG(uint64(b.Seed), key)).IntN(most-least+1)
			}
		}
		if augment {
			g.Change = augmentation(s, b.Seed)
		}
		return b.passes(data.Prefetch(g, prefetch), most, b.From)
	}
	if input == "tensor" && b.Int("micro", 1) == 1 { // only the session of a trainer makes micro-batches
		b.Choice("release", "close")
		t := b.tensorTrainer()
		next := take(program.Must(synth.New(t.model, t.model.Roles.Train, b.Seed)))
		return t.loop(func(ctx context.Context, _ int) float64 {
			set := program.Must(tensorsOf(t.inputs, next(ctx)))
			defer set.close()
			return t.train(ctx, set)
		})
	}
	t := b.trainer(ctx)
	return t.loop(take(t.synth()))
}

// augmentation flips, crops and brightens images. Each of the three creates a new image, as in
// common pipelines.
func augmentation(s *synth.Synth, seed int64) func(b data.Batch, key uint64) {
	f := s.Fields[0]
	if len(f.Shape) != 3 || f.DType != dtype.Float32 {
		program.Refuse(program.NotApplicable, "augment", "1", "the first input is no image")
	}
	h, w, c := f.Shape[0], f.Shape[1], f.Shape[2]
	return func(b data.Batch, key uint64) {
		values := b.Fields[0].Values.([]float32)
		rng := rand.New(rand.NewPCG(uint64(seed), key))
		for n := range b.Size {
			image := values[n*f.Width : (n+1)*f.Width]
			flipped := image
			if rng.IntN(2) == 1 {
				flipped = flip(image, h, w, c)
			}
			bright := slices.Clone(crop(flipped, h, w, c, rng.IntN(h/8+1), rng.IntN(w/8+1)))
			by := 0.9 + 0.2*rng.Float32()
			for i := range bright {
				bright[i] *= by
			}
			copy(image, bright)
		}
	}
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
