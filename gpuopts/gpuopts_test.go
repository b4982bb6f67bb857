package gpuopts_test

import (
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
)

// The bytes are those of tf.compat.v1.ConfigProto(...).SerializeToString() of
// TensorFlow 2.21.
func TestConfigProtoBytes(t *testing.T) {
	for _, c := range []struct {
		name string
		in   gpuopts.Options
		want string
	}{
		{"nothing", gpuopts.Options{}, ""},
		{"threads", gpuopts.Options{IntraThreads: 2, InterThreads: 1}, "10022801"},
		{"memory growth", gpuopts.Options{MemoryGrowth: true}, "32022001"},
		{"fraction", gpuopts.Options{MemoryFraction: 0.5}, "320909000000000000e03f"},
		{"visible", gpuopts.Options{VisibleGPUs: []int{1, 0}}, "32052a03312c30"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.in.ConfigProto()
			require.NoError(t, err)
			assert.Equal(t, c.want, hex.EncodeToString(got))
		})
	}
}

func TestConfigProtoRefuses(t *testing.T) {
	for _, o := range []gpuopts.Options{
		{IntraThreads: -1}, {InterThreads: -1}, {MemoryFraction: -0.1}, {MemoryFraction: 1.1},
		{MemoryFraction: math.NaN()}, {VisibleGPUs: []int{-1}},
	} {
		_, err := o.ConfigProto()
		assert.ErrorContains(t, err, "expected", "%+v", o)
	}
}
