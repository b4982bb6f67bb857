package matrix

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestShorten(t *testing.T) {
	const share = 6 * time.Second
	for _, c := range []struct {
		step            time.Duration // of 8 images
		w2, w2Batch, s3 int           // steps and batch of W2, batch of S3
	}{
		{33 * time.Millisecond, 96, 8, 32},
		{115 * time.Millisecond, 48, 4, 8},
		{250 * time.Millisecond, 48, 4, 4},
		{time.Minute, 48, 4, 4},
	} {
		for _, w := range Workloads() {
			was := w
			if _, ok := lengths[w.ID]; ok && w.ID != User {
				w.shorten(speed{step: c.step, rest: time.Second, batch: 8}, share)
			}
			switch w.ID {
			case "W2":
				assert.Equal(t, c.w2, w.Steps, c.step)
				assert.Equal(t, c.w2Batch, w.Batch, c.step)
			case "W4":
				assert.Equal(t, 18, w.Steps)
			case "S3":
				assert.Equal(t, 28, w.Steps)
				assert.Equal(t, c.s3, w.Batch, c.step)
			default:
				assert.Equal(t, was, w)
			}
		}
	}
	for _, c := range []struct {
		step                time.Duration
		steps, every, epoch int
	}{
		{time.Millisecond, 1000, 10, 100},
		{15 * time.Millisecond, 250, 6, 62},
		{time.Second, 40, 1, 10},
	} {
		w := Workload{ID: User, Steps: 1000, Every: 10, Epoch: 100, Batch: 64}
		w.shorten(speed{step: c.step, rest: time.Second, batch: 64}, share)
		assert.Equal(t, Workload{ID: User, Steps: c.steps, Every: c.every, Epoch: c.epoch, Batch: 64}, w, c.step)
	}
}

// Plan.shorten measures the time of a step in a child process.
func TestShortenMeasures(t *testing.T) {
	w, err := FindWorkload("S3")
	require.NoError(t, err)
	p := plan(t, w)
	p.Models = map[string]string{"image-224": t.TempDir()}
	p.Quick, p.Pairs = true, 40
	p.defaults()
	require.NoError(t, p.shorten(t.Context()))
	assert.Equal(t, 28, p.Workloads[0].Steps)
	assert.Equal(t, 4, p.Workloads[0].Batch, "a step of that child takes 250 ms")

	p.Commands[Go] = Command{Args: []string{"/nowhere"}, Identity: "test"}
	assert.ErrorContains(t, p.shorten(t.Context()), "measuring a step of S3")
}
