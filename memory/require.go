package memory

import (
	"fmt"
	"math"
)

// TestingT is the part of *testing.T and *testing.B that RequireFlat uses.
type TestingT interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	FailNow()
}

const (
	// firstSteps is the number of steps before the first verdict of RequireFlat, and mostSteps
	// the maximum.
	firstSteps = 64
	mostSteps  = 4096
)

// RequireFlat calls step with 0, 1, 2, ... and fails the test unless growth above budget, in
// bytes per step, is certainly excluded. A jump or a curve at the beginning counts as warm-up.
// It judges after 64 steps, and continues for as many steps as the verdict needs, up to 4096.
// If the verdict is still undecided, the test fails with the number of steps that would decide.
// A budget of 0 allows growth within the noise.
//
// It judges anonymous resident memory: native memory and the Go heap. It does not run a garbage
// collection, so uncollected memory counts. Do not call it in a test with t.Parallel, since the
// whole process counts.
//
//	func TestTrainingDoesNotLeak(t *testing.T) {
//		memory.RequireFlat(t, 64*memory.KiB, func(step int) { trainOneBatch() })
//	}
func RequireFlat(t TestingT, budget Bytes, step func(step int)) {
	t.Helper()
	v, err := runFlat(budget, mostSteps, step)
	report(t, v, err, budget)
}

func report(t TestingT, v Verdict, err error, budget Bytes) {
	t.Helper()
	switch {
	case err != nil:
		t.Errorf("memory cannot be measured here: %v", err)
	case v.Kind == Leak:
		t.Errorf("memory is not flat: %v, where the budget is %v/step", v, budget)
	case v.Kind == Inconclusive:
		t.Errorf("it is undecided after %.0f steps whether memory stays within %v/step; about %.0f would decide: %v", v.To, budget, v.To+v.More, v)
	default:
		t.Logf("memory: %v", v)
		return
	}
	t.FailNow()
}

// runFlat does steps until the verdict is clear or most steps are done.
func runFlat(budget Bytes, most int, step func(step int)) (v Verdict, err error) {
	sampler, err := NewSampler(SamplerOptions{})
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
		if v.Kind != Inconclusive || done >= most {
			return v, nil
		}
		more := int(math.Min(math.Max(v.More, float64(done)/2), float64(3*done)))
		target = min(done+more, most)
	}
}
