package autotune

import (
	"context"
	"log/slog"
	"time"

	"steadyfit/data"
	"steadyfit/internal/capability"
	"steadyfit/internal/stats"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// Live is a session that measures, during its train steps, whether TensorFlow's threads or the
// calling thread run them faster (session.Options.CallerRuns), and then keeps the faster one. The
// results equal those of plain steps, bit for bit. All other methods are inherited from the
// session.
type Live struct {
	*session.Session
	batch int
	log   *slog.Logger
	chooser
}

// NewLive returns a Live for steps on batches of that many samples. It chooses nothing if
// capability.Set.SetCallerRuns has no effect. log receives the result at level Debug.
func NewLive(s *session.Session, batch int, log *slog.Logger) *Live {
	l := &Live{Session: s, batch: batch, log: log}
	l.caller = flops(s.Model(), batch) <= shortStep
	l.decided = !l.Session.Capabilities().SetCallerRuns(l.caller)
	return l
}

// Capabilities returns the capabilities of the session, except that executions of several steps are
// measured, too.
func (l *Live) Capabilities() capability.Set { return &liveSet{l.Session.Capabilities(), l} }

type liveSet struct {
	capability.Set
	live *Live
}

// flops returns the least number of floating-point operations of a train step: each weight
// takes part in a multiplication and an addition for the output, for its own gradient, and for
// the gradient of the layer before.
func flops(m *savedmodels.Model, batch int) float64 {
	n := 0.0
	for _, v := range m.Variables {
		if v.Weight {
			n += float64(v.Bytes()) / float64(max(v.DType.Size(), 1))
		}
	}
	return 6 * float64(batch) * n
}

// Train is session.Session.Train.
func (l *Live) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	if l.decided {
		return l.Session.Train(ctx, step, b, out)
	}
	start := time.Now()
	err := l.Session.Train(ctx, step, b, out)
	l.note(b.Size, time.Since(start), err)
	return err
}

// TrainN implements capability.Set.
func (s *liveSet) TrainN(ctx context.Context, step int64, n int, out []float64) error {
	start := time.Now()
	err := s.Set.TrainN(ctx, step, n, out)
	if l := s.live; !l.decided {
		l.note(n*l.batch, time.Since(start), err)
	}
	return err
}

func (l *Live) note(samples int, took time.Duration, err error) {
	if err != nil {
		return
	}
	before := l.caller
	l.add(samples, took)
	if l.caller != before {
		l.Session.Capabilities().SetCallerRuns(l.caller)
	}
	if l.decided {
		l.log.Debug("autotune measured train steps", "calling_thread", l.caller,
			"seconds_in_threads", stats.Median(l.times[0]), "seconds_in_calling_thread", stats.Median(l.times[1]), "executions", l.executions)
	}
}

const (
	// shortStep is the maximum number of floating-point operations of a step for which the comparison
	// begins in the calling thread. Such operations take less time than handing them to threads.
	shortStep = 1e7
	// A block is at least blockTime long, or has blockMost executions.
	blockTime = 3 * time.Millisecond
	blockMost = 25
	// longExecution is the least time of an execution for which the calling thread cannot be
	// noticeably faster.
	longExecution = 20 * time.Millisecond
)

// chooser compares executions in TensorFlow's threads and in the calling thread, in alternating
// blocks.
type chooser struct {
	caller, decided bool
	// samples is the largest number of samples of an execution. Smaller executions, such as the
	// last batch of a pass, are not compared.
	samples int
	// executions is the number of compared executions. ran is the number of executions in the
	// current block, without the first one, and took is their time. A block has size
	// executions, or is a warm-up if size is 0.
	executions, ran, size int
	took                  time.Duration
	// times are the seconds per execution of each block, in threads and in the calling thread.
	times [2][]float64
}

// add records an execution. If a block is complete, add decides or begins the next block.
func (c *chooser) add(samples int, took time.Duration) {
	if samples < c.samples {
		return
	}
	if samples > c.samples {
		*c = chooser{caller: c.caller, samples: samples}
	}
	c.executions++
	c.ran++
	if c.size == 0 {
		if c.ran < warmUp {
			return
		}
		if took >= longExecution {
			c.caller, c.decided = false, true
			return
		}
		c.size = min(max(int(blockTime/max(took, 1)), 2), blockMost)
		c.ran, c.took = 0, 0
		return
	}
	if c.ran == 1 {
		return // the first execution of a block wakes threads, or finds cold caches
	}
	if c.took += took; c.ran <= c.size {
		return
	}
	of := 0
	if c.caller {
		of = 1
	}
	c.times[of] = append(c.times[of], c.took.Seconds()/float64(c.size))
	c.caller, c.ran, c.took = !c.caller, 0, 0
	if len(c.times[0]) == len(c.times[1]) {
		c.decide()
	}
}

// decide ends the comparison once the confidence interval of the ratio of times excludes 1, or after
// maxRounds pairs of blocks.
func (c *chooser) decide() {
	rounds := len(c.times[0])
	if rounds < minRounds {
		return
	}
	ratio, low, high := stats.MedianRatio(c.times[1], c.times[0])
	if rounds == maxRounds || low > 1 || high < 1 {
		c.caller, c.decided = ratio < 1, true
	}
}
