package matrix

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A run that is longer than Go's period includes a collection.
func TestEarly(t *testing.T) {
	early := func(runtime string, seconds ...float64) string {
		var runs []*RunResult
		for _, s := range seconds {
			runs = append(runs, &RunResult{Runtime: runtime, Seconds: s})
		}
		return Early(runs)
	}
	assert.Equal(t, "the runs took at most 33 s, and Go may wait 120 s for a collection", early(Go, 2, 33))
	assert.Empty(t, early(Go, 2, 121))
	assert.Empty(t, early(Keras, 2))
	assert.Empty(t, early(Go))
}
