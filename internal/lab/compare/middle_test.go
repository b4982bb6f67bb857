package compare

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A run that is longer than Go's period includes a collection.
func TestEarly(t *testing.T) {
	early := func(inGo bool, seconds ...float64) string {
		return Early(inGo, seconds, func(s float64) float64 { return s })
	}
	assert.Equal(t, "the runs took at most 33 s, and Go may wait 120 s for a collection", early(true, 2, 33))
	assert.Empty(t, early(true, 2, 121))
	assert.Empty(t, early(false, 2))
	assert.Empty(t, early(true))
}
