package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Options say how [Watch] watches. The zero value watches this process once a
// second.
type Options struct {
	// Every is the time between samples; 0 means a second.
	Every time.Duration
	// Sampler says which process, and which layers beyond the default ones.
	// Sources are called from the goroutine that samples.
	Sampler SamplerOptions
	// Steps tells how many steps the program has done, if it counts any; it is
	// called from the goroutine that samples. With it slopes are per step unless
	// Criteria say otherwise, without it per minute.
	Steps func() int
	// Keep bounds the memory of the watch, as in [Series].
	Keep int
	// Criteria of the verdict.
	Criteria Criteria
}

// Watcher samples a process in the background. Its methods can be called from
// any goroutine, during the watch and after it.
type Watcher struct {
	options Options
	sampler *Sampler
	stop    context.CancelFunc
	done    chan struct{}

	mu     sync.Mutex
	series Series
	err    error
}

// Watch begins to sample and returns at once. It samples until ctx is done, Stop
// is called, or the process has ended, and then leaves no goroutine behind; a
// last sample is taken at the end. Its memory is bounded and taken at the start,
// so that a watch of days weighs as much as one of an hour and does not show in
// its own samples.
//
// Watch does not fail: where nothing can be sampled, the verdict is inconclusive
// and [Watcher.Err] says why.
func Watch(ctx context.Context, options Options) *Watcher {
	if options.Every <= 0 {
		options.Every = time.Second
	}
	if options.Criteria.Per == "" && options.Steps == nil {
		options.Criteria.Per = PerMinute
	}
	ctx, stop := context.WithCancel(ctx)
	w := &Watcher{options: options, stop: stop, done: make(chan struct{}), series: Series{Keep: options.Keep}}
	w.sampler, w.err = NewSampler(options.Sampler)
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
	if err := w.sampler.Close(); err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = errors.Join(w.err, err)
	}
}

// sample takes a sample. An error ends the watch.
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

// Stop ends the watch and returns when its goroutine has ended. It can be called
// again.
func (w *Watcher) Stop() {
	w.stop()
	<-w.done
}

// Done is closed when the watch has ended.
func (w *Watcher) Done() <-chan struct{} { return w.done }

// Err says why nothing is sampled, or why the watch ended before it was stopped:
// ErrUnavailable, or ErrEnded when the process that was watched has ended. A watch
// that was stopped has no error.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Verdict judges what has been seen so far.
func (w *Watcher) Verdict() Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.series.Judge(w.options.Criteria)
	if w.series.Total() == 0 && w.err != nil {
		v.Reason = w.err.Error()
	}
	return v
}

// Samples are those that are kept so far.
func (w *Watcher) Samples() []Sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.series.Samples()
}

// MarshalJSON writes the series, as [Series.MarshalJSON] does.
func (w *Watcher) MarshalJSON() ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.series.MarshalJSON()
}
