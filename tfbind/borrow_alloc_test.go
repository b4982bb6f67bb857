//go:build !gcstress

package tfbind_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

// Borrow does not allocate, unless a garbage collection has freed an object that pinning needs.
func TestBorrowDoesNotAllocate(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()
	ctx := context.Background()
	values, shape := make([]float32, borrowedValues), []int64{borrowedValues}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := step.Borrow(0, values, shape...); err != nil {
			t.Error(err)
		}
		if err := step.Run(ctx); err != nil {
			t.Error(err)
		}
		if _, err := step.Release(); err != nil {
			t.Error(err)
		}
	}))
}
