package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/gpuopts"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

func TestExitCodes(t *testing.T) {
	oomKilled := []session.Death{{OOMKilled: true, OutOfMemory: true}, {OOMKilled: true, OutOfMemory: true}}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, exitOK},
		{session.ErrAgain, exitOK},
		{errors.New("other"), exitFailed},
		{usagef("no"), exitUsage},
		{session.ErrNoSignature, exitUsage},
		{session.ErrInexactSplit, exitUsage},
		{&environmentError{errors.New("no GPU")}, exitEnvironment},
		{fit.ErrDiverged, exitDiverged},
		{context.Canceled, exitInterrupted},
		{session.ErrOutOfMemory, exitMemory},
		{&fit.BudgetError{}, exitMemory},
		// What has no memory and cannot be split lacks memory, whatever else is said.
		{fmt.Errorf("%w: %w: %w", fit.ErrSplit, session.ErrNoSignature, session.ErrOutOfMemory), exitMemory},
		{fmt.Errorf("%w: %w: %w", fit.ErrSplit, session.ErrInexactSplit, session.ErrOutOfMemory), exitMemory},
		{&fit.HookError{Hook: "memory budget", Phase: "start", Err: &fit.BudgetError{}}, exitMemory},
		{&fit.HookError{Hook: "reset", Phase: "step", Err: savedmodels.ErrChanged}, exitFailed},
		// What a process goes on with was good when the training began.
		{fmt.Errorf("%w: %w", session.ErrRetry, usagef("no")), exitFailed},
		{fmt.Errorf("%w: %w", session.ErrRetry, session.ErrOutOfMemory), exitMemory},
		{fmt.Errorf("%w: %w", session.ErrLost, tfbind.ErrResourceExhausted), exitMemory},
		// A child's code is the parent's, unless the kernel has killed it for memory.
		{&session.ChildError{Code: exitDiverged}, exitDiverged},
		{&session.ChildError{Code: exitFailed, Deaths: []session.Death{{}, {}}}, exitFailed},
		{&session.ChildError{Code: exitFailed, Deaths: oomKilled}, exitMemory},
	} {
		assert.Equal(t, c.want, exitCode(c.err), "%v", c.err)
	}
}

func TestLimitGPU(t *testing.T) {
	open := func(r resilience, o session.Options) (session.Options, error) {
		err := r.configure(&o)
		return o, err
	}
	o, err := open(resilience{budget: "2GiB", budgetOf: budgetOfGPU}, session.Options{ListAllocations: true})
	require.NoError(t, err)
	assert.Equal(t, [][]int{{2048}}, o.Device.VirtualGPUs)
	assert.False(t, o.ListAllocations, "the batch is split instead")
	assert.False(t, o.AllowInexactSplit)

	o, err = open(resilience{budget: "2GiB", budgetOf: "rss", inexact: true}, session.Options{ListAllocations: true})
	require.NoError(t, err)
	assert.Empty(t, o.Device.VirtualGPUs)
	assert.True(t, o.ListAllocations)
	assert.True(t, o.AllowInexactSplit)

	// Whoever limits the GPU in another way keeps that.
	for text, set := range map[string]func(o *session.Options){
		"divided into devices of [[512 512]] MiB already": func(o *session.Options) { o.Device.VirtualGPUs = [][]int{{512, 512}} },
		"Options.MemoryFraction 0.5":                      func(o *session.Options) { o.Device.MemoryFraction = 0.5 },
		"one for each of the 2 visible ones":              func(o *session.Options) { o.Device.VisibleGPUs = []int{0, 1} },
		"Options.GPUAllocator cuda_malloc_async":          func(o *session.Options) { o.Device.GPUAllocator = gpuopts.CUDAMallocAsync },
	} {
		var o session.Options
		set(&o)
		_, err := open(resilience{budget: "2GiB", budgetOf: budgetOfGPU}, o)
		assert.ErrorContains(t, err, text)
		assert.Equal(t, exitUsage, exitCode(err))
	}
	t.Setenv("TF_GPU_ALLOCATOR", "cuda_malloc")
	_, err = open(resilience{budget: "2GiB", budgetOf: budgetOfGPU}, session.Options{})
	assert.ErrorContains(t, err, `TF_GPU_ALLOCATOR is "cuda_malloc"`)
	assert.Equal(t, exitUsage, exitCode(err))
}
