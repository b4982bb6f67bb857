package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Options configure how a model is opened. The zero value trains with the model's own train
// signature on TensorFlow's default settings.
type Options struct {
	// Device are the settings of TensorFlow's devices. TensorFlow takes some of them only once
	// per process; a different value later is gpuopts.ErrTooLate. Open sets the environment
	// variables that the settings need, if TensorFlow is not open yet.
	Device gpuopts.Options
	// Config is a serialized tensorflow.ConfigProto that overrides Device.
	Config []byte
	// TrainSignature names the signature to train with; empty means the model's role Train.
	TrainSignature string
	// AllowUnsafeOps accepts a model with operations that touch files, the
	// network or Python; see savedmodels.Model.CheckSafe.
	AllowUnsafeOps bool
	// ReadOnly opens a model for evaluation and prediction. The model need not be trainable.
	ReadOnly bool
	// ListAllocations adds a list of allocations to the error of a step that runs out of
	// memory (ErrOutOfMemory). It runs the step a second time, which takes 10 s on a CPU.
	ListAllocations bool
	// AllowInexactSplit allows micro-batches even if their update differs from that of the
	// whole batch; see CheckSplit.
	AllowInexactSplit bool
	// StepsPerExecution is the maximum number of train steps that TrainN runs in one call of
	// TensorFlow, through the signature train_n; 0 and 1 run them one by one. The results are
	// the same bit for bit, except in the single-threaded executor and with Compiled (see
	// Rounding).
	StepsPerExecution int
	// Compiled trains with the XLA-compiled signatures train_xla and, with StepsPerExecution,
	// train_n_xla. They are used if the batch and the number of steps have the sizes that they
	// were compiled for. Compiled steps round differently.
	Compiled bool
	// CallerRuns makes steps run their operations one after the other in the calling thread
	// instead of TensorFlow's threads (RunOptions.inter_op_thread_pool -1). Threads still
	// share single operations, and the results keep their bits. It saves the time to hand
	// operations to threads, and loses the time of operations that ran in parallel. TensorFlow
	// supports it only for steps on one device (run_all_kernels_inline in
	// DirectSession::RunInternal, common_runtime/direct_session.cc).
	CallerRuns bool
	// Seed is fed to the reserved input seed, together with the number of the step.
	Seed int64
	// LossScale is fed to the reserved input loss_scale.
	LossScale LossScale
}

// ErrNoSignature means that the model has no signature for the purpose.
var ErrNoSignature = errors.New("the model has no such signature")

// Session is an open model. One goroutine at a time may call its methods, except Close, which
// any goroutine may call. Sessions are independent of each other.
type Session struct {
	*Plan
	config []byte  // a serialized tensorflow.ConfigProto
	parts  int     // the number of micro-batches; 0 and 1 do not split
	rate   float64 // value of the reserved input learning_rate; NaN if not set

	scaler     *lossScaler // nil if the session does not scale the loss
	skipped    bool        // see Skipped
	stuck      float64     // see Stuck; NaN if it is not
	trainNames []string    // names of the results of a train step
	trace      *[]byte     // where Trace wants the RunMetadata; nil otherwise

	// mu guards native. Only Close changes native from another goroutine; the session's own
	// goroutine therefore reads it without the lock.
	mu     sync.Mutex
	closed bool
	gpu    *gpuMeter // nil until GPUBytes finds a GPU
	native
}

// native is the part of a session that lives in TensorFlow.
type native struct {
	tf              *tfbind.Session
	train, evaluate *runner
	compiled        *runner   // the XLA-compiled form of train; nil if unused
	stacker         *stacker  // nil if steps run one by one
	split           *splitter // nil until a batch is split
	state           *stateOps // nil until a snapshot is taken
	setRate         *Step     // the signature set_learning_rate; nil until it is used
	resetMetrics    *Step     // nil if there is no such signature
}

// Open loads the model of a plan into TensorFlow and restores its variables. Device options
// that contradict each other or the environment are an *option.Error. If the options ask for a
// GPU (gpuopts.Options.AsksForGPU) and TensorFlow has none, the error is ErrNoGPU. The result
// must be closed.
//
// ctx is checked before loading, which TensorFlow cannot interrupt.
func Open(ctx context.Context, p *Plan) (*Session, error) {
	if p == nil {
		return nil, errors.New("open session: the plan is nil; pass one from Compile")
	}
	if err := causeOf(ctx); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	resolved := *p
	device := &resolved.opts.Device
	if _, err := ResolvePrecision(device); err != nil {
		return nil, err
	}
	config, err := device.ConfigProto()
	if err == nil {
		// In the wire format, concatenated messages are merged, and the second one takes
		// precedence. This keeps fields that this build does not know.
		config = slices.Concat(config, p.opts.Config)
		err = settle(*device, config)
	}
	if err != nil {
		return nil, fmt.Errorf("device options: %w", err)
	}
	s := &Session{Plan: &resolved, config: config, rate: math.NaN(), stuck: math.NaN()}
	if err := s.load(); err != nil {
		return nil, gpuError(*device, err)
	}
	if err := s.checkGPU(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.train != nil {
		s.trainNames = s.train.names
	}
	if p.lossScale != nil {
		scaler := *p.lossScale
		s.scaler = &scaler
		s.trainNames = append(slices.Clone(s.trainNames), savedmodels.MetricLossScale, savedmodels.MetricSkippedSteps)
	}
	return s, nil
}

var errNoModel = errors.New("the model is nil; pass one from savedmodels.Open")

// causeOf returns why a context has ended, or an error if it is nil.
func causeOf(ctx context.Context) error {
	if ctx == nil {
		return errors.New("the context is nil; pass one, such as context.Background()")
	}
	return context.Cause(ctx)
}

// ErrNoGPU means that the options ask for a GPU that TensorFlow does not have.
var ErrNoGPU = errors.New("TensorFlow has no GPU here")

// checkGPU returns ErrNoGPU if the options ask for a GPU and there is none.
func (s *Session) checkGPU() error {
	asks := s.opts.Device.AsksForGPU()
	if asks == "" {
		return nil
	}
	devices, err := s.Devices()
	if err != nil || hasGPU(devices) {
		return err
	}
	return option.Errorf("{"+asks+"} asks for a GPU: %w, only %s", ErrNoGPU, strings.Join(shortNames(devices), ", "))
}

// load opens the model in TensorFlow. After an error the session and its earlier steps are
// closed, and their methods return tfbind.ErrClosed.
func (s *Session) load() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return tfbind.ErrClosed
	}
	n := native{}
	var err error
	if n.tf, err = tfbind.LoadSavedModel(s.model.Dir, s.model.Tags, s.config); err == nil {
		if err = s.prepareRoles(&n); err == nil {
			s.native = n
			return nil
		}
		err = errors.Join(err, n.close())
	}
	s.closed = true
	if errors.Is(err, tfbind.ErrDataLoss) {
		err = fmt.Errorf("%w; a file of the model in %s is damaged: copy or export it again", err, s.model.Dir)
	}
	return err
}

// unload closes the native session so that load can make a new one. After an error the session
// is closed.
func (s *Session) unload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return tfbind.ErrClosed
	}
	err := s.native.close()
	s.closed = err != nil
	return err
}

// adopt calls put to store an object made from the native session. If the session was closed
// in the meantime, adopt closes c, unless it is nil, and returns tfbind.ErrClosed.
func (s *Session) adopt(c io.Closer, put func(n *native)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		put(&s.native)
		return nil
	}
	var err error
	if c != nil {
		err = c.Close()
	}
	return errors.Join(tfbind.ErrClosed, err)
}

func (s *Session) prepareRoles(n *native) (err error) {
	if !s.opts.ReadOnly {
		if n.train, err = s.runner(n.tf, s.roles.Train); err != nil {
			return err
		}
		if err = s.prepareVariants(n); err != nil {
			return err
		}
	}
	if s.roles.Evaluate != "" {
		if n.evaluate, err = s.runner(n.tf, s.roles.Evaluate); err != nil {
			return err
		}
	}
	if s.roles.ResetMetrics != "" {
		sig, err := s.model.Signature(s.roles.ResetMetrics)
		if err != nil {
			return err
		}
		n.resetMetrics, err = s.prepare(n.tf, sig, sig.Outputs)
		return err
	}
	return nil
}

// Devices lists TensorFlow's devices.
func (s *Session) Devices() ([]tfbind.Device, error) { return s.tf.Devices() }

// Close frees the session, its own steps, its graph and its variables. The owner of a step
// made by Prepare closes it, before or after the session. TensorFlow's default CPU allocator
// keeps most of the memory for reuse (measured on 2.21). Closing twice does nothing.
func (s *Session) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	_ = s.gpu.Close() // it was only read from
	return s.native.close()
}

func (n *native) close() error {
	for _, r := range []*runner{n.train, n.compiled, n.evaluate} {
		if r != nil {
			r.Close()
		}
	}
	n.stacker.close()
	n.split.Close()
	n.setRate.Close()
	n.resetMetrics.Close()
	return n.tf.Close()
}

// TrainMetrics returns the names of the results of a train step. "loss" is the first;
// loss_scale and skipped_steps are the last if the session scales the loss. Those that
// RunningMetrics also lists are not values of one batch. TrainMetrics is part of fit.Session.
func (s *Session) TrainMetrics() []string {
	return s.trainNames
}

// EvaluateMetrics returns the names of the results of an evaluation, "loss" first; nil if the
// model has no signature for it.
func (s *Session) EvaluateMetrics() []string {
	if s.evaluate == nil {
		return nil
	}
	return s.evaluate.names
}

// Train runs one train step on a batch and writes its results to out. Running metrics cover all
// batches since ResetMetrics: call it at the start of an epoch. Train does not allocate after
// the first batch of each shape. step is the number of steps done before; it is part of
// the reserved input seed. The step is not interrupted when ctx ends; see tfbind.Finish. After
// an error of TensorFlow the variables may be partly updated: restore a checkpoint.
func (s *Session) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	if err := s.beginTrain(out); err != nil {
		return err
	}
	var applied bool
	var err error
	if s.parts > 1 && b.Size > 1 {
		applied, err = s.trainParts(ctx, step, b, out)
	} else {
		r := s.train
		if compiled := s.compiledFor(b.Size); compiled != nil {
			r = compiled
		}
		r.setSeeds(s.opts.Seed, step)
		applied, err = r.on(ctx, b, out[:len(r.names)])
	}
	if err == nil {
		s.rescale(applied, out)
	}
	return err
}

// beginTrain checks the length of out, and clears the result of the previous train step.
func (s *Session) beginTrain(out []float64) error {
	if s.train == nil {
		return fmt.Errorf("train: %w: the session was opened read-only", ErrNoSignature)
	}
	s.skipped, s.stuck = false, math.NaN()
	return s.train.checkLen(out, s.trainNames)
}

// compiledFor returns the XLA-compiled signature for whole batches of that many samples; nil
// if there is none.
func (s *Session) compiledFor(samples int) *runner {
	if c := s.compiled; c != nil && batchOf(c.signature, 0) == int64(samples) {
		return c
	}
	return nil
}

// Trace is like Train and returns a serialized tensorflow.RunMetadata; see [Step.Trace]. With
// micro-batches it is that of the last one.
func (s *Session) Trace(ctx context.Context, step int64, b data.Batch, out []float64) (metadata []byte, err error) {
	s.trace = &metadata
	defer func() { s.trace = nil }()
	err = s.Train(ctx, step, b, out)
	return metadata, err
}

// RunningMetrics returns the names of the metrics that accumulate over all batches since
// ResetMetrics, those of Train and Evaluate together; see savedmodels.Model.RunningMetrics.
func (s *Session) RunningMetrics() []string { return s.model.RunningMetrics() }

// ResetMetrics resets the running metrics, if the model has any. It is called before an epoch
// or an evaluation.
func (s *Session) ResetMetrics(ctx context.Context) error {
	if s.resetMetrics == nil {
		return nil
	}
	return s.resetMetrics.Run(ctx)
}

// Finalize gives the weights their final values, such as their moving averages (use_ema of
// Keras optimizers), through the signature finalize, if the model has one. Later training
// continues from these values.
func (s *Session) Finalize(ctx context.Context) error {
	if s.roles.Finalize == "" {
		return nil
	}
	step, err := s.Prepare(s.roles.Finalize)
	if err != nil {
		return err
	}
	return errors.Join(step.Run(ctx), step.Close())
}

// Evaluate runs the evaluation signature on a batch and writes its results to out. It changes
// only the state of running metrics, which it shares with Train: call ResetMetrics before the
// first batch of an evaluation.
//
// With micro-batches (SetMicroBatches), it splits the batch like Train, unless the batch size
// is part of the signature. If loss and metrics are means over samples, the results equal
// those of the whole batch except for the order in which floats are added.
func (s *Session) Evaluate(ctx context.Context, b data.Batch, out []float64) (err error) {
	r := s.evaluate
	if r == nil {
		return fmt.Errorf("evaluate: %w: the model has neither evaluate nor eval", ErrNoSignature)
	}
	if err := r.checkLen(out, r.names); err != nil {
		return err
	}
	if n := s.evaluateIn(b.Size); n > 1 {
		_, err = r.inParts(ctx, b, n, 0, 0, r.find(r.names), out)
	} else {
		_, err = r.on(ctx, b, out)
	}
	return err
}

// SetLearningRate sets the rate of later train steps. It uses the reserved input learning_rate
// of the train signature, or else the signature set_learning_rate; a model with neither is
// ErrNoSignature. A rate set through the signature is part of the model's state, so Save
// writes it.
func (s *Session) SetLearningRate(rate float64) error {
	if s.train != nil && s.train.signature.Reserved(savedmodels.InputLearningRate) != nil {
		s.rate = rate
		return nil
	}
	name := s.roles.SetLearningRate
	if name == "" {
		return fmt.Errorf("set the learning rate: %w: the model has neither a signature set_learning_rate nor an input learning_rate, so its rate is fixed; export it again with one of them, or do not set the rate", ErrNoSignature)
	}
	if s.setRate == nil {
		step, err := s.Prepare(name)
		if err != nil {
			return err
		}
		if n := len(step.inputs); n != 1 {
			step.Close()
			return fmt.Errorf("signature %s takes %d inputs; expected one, the rate", name, n)
		}
		if err := s.adopt(step, func(n *native) { n.setRate = step }); err != nil {
			return fmt.Errorf("signature %s: %w", name, err)
		}
	}
	if err := setScalar(s.setRate.tf, 0, s.setRate.inputs[0].DType, rate); err != nil {
		return fmt.Errorf("signature %s: %w", name, err)
	}
	return s.setRate.Run(context.Background())
}

// Identity describes what must be equal for a checkpoint to be restored in this session: the
// graph of the model, the train signature, the precision, the XLA-compiled signatures, several
// steps per execution where they round differently ([Rounding]), and the version of
// TensorFlow, since other versions round differently.
func (s *Session) Identity() map[string]string {
	id := map[string]string{
		"model": s.model.Hash, "signature": s.roles.Train,
		"precision": cmp.Or(string(s.opts.Device.Precision), "that of the model"),
		"xla":       cmp.Or(string(s.opts.Device.XLA), "TensorFlow's default"),
		"compiled":  s.compiledSignatures(),
		"fused":     "as single steps",
	}
	if r := s.opts.Rounding(); r.Loop {
		id["fused"] = fmt.Sprintf("up to %d steps per call in the single-threaded executor", r.StepsPerExecution)
	}
	if info, err := tfbind.Load(""); err == nil { // the library is open, so there is no error
		id["tensorflow"] = info.Version
	}
	if s.train != nil && s.train.signature.Reserved(savedmodels.InputSeed) != nil {
		id["seed"] = strconv.FormatInt(s.opts.Seed, 10)
	}
	if s.scaler != nil {
		id["loss_scale"] = s.scaler.String()
	} else if s.train != nil && s.train.signature.Reserved(savedmodels.InputLossScale) != nil {
		id["loss_scale"] = "1" // the value that is fed
	}
	return id
}

// LiveTensors returns the number of native tensors in this process.
func (s *Session) LiveTensors() int64 { return tfbind.Live().Tensors }
