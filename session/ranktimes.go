package session

import (
	"time"

	"steadyfit/internal/contract"
	"steadyfit/internal/rank"
)

func (g group) Times() (times rank.Times, ok bool) {
	t := &g.s.rank.times
	if t.total <= 0 {
		return times, false
	}
	for of, work := range t.work {
		if work > t.work[times.Slowest] {
			times.Slowest = of
		}
	}
	times.Exchange, times.Wait = t.exchange/t.total, t.wait/t.total
	t.total, t.exchange, t.wait = 0, 0, 0
	clear(t.work)
	return times, true
}

// exchangeTimes are the times of train steps, in seconds.
type exchangeTimes struct {
	// last is the end of the last exchange of any kind, in seconds since 1970.
	last float64
	// began is the end of the last exchange before the current step. It is an input of the step.
	began [1]float64
	// total is the time of the steps. work has the time that each rank spent on its own samples.
	total, exchange, wait float64
	work                  []float64
}

func secondsOf(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// add adds the last step. shares includes the times of all ranks. The clock may have been set
// during the step, so values are limited to what is possible.
func (t *exchangeTimes) add(shares []float32) {
	seconds := max(t.last-t.began[0], 0)
	size := len(shares) / len(t.work)
	work := func(rank int) float64 {
		return min(max(float64(shares[rank*size+contract.ShareFlags]), 0), seconds)
	}
	most, all := 0.0, 0.0
	for rank := range t.work {
		w := work(rank)
		t.work[rank] += w
		most, all = max(most, w), all+w
	}
	t.total += seconds
	t.exchange += seconds - most
	t.wait += most - all/float64(len(t.work))
}
