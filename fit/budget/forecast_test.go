package budget

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/memory"
)

func TestForecast(t *testing.T) {
	var f forecast
	feed := func(amount func(step int64) memory.Bytes) (int64, bool) {
		f.reset()
		for step := int64(1); step <= 100; step++ {
			f.add(step, amount(step))
		}
		return f.stepsTo(200 * memory.MiB)
	}
	steps, ok := feed(func(n int64) memory.Bytes { return 100*memory.MiB + memory.Bytes(n)*512*memory.KiB })
	assert.True(t, ok)
	assert.EqualValues(t, 100, steps)
	steps, ok = feed(func(n int64) memory.Bytes { return 199*memory.MiB + memory.Bytes(n)*memory.MiB })
	assert.True(t, ok)
	assert.Zero(t, steps)
	_, ok = feed(func(int64) memory.Bytes { return 100 * memory.MiB })
	assert.False(t, ok)
	_, ok = feed(func(n int64) memory.Bytes { return 100*memory.MiB - memory.Bytes(n)*memory.KiB })
	assert.False(t, ok)
	// A sawtooth without growth.
	_, ok = feed(func(n int64) memory.Bytes { return 100*memory.MiB + memory.Bytes(n%8)*memory.MiB })
	assert.False(t, ok)
	// A single high value.
	_, ok = feed(func(n int64) memory.Bytes {
		if n == 99 {
			return 190 * memory.MiB
		}
		return 100 * memory.MiB
	})
	assert.False(t, ok)
	f.reset()
	for step := range int64(20) {
		f.add(step, memory.Bytes(step)*memory.MiB)
	}
	_, ok = f.stepsTo(200 * memory.MiB)
	assert.False(t, ok, "too little to say")
	assert.Zero(t, testing.AllocsPerRun(10, func() { f.add(1, 1); f.stepsTo(1) }))
}
