package matrix

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestShorten(t *testing.T) {
	for _, c := range []struct {
		perStep   time.Duration // of 8 images
		w2, batch int           // steps of W2, batch of S3
	}{
		{33 * time.Millisecond, 96, 32},
		{115 * time.Millisecond, 48, 16},
		{250 * time.Millisecond, 48, 8},
		{time.Minute, 48, 8},
	} {
		for _, w := range Workloads() {
			was := w
			w.shorten(c.perStep)
			switch w.ID {
			case "W2":
				assert.Equal(t, c.w2, w.Steps, c.perStep)
			case "W4":
				assert.Equal(t, 18, w.Steps)
			case "S3":
				assert.Equal(t, 28, w.Steps)
				assert.Equal(t, c.batch, w.Batch, c.perStep)
			default:
				assert.Equal(t, was, w)
			}
		}
	}
}

// The time is measured in a child.
func TestShortenMeasures(t *testing.T) {
	w, err := FindWorkload("S3")
	require.NoError(t, err)
	p := plan(t, w)
	p.Models = map[string]string{"image-224": t.TempDir()}
	p.defaults()
	require.NoError(t, p.shorten(t.Context()))
	assert.Equal(t, 28, p.Workloads[0].Steps)
	assert.Equal(t, 8, p.Workloads[0].Batch, "a step of that child takes 250 ms")

	p.Commands[Go] = Command{Args: []string{"/nowhere"}, Identity: "test"}
	assert.ErrorContains(t, p.shorten(t.Context()), "measuring a step of the image model")
}
