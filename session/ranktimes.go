package session

import (
	"time"

	"steadyfit/internal/contract"
)

// RankTimes describes the time of train steps of a cluster. From one exchange of gradients to the
// next, a rank works: it updates its weights, waits for its data, and computes gradients. Then it
// waits for the slowest rank, and exchanges the gradients with the others.
type RankTimes struct {
	// Slowest is the rank that works longest.
	Slowest int
	// Exchange is the share of the time, from 0 to 1, from the end of the slowest rank's work to the
	// end of the exchange.
	Exchange float64
	// Wait is the share in which a rank waits for the slowest one, as a mean of all ranks.
	Wait float64
}

// RankTimes returns the times of the train steps since the last call, which are equal on all ranks
// except for rounding. ok is false if there was no step, or if the session trains alone. On a GPU,
// work that is queued when an operation returns may count as exchange.
func (s *Session) RankTimes() (times RankTimes, ok bool) {
	if s.rank == nil || len(s.rank.Workers) == 1 || s.rank.times.total <= 0 {
		return RankTimes{}, false
	}
	t := &s.rank.times
	for rank, work := range t.work {
		if work > t.work[times.Slowest] {
			times.Slowest = rank
		}
	}
	times.Exchange, times.Wait = t.exchange/t.total, t.wait/t.total
	t.total, t.exchange, t.wait = 0, 0, 0
	clear(t.work)
	return times, true
}

// exchangeTimes are sums of seconds of train steps.
type exchangeTimes struct {
	// last is the end of the last exchange of any kind, in seconds since 1970.
	last float64
	// began is the end of the last exchange before the current step. It is an input of the step.
	began [1]float64
	// total is the time of the steps. work has the time that each rank worked.
	total, exchange, wait float64
	work                  []float64
}

func secondsOf(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// add adds the last step. The shares have the work of all ranks. The clock may have been set
// meanwhile, so values are limited to what is possible.
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
