// Package serve computes the predictions of a SavedModel in the process of a program.
//
// Open loads a model, or the newest version in a folder of versions. Predictor.Predict may be called by any number of
// goroutines. Each call is computed by one version of the model, from its columns and classes to its weights.
//
// # Inputs and outputs
//
// Predict takes its samples as one of
//
//   - a pointer to a struct, which is one sample, or a slice of structs;
//   - a *data.Batch, whose fields have the names of the inputs, or the names x and y of data files;
//   - JSON with the inputs, or with columns, which are read as in a training: with the categories, the rules and the
//     scale that the model records.
//
// It writes the predictions to a pointer to a struct, a pointer to a slice of structs, or a *data.Batch. It reuses the
// memory of slices in them, so slices that are kept must be copied before the next call with the same result.
//
// A field of a struct stands for the input or output that its tag names, as `tensor:"NAME"`, or else for that of its
// own name in any case; the tag "-" hides a field. `steadyfit inspect` and Predictor.Model list the names. A field is a
// number, a bool or a string, or a slice or an array of them that has the values of a sample in row-major order. Its
// type is that of the tensor, such as int64; float32 stands for float16 and bfloat16. Fields of embedded structs count,
// too. A struct has the values that the model takes: only columns in JSON are converted by the categories and the scale
// of the training.
//
//	type flower struct {
//		Sizes []float32 `tensor:"x"`
//	}
//	type answer struct {
//		Scores [3]float32 `tensor:"output_0"`
//	}
//	p, err := serve.Open(ctx, "models/flowers", serve.Options{})
//	...
//	var a answer
//	err = p.Predict(ctx, &flower{Sizes: sizes}, &a)
//
// # Calls that run together
//
// At most Options.Parallel runs compute at a time. The other calls wait. With Options.Batch, a run takes the samples
// of several waiting calls whose samples have equal shapes. Each row of an output must then depend on the sample of
// that row only, as in the models of Keras. A sample may round differently in a larger batch, as in any program that
// uses TensorFlow.
//
// # Versions
//
// Refresh, which Options.Every calls regularly, loads the newest version in the folder and then passes new calls to it.
// A version that cannot be loaded leaves the old one serving. A version is closed once its last call has returned.
// Promote and Rollback change the version that serves.
//
// # Adapters
//
// PredictWith computes with the weights of an adapter, so that one model in memory serves many tenants. A call of
// another adapter than the last one swaps the weights first (session.Session.Swap). Calls of one adapter run together.
//
// # Memory
//
// A call with a pointer to a struct and a *data.Batch or a pointer to a struct as its result allocates no memory once
// earlier calls had the same sizes, unless the values are strings or half-precision floats. A version has one set of
// buffers for each run at a time.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// Options configure a Predictor. The zero value serves each call alone, from the newest version when Open is called.
type Options struct {
	// Signature is the signature to run. Empty means that of the role predict (savedmodels.Roles).
	Signature string
	// Parallel is the maximum number of runs at a time. 0 means twice GOMAXPROCS, since a run waits for its slowest
	// operations at times.
	Parallel int
	// Batch is the maximum number of samples of several calls that run together. 0 and 1 mean that each call runs alone.
	// A call with more samples runs alone, too.
	Batch int
	// Delay is how long a run with fewer samples than Batch waits for more calls. 0 means that a run takes the calls that
	// wait already.
	Delay time.Duration
	// Every is the time between two calls of Refresh. 0 means that the program calls it.
	Every time.Duration
	// Keep is the number of versions that Promote leaves in the folder. 0 means all.
	Keep int
	// Session configures TensorFlow and the model. Open sets ReadOnly and Only. On a CPU, it sets CallerRuns, since calls
	// run beside each other.
	Session session.Options
	// Log receives a message for each version that starts or fails. Nil means slog.Default().
	Log *slog.Logger
	// Observe, if not nil, is called at the end of each call of Predict with its time and its error, such as for metrics.
	Observe func(took time.Duration, err error)
}

// ErrClosed means that the Predictor was closed.
var ErrClosed = errors.New("the predictor is closed")

// ErrInput means that the samples or the result of a call do not fit the model.
var ErrInput = errors.New("the call does not fit the model")

// ErrNoVersion means that there is no version before the one that serves.
var ErrNoVersion = errors.New("there is no earlier version")

// Predictor computes the predictions of a model. Its methods may be called by several goroutines.
type Predictor struct {
	dir string
	o   Options

	refreshing sync.Mutex       // held by Refresh, Promote and Rollback
	failed     map[int64]string // the state of the files of versions that could not be loaded, by number
	versions   sync.WaitGroup   // the versions that are not closed yet
	follower   sync.WaitGroup
	thread     chan func()        // see onThread
	stop       context.CancelFunc // ends the follower

	mu        sync.Mutex
	closed    bool
	current   *version // nil after Close
	free      int      // number of runs that may begin
	waiting   []*call  // calls for which no run may begin
	idle      []*call  // calls that have ended, for reuse
	gathering *call    // the call whose run waits for Options.Delay
}

// Open loads the SavedModel at dir, or the newest version in the folder dir. The result must be closed.
func Open(ctx context.Context, dir string, o Options) (*Predictor, error) {
	o.Parallel = cmp.Or(max(o.Parallel, 0), 2*runtime.GOMAXPROCS(0))
	if o.Log == nil {
		o.Log = slog.Default()
	}
	p := &Predictor{dir: dir, o: o, free: o.Parallel, failed: map[int64]string{}, thread: make(chan func())}
	go p.runThread()
	if err := p.Refresh(ctx); err != nil && p.current == nil {
		close(p.thread)
		return nil, err
	} else if err != nil {
		o.Log.Error("an older version is served", "error", err)
	}
	if o.Every > 0 {
		following, stop := context.WithCancel(context.WithoutCancel(ctx))
		p.stop = stop
		p.follower.Go(func() { p.follow(following) })
	}
	return p, nil
}

// Close waits for the calls that have begun and closes the model. Later calls are ErrClosed.
func (p *Predictor) Close() error {
	if p.stop != nil {
		p.stop()
	}
	p.follower.Wait()
	p.refreshing.Lock()
	defer p.refreshing.Unlock()
	p.mu.Lock()
	first := !p.closed && p.thread != nil
	p.closed = true
	p.begin()
	p.mu.Unlock()
	p.serve(nil)
	if p.versions.Wait(); first {
		close(p.thread)
	}
	return nil
}

// Model describes the version that new calls get: its signatures and, in Metadata.ClassNames, the names of its classes.
// It is nil after Close.
func (p *Predictor) Model() *savedmodels.Model {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return nil
	}
	return p.current.model
}

// Version returns the number of the version that new calls get. It is 0 for a model that is no version, and after
// Close.
func (p *Predictor) Version() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return 0
	}
	return p.current.Number
}

// Predict computes the signature for the samples in and writes the results to out. The documentation of the package
// has the types of both. in and out must not change until Predict returns.
//
// If ctx ends while the call waits, Predict returns its cause. A run that has begun cannot be stopped; Predict then
// returns the result of the run. Errors of TensorFlow are *tfbind.Error. After an error, out may be partly written.
func (p *Predictor) Predict(ctx context.Context, in, out any) error {
	return p.PredictWith(ctx, nil, in, out)
}

// PredictWith is Predict with the weights of an adapter of Model; nil stands for the model's own. It needs
// Options.Parallel 1, because all runs share the weights.
func (p *Predictor) PredictWith(ctx context.Context, a *session.Adapter, in, out any) (err error) {
	if p.o.Observe != nil {
		began := time.Now()
		defer func() { p.o.Observe(time.Since(began), err) }()
	}
	if a != nil && p.o.Parallel > 1 {
		return option.Errorf("predict: an adapter needs {Options.Parallel} 1, and it is %d", p.o.Parallel)
	}
	if ctx == nil {
		return errors.New("predict: the context is nil; pass one, such as context.Background()")
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("predict: %w", err)
	}
	c := p.open()
	if c == nil {
		return fmt.Errorf("predict: %w", ErrClosed)
	}
	defer p.end(c)
	c.adapter = a
	err = c.version.fill(c, in, out)
	if err == nil {
		err = context.Cause(ctx) // decoding JSON may take longer than the caller waits
	}
	if err == nil {
		err = p.do(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("predict: %w", err)
	}
	return nil
}

// open returns a call of the version that serves new calls; nil after Close.
func (p *Predictor) open() (c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil {
		return nil
	}
	p.current.uses++
	if last := len(p.idle) - 1; last >= 0 {
		c, p.idle = p.idle[last], p.idle[:last]
	} else {
		c = &call{wake: make(chan bool, 1), full: make(chan struct{}, 1)}
	}
	c.version = p.current
	return c
}

// end ends a call, and drops its references to the values of the caller.
func (p *Predictor) end(c *call) {
	v := c.version
	c.request, c.version, c.err = request{sizes: c.sizes[:0], fields: c.fields[:0]}, nil, nil
	select {
	case <-c.full:
	default:
	}
	p.mu.Lock()
	p.idle = append(p.idle, c)
	p.mu.Unlock()
	p.release(v)
}

// release ends the use of a version. The last use closes the version.
func (p *Predictor) release(v *version) {
	p.mu.Lock()
	v.uses--
	last := v.uses == 0
	p.mu.Unlock()
	if last {
		go p.onThread(func() { v.close(p) })
	}
}
