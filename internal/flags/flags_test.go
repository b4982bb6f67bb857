package flags

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestName(t *testing.T) {
	for _, c := range []struct{ option, value, want string }{
		{"Loop.Batch", "3", "--batch 3"},
		{"Loop.Batch", "", "--batch"},
		{"Options.MemoryGrowth", "true", "--memory-growth"},
		{"Options.MemoryGrowth", "false", "--memory-growth=false"},
		{"Options.Precision", "float16-gpu", "--precision fp16"},
		{"Options.Precision", "bfloat16", "--precision bf16"},
		{"Options.VisibleGPUs", "[0 1]", "--visible-gpus 0,1"},
		{"Options.VirtualGPUs", "[[1024] [512]]", "--gpu-memory-limit 1024MiB,512MiB"},
		{"Options.GPUAllocator", "BFC", "--gpu-allocator bfc"},
		{"Options.XLA", "on-2", "--xla"},
		{"Options.XLA", "off", "--xla=false"},
		{"TF_XLA_FLAGS", "", "TF_XLA_FLAGS"},
		{"Options.Executor", "single", "Options.Executor single"},
	} {
		assert.Equal(t, c.want, Name(c.option, c.value))
	}
}
