package native_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/internal/tflibrary"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

func take(t *testing.T, sampler *memory.Sampler) *memory.Sample {
	t.Helper()
	var s memory.Sample
	require.NoError(t, sampler.Sample(0, &s))
	return &s
}

func TestSource(t *testing.T) {
	if _, err := tfbind.Load(""); err != nil {
		t.Skipf("no TensorFlow (set %s): %v", tflibrary.EnvLibrary, err)
	}
	sampler, err := memory.NewSampler(0, native.Source())
	require.NoError(t, err)
	defer func() { assert.NoError(t, sampler.Close()) }()

	before := take(t, sampler)
	x, err := tfbind.NewTensor(make([]float32, 1000), 10, 100)
	require.NoError(t, err)
	defer x.Close()
	during := take(t, sampler)
	require.NoError(t, x.Close())
	after := take(t, sampler)

	for layer, grown := range map[memory.Layer]memory.Bytes{
		memlayer.LiveBytes: 4000, memlayer.LiveCount: 1,
	} {
		require.True(t, before.Get(layer).OK, layer)
		assert.Equal(t, before.Get(layer).Bytes+grown, during.Get(layer).Bytes, layer)
		assert.Equal(t, before.Get(layer), after.Get(layer), layer)
	}
	m, ok := tfbind.MallocInfo()
	for layer, amount := range map[memory.Layer]int64{memory.MallocUsed: m.InUse, memory.MallocFree: m.Free,
		memlayer.MallocArenas: m.Arenas} {
		assert.Equal(t, amount >= 0, during.Get(layer).OK, layer)
	}
	if !ok {
		assert.Equal(t, "unknown", native.Allocator())
		return
	}
	assert.Equal(t, m.Allocator, native.Allocator())
	assert.True(t, native.Trim())
}

func TestSourceAllocatesNothing(t *testing.T) {
	source := native.Source()
	var sum memory.Bytes
	add := func(_ memory.Layer, r memory.Reading) { sum += r.Bytes }
	assert.Zero(t, testing.AllocsPerRun(100, func() { source(add) }))
	if native.Allocator() != "unknown" {
		assert.Positive(t, sum)
	}
}
