package memory

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestForecast(t *testing.T) {
	var f Forecast
	feed := func(amount func(step int64) Bytes) (int64, bool) {
		f.Reset()
		for step := int64(1); step <= 100; step++ {
			f.Add(step, amount(step))
		}
		return f.StepsTo(200 * MiB)
	}
	steps, ok := feed(func(n int64) Bytes { return 100*MiB + Bytes(n)*512*KiB })
	assert.True(t, ok)
	assert.EqualValues(t, 100, steps)
	steps, ok = feed(func(n int64) Bytes { return 199*MiB + Bytes(n)*MiB })
	assert.True(t, ok)
	assert.Zero(t, steps)
	_, ok = feed(func(int64) Bytes { return 100 * MiB })
	assert.False(t, ok)
	_, ok = feed(func(n int64) Bytes { return 100*MiB - Bytes(n)*KiB })
	assert.False(t, ok)
	// A sawtooth without growth.
	_, ok = feed(func(n int64) Bytes { return 100*MiB + Bytes(n%8)*MiB })
	assert.False(t, ok)
	// A single high value.
	_, ok = feed(func(n int64) Bytes {
		if n == 99 {
			return 190 * MiB
		}
		return 100 * MiB
	})
	assert.False(t, ok)
	f.Reset()
	for step := range int64(20) {
		f.Add(step, Bytes(step)*MiB)
	}
	_, ok = f.StepsTo(200 * MiB)
	assert.False(t, ok, "too little to say")
	assert.Zero(t, testing.AllocsPerRun(10, func() { f.Add(1, 1); f.StepsTo(1) }))
}
