package child

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestState(t *testing.T) {
	assert.NotEmpty(t, State(os.Getpid()))
	assert.Empty(t, State(-1))
}
