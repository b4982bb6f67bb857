package tfprocess

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBool(t *testing.T) {
	for text, want := range map[string][2]bool{"1": {true, true}, "True": {true, true}, "0": {false, true},
		"FALSE": {false, true}, "": {}, "yes": {}, "2": {}} {
		on, ok := ParseBool(text)
		assert.Equal(t, want, [2]bool{on, ok}, text)
	}
}

func TestInfluential(t *testing.T) {
	assert.Equal(t, []string{"GOGC=20", "LD_PRELOAD=libjemalloc.so", "TF_NUM_INTEROP_THREADS=1"},
		Influential([]string{"HOME=/", "TF_NUM_INTEROP_THREADS=1", "TF_CPP_MIN_LOG_LEVEL=2", "TF_CLI_ARGS=x",
			"LD_PRELOAD=libjemalloc.so", "GOGC=20"}))
}
