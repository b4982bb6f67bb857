package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Options configure [Watch]. The zero value samples this process once per second.
type Options struct {
	// Every is the time between samples; 0 means one second.
	Every time.Duration
	// PID and Sources are those of [NewSampler]. The sampling goroutine calls the sources.
	PID     int
	Sources []Source
	// Steps returns the number of steps done. The sampling goroutine calls it. If it is nil, slopes
	// are per minute.
	Steps func() int
	// Keep is Series.Keep.
	Keep     int
	Criteria Criteria
}

// Watcher samples a process in the background. Its methods are safe for concurrent use, also after
// sampling has ended.
type Watcher struct {
	options Options
	sampler *Sampler
	stop    context.CancelFunc
	done    chan struct{}

	mu     sync.Mutex
	series Series
	err    error
}

// Watch starts sampling and returns at once. It samples until ctx is done, Stop is called or the
// process ends, and then takes a last sample. The memory for samples is bounded and allocated at the
// start, so that it does not appear as growth.
//
// If nothing can be sampled, the verdict is inconclusive and [Watcher.Stop] returns the reason.
func Watch(ctx context.Context, options Options) *Watcher {
	if options.Every <= 0 {
		options.Every = time.Second
	}
	if options.Steps == nil {
		options.Criteria.PerMinute = true
	}
	ctx, stop := context.WithCancel(ctx)
	w := &Watcher{options: options, stop: stop, done: make(chan struct{}), series: Series{Keep: options.Keep}}
	w.sampler, w.err = NewSampler(options.PID, options.Sources...)
	if w.err != nil {
		stop()
		close(w.done)
		return w
	}
	var sample Sample
	w.err = w.sampler.Sample(0, &sample)
	w.series.reserve(&sample)
	go w.run(ctx, &sample)
	return w
}

func (w *Watcher) run(ctx context.Context, sample *Sample) {
	defer close(w.done)
	defer w.stop()
	ticker := time.NewTicker(w.options.Every)
	defer ticker.Stop()
	for w.sample(sample) == nil {
		select {
		case <-ticker.C:
			continue
		case <-ctx.Done():
			w.sample(sample)
		}
		break
	}
	err := w.sampler.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.err, err)
}

func (w *Watcher) sample(sample *Sample) error {
	step := 0
	if w.options.Steps != nil {
		step = w.options.Steps()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.options.Steps == nil {
		step = w.series.Total()
	}
	if err := w.sampler.Sample(step, sample); err != nil {
		w.err = fmt.Errorf("memory watch: %w", err)
		return w.err
	}
	w.series.Append(sample)
	return nil
}

// Stop ends the watch and waits for its goroutine. It returns the error that prevented sampling or
// ended the watch early: ErrUnavailable, or os.ErrProcessDone. Another call returns the same error.
func (w *Watcher) Stop() error {
	w.stop()
	<-w.done
	return w.err
}

// Verdict judges the samples taken so far.
func (w *Watcher) Verdict() Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.series.Judge(w.options.Criteria)
	if w.series.Total() == 0 && w.err != nil {
		v.Reason = w.err.Error()
	}
	return v
}
