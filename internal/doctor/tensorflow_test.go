package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBuiltForGPUOfOtherFiles(t *testing.T) {
	assert.False(t, builtForGPU("elf_test.go"))
	assert.False(t, builtForGPU("none"))
	assert.Empty(t, realFolder("none/x"))
}
