package budget

import (
	"slices"

	"steadyfit/memory"
)

// forecast extrapolates an amount measured after each step. It compares the medians of the older and
// the newer half of the latest samples, so a sawtooth or one step change does not count as growth. It
// is for one goroutine.
type forecast struct {
	steps   [forecastLength]int64
	amounts [forecastLength]memory.Bytes
	n, next int
}

const forecastLength = 64

func (f *forecast) add(step int64, amount memory.Bytes) {
	f.steps[f.next], f.amounts[f.next] = step, amount
	f.next = (f.next + 1) % forecastLength
	f.n = min(f.n+1, forecastLength)
}

// reset removes all samples. Call it after a sudden change of the amount.
func (f *forecast) reset() { f.n, f.next = 0, 0 }

// stepsTo returns the number of steps until the amount reaches the limit. ok is false if the amount
// does not grow or there are too few samples.
func (f *forecast) stepsTo(limit memory.Bytes) (steps int64, ok bool) {
	if f.n < forecastLength {
		return 0, false
	}
	const half = forecastLength / 2
	middle := func(from int) (at float64, amount float64) {
		var sorted [half]memory.Bytes
		for i := range half {
			j := (f.next + from + i) % forecastLength
			sorted[i] = f.amounts[j]
			at += float64(f.steps[j]) / half
		}
		slices.Sort(sorted[:])
		return at, float64(sorted[half/2-1]+sorted[half/2]) / 2
	}
	fromAt, fromAmount := middle(0)
	toAt, toAmount := middle(half)
	if toAmount <= fromAmount || toAt <= fromAt {
		return 0, false
	}
	slope := (toAmount - fromAmount) / (toAt - fromAt)
	last := f.steps[(f.next+forecastLength-1)%forecastLength]
	now := toAmount + slope*(float64(last)-toAt)
	left := (float64(limit) - now) / slope
	return max(int64(left), 0), true
}
