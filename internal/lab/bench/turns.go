package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// sameLoss is the largest relative difference of the first epoch's loss between variants that
// do the same work. Another order of additions changes a step by about 1e-6, and the difference
// grows with the steps.
const (
	sameLoss = 1e-3
	// sameRandomLoss is sameLoss for models that draw random numbers.
	sameRandomLoss = 0.05
)

// otherWork returns the reason why a run did different work than the first variant, or "".
func otherWork(w Workload, base, r *Run) string {
	if want := w.Steps * w.Epochs; r.Steps != want {
		return fmt.Sprintf("it ran %d steps, expected %d", r.Steps, want)
	}
	tolerance := sameLoss
	if w.Random {
		tolerance = sameRandomLoss
	}
	// also true for NaN
	if !(math.Abs(r.WarmupLoss-base.WarmupLoss) <= tolerance*math.Abs(base.WarmupLoss)) {
		return fmt.Sprintf("its mean loss over the first %d steps is %.6g, that of %s is %.6g; the largest relative "+
			"difference is %g", w.Steps, r.WarmupLoss, base.Variant, base.WarmupLoss, tolerance)
	}
	return ""
}

// order returns the order of n variants in a turn. Odd turns are reversed, and every second
// turn starts one variant later.
func order(n, turn int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = (i + turn/2) % n
	}
	if turn%2 == 1 {
		slices.Reverse(out)
	}
	return out
}

// measure runs all turns and calls save after each. After an error, r has the complete runs.
func (b *benchmark) measure(ctx context.Context, r *Report, save func() error) error {
	r.Turns = b.turns
	var ready []*prepared
	for _, w := range b.workloads {
		p, err := b.prepare(ctx, w)
		if err != nil {
			return fmt.Errorf("workload %s: %w", w.Name, err)
		}
		ready = append(ready, p)
		r.Workloads = append(r.Workloads, p.Workload)
		for _, v := range b.variants {
			if why := v.unable(p); why != "" {
				r.absent(p.Name, v.name, why, false)
			} else if v.name == autoVariant {
				if err := b.chooseAuto(ctx, p); err != nil {
					r.absent(p.Name, v.name, err.Error(), true)
				}
			}
		}
	}
	for turn := range b.turns {
		for _, p := range ready {
			if err := b.turn(ctx, r, p, turn); err != nil {
				r.finish(turn) // save the runs of this turn so far
				return errors.Join(err, save())
			}
		}
		r.finish(turn + 1)
		if err := save(); err != nil {
			return err
		}
	}
	return nil
}

func (b *benchmark) turn(ctx context.Context, r *Report, p *prepared, turn int) error {
	runs := make([]*Run, len(b.variants))
	fail := func(v variant, why string) {
		r.absent(p.Name, v.name, why, true)
		fmt.Fprintf(b.log, "bench: %s, %s: %s\n", p.Name, v.name, why)
	}
	for _, i := range order(len(b.variants), turn) {
		v := b.variants[i]
		if r.isAbsent(p.Name, v.name) {
			continue
		}
		run, err := v.run(ctx, b, p)
		if ctx.Err() != nil {
			return fmt.Errorf("turn %d, %s, %s: %w", turn+1, p.Name, v.name, context.Cause(ctx))
		}
		if err != nil {
			fail(v, err.Error())
			continue
		}
		run.Workload, run.Variant, run.Turn = p.Name, v.name, turn
		runs[i] = run
		fmt.Fprintf(b.log, "bench: turn %d of %d: %-22s %-17s %12.1f us/step  loss %.5f\n", turn+1, b.turns, p.Name, v.name,
			run.stepNS()/1e3, run.WarmupLoss)
	}
	var base *Run
	for i, run := range runs {
		if run == nil {
			continue
		}
		if base == nil {
			base = run
		}
		if why := otherWork(p.Workload, base, run); why != "" {
			fail(b.variants[i], why)
			continue
		}
		r.Runs = append(r.Runs, *run)
	}
	return nil
}
