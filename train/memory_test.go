package train

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// A budget of GPU memory is the size of TensorFlow's pool.
func TestLimitPool(t *testing.T) {
	limit := func(layer memory.Layer, o session.Options) (session.Options, error) {
		l := training{Config: Config{Budget: Budget{Limit: 2 * memory.GiB, Layer: layer}, Session: o}}
		err := l.limitPool()
		return l.Session, err
	}
	o, err := limit(memlayer.GPUProcess, session.Options{})
	require.NoError(t, err)
	assert.Equal(t, [][]int{{2048}}, o.Device.VirtualGPUs)
	o, err = limit(memory.RSS, session.Options{})
	require.NoError(t, err)
	assert.Empty(t, o.Device.VirtualGPUs)

	// A GPU limit that was set by other options stays.
	for text, set := range map[string]func(o *session.Options){
		"already divided into devices of [[512 512]] MiB": func(o *session.Options) {
			o.Device.VirtualGPUs = [][]int{{512,
				512}}
		},
		"Options.MemoryFraction 0.5":               func(o *session.Options) { o.Device.MemoryFraction = 0.5 },
		"one limit for each of the 2 visible GPUs": func(o *session.Options) { o.Device.VisibleGPUs = []int{0, 1} },
		"Options.GPUAllocator cuda_malloc_async":   func(o *session.Options) { o.Device.GPUAllocator = "cuda_malloc_async" },
	} {
		var o session.Options
		set(&o)
		_, err := limit(memlayer.GPUProcess, o)
		assert.ErrorContains(t, err, text)
		assert.ErrorAs(t, err, new(*option.Error))
	}
	t.Setenv("TF_GPU_ALLOCATOR", "cuda_malloc")
	_, err = limit(memlayer.GPUProcess, session.Options{})
	assert.ErrorContains(t, err, `TF_GPU_ALLOCATOR is "cuda_malloc"`)
	assert.ErrorAs(t, err, new(*option.Error))
}
