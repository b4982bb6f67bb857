package autotune

import (
	"context"
	"time"

	"steadyfit/data"
	"steadyfit/internal/stats"
	"steadyfit/session"
)

// Live is a session that measures, during its first train steps, whether TensorFlow's threads or the
// calling thread run them faster (session.Options.CallerRuns), and then keeps the faster one. The
// results equal those of plain steps, bit for bit. All other methods are inherited from the
// session.
type Live struct {
	*session.Session
	batch int
	chooser
}

// NewLive returns a Live for steps on batches of that many samples. It chooses nothing if
// SetCallerRuns of the session has no effect.
func NewLive(s *session.Session, batch int) *Live {
	return &Live{Session: s, batch: batch, chooser: chooser{decided: !s.SetCallerRuns(false)}}
}

// Train is session.Session.Train.
func (l *Live) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	start := time.Now()
	err := l.Session.Train(ctx, step, b, out)
	l.note(b.Size, time.Since(start), err)
	return err
}

// TrainN is session.Session.TrainN.
func (l *Live) TrainN(ctx context.Context, step int64, n int, out []float64) error {
	start := time.Now()
	err := l.Session.TrainN(ctx, step, n, out)
	l.note(n*l.batch, time.Since(start), err)
	return err
}

func (l *Live) note(samples int, took time.Duration, err error) {
	if before := l.caller; err == nil && !l.decided {
		if l.add(samples, took); l.caller != before {
			l.SetCallerRuns(l.caller)
		}
	}
}

const (
	// pairs is the number of pairs: a block of executions in threads, and one in the calling
	// thread.
	pairs = 5
	// A block is about blockTime long, and has at least 2 and at most blockMost executions.
	blockTime = 3 * time.Millisecond
	blockMost = 25
	// longExecution is the least time of an execution for which the calling thread cannot be
	// noticeably faster.
	longExecution = 20 * time.Millisecond
)

// chooser compares alternating blocks of executions in TensorFlow's threads and in the calling thread.
type chooser struct {
	caller, decided bool
	// samples is the largest number of samples of an execution. Smaller executions, such as the
	// last batch of a pass, are not compared.
	samples int
	// ran is the number of executions of the current block, and took the time of all but the first one,
	// which wakes threads or finds cold caches. A block has size executions after the first one, or is a
	// warm-up if size is 0.
	ran, size int
	took      time.Duration
	// times are the times of the blocks, in threads and in the calling thread.
	times [2][]float64
}

// add records an execution. If a block is complete, add begins the next one, or decides.
func (c *chooser) add(samples int, took time.Duration) {
	if samples > c.samples {
		*c = chooser{samples: samples}
	}
	if samples < c.samples {
		return
	}
	c.ran++
	if c.size == 0 {
		if c.ran == warmUp {
			c.decided = took >= longExecution
			c.size, c.ran = min(max(int(blockTime/max(took, 1)), 2), blockMost), 0
		}
		return
	}
	if c.ran > 1 {
		c.took += took
	}
	if c.ran <= c.size {
		return
	}
	of := 0
	if c.caller {
		of = 1
	}
	c.times[of] = append(c.times[of], c.took.Seconds())
	c.caller, c.ran, c.took = !c.caller, 0, 0
	if len(c.times[1]) == pairs {
		c.caller, c.decided = stats.Median(c.times[1]) < stats.Median(c.times[0]), true
	}
}
