package memory

import (
	"fmt"
	"math"
)

// testingT is the part of testing.TB that RequireFlat uses.
type testingT interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	FailNow()
}

const (
	// firstSteps is the number of steps before the first verdict, and mostSteps the maximum number
	// of steps.
	firstSteps = 64
	mostSteps  = 4096
	// exactSteps is the minimum number of steps to pass with a budget of 0.
	exactSteps = 1024
)

// RequireFlat calls step with 0, 1, 2, ... and fails the test unless memory grows by at most budget
// bytes per step. Growth that ends is warm-up. RequireFlat judges after 64 steps and continues as long
// as the verdict is undecided, up to 4096 steps. A test that stays undecided fails with the number of
// steps that would decide.
//
// With a budget of 0, growth must be within the noise. More steps reveal smaller growth, so a test
// passes after 1024 steps at the earliest. Growth in these steps remains undetected up to 1 MiB,
// 1% of the memory, or the usual variation, whichever is most.
//
// RequireFlat judges the anonymous memory of the whole process, including uncollected garbage. It does
// not run the garbage collector. Do not call it in a parallel test.
//
//	func TestTrainingDoesNotLeak(t *testing.T) {
//		memory.RequireFlat(t, 64*memory.KiB, func(step int) { trainOneBatch() })
//	}
func RequireFlat(t testingT, budget Bytes, step func(step int)) {
	t.Helper()
	v, err := runFlat(budget, mostSteps, step)
	report(t, v, err, budget)
}

func report(t testingT, v Verdict, err error, budget Bytes) {
	t.Helper()
	switch {
	case err != nil:
		t.Errorf("memory cannot be measured here: %v", err)
	case v.Kind == Leak:
		t.Errorf("memory is not flat: %v; the budget is %v/step", v, budget)
	case v.Kind == Inconclusive:
		t.Errorf("after %.0f steps, it is undecided whether memory grows by more than %v/step; about %.0f steps would "+
			"decide: %v", v.To, budget, v.To+v.More, v)
	default:
		t.Logf("memory: %v", v)
		return
	}
	t.FailNow()
}

// runFlat runs steps until the verdict is clear, but not more than most steps.
func runFlat(budget Bytes, most int, step func(step int)) (v Verdict, err error) {
	sampler, err := NewSampler(0)
	if err != nil {
		return Verdict{}, err
	}
	defer func() {
		if e := sampler.Close(); err == nil && e != nil {
			err = fmt.Errorf("after the last sample: %w", e)
		}
	}()
	series := Series{Keep: 1024}
	var sample Sample
	if err := sampler.Sample(0, &sample); err != nil {
		return Verdict{}, err
	}
	series.reserve(&sample)
	done := 0
	for target := min(firstSteps, most); ; {
		for ; done < target; done++ {
			step(done)
			if err := sampler.Sample(done+1, &sample); err != nil {
				return Verdict{}, err
			}
			series.Append(&sample)
		}
		v = series.Judge(Criteria{Budget: budget})
		tooFew := budget <= 0 && v.Kind != Leak && done < exactSteps
		if v.Kind != Inconclusive && !tooFew || done >= most {
			return v, nil
		}
		more := int(math.Min(math.Max(v.More, float64(done)/2), float64(3*done)))
		target = min(done+more, most)
	}
}
