package session_test

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/session"
)

// pictures writes a folder of n files with 32 different PNG images of 256 by 256 pixels.
func pictures(t testing.TB, n int) string {
	t.Helper()
	dir := t.TempDir()
	name := func(i int) string {
		return filepath.Join(dir, fmt.Sprintf("class%d", i%10), fmt.Sprintf("%06d.png", i))
	}
	for class := range 10 {
		require.NoError(t, os.MkdirAll(filepath.Dir(name(class)), 0o755))
	}
	rng := rand.New(rand.NewPCG(224, 0))
	picture := image.NewRGBA(image.Rect(0, 0, 256, 256))
	for i := range n {
		if i >= 32 {
			require.NoError(t, os.Link(name(i%32), name(i)))
			continue
		}
		// Smooth colors with noise make images that take time to decode.
		for y := range 256 {
			for x := range 256 {
				picture.SetRGBA(x, y, color.RGBA{uint8(x/2 + i + rng.IntN(16)), uint8(y/2 + rng.IntN(16)),
					uint8((x+y)/4 + rng.IntN(16)), 255})
			}
		}
		var file bytes.Buffer
		require.NoError(t, png.Encode(&file, picture))
		require.NoError(t, os.WriteFile(name(i), file.Bytes(), 0o644))
	}
	return dir
}

// BenchmarkDataWait trains image-224 on batches of 32 PNG images, which are decoded and
// read ahead as `steadyfit fit` does by default. An op is a step. The result wait-% is the share of
// the time in which a step waited for its batch.
//
//	go test ./session -run '^$' -bench DataWait -benchtime 40x
func BenchmarkDataWait(b *testing.B) {
	const batch, warmup = 32, 4
	ds, err := data.Open(pictures(b, batch*max(b.N, warmup)),
		data.Options{Images: data.ImageOptions{Size: 224, Float: true}})
	require.NoError(b, err)
	ds, err = ds.Shuffle(1).Scale("x", 0, 1)
	require.NoError(b, err)
	s := open(b, "image-224", session.Options{})
	train := func(steps int) fit.Record {
		loop := fit.Loop{Session: s, Batch: batch, Epochs: 1, StepsPerEpoch: steps}
		h, err := loop.Run(b.Context(), data.Prefetch(ds, 2))
		require.NoError(b, err)
		return h.Last()
	}
	train(warmup)
	b.ResetTimer()
	r := train(b.N)
	b.StopTimer()
	require.NotNil(b, r.DataWait)
	b.ReportMetric(100**r.DataWait, "wait-%")
}
