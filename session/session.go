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

// Options say how to open a model. The zero value trains with the model's own
// train signature on TensorFlow's default settings.
type Options struct {
	// Device are the settings of TensorFlow's devices. Those that it takes once per
	// process and has taken otherwise are gpuopts.ErrTooLate. Where TensorFlow is not
	// open yet, Open sets the environment variables that they need.
	Device gpuopts.Options
	// Config is a serialized tensorflow.ConfigProto that is merged over Device's,
	// for settings that Device has no field for.
	Config []byte
	// TrainSignature names the signature to train with; empty means the model's
	// role "train".
	TrainSignature string
	// AllowUnsafeOps accepts a model with operations that touch files, the
	// network or Python; see savedmodels.Model.CheckSafe.
	AllowUnsafeOps bool
	// ReadOnly opens a model that need not be trainable, for evaluation and
	// prediction.
	ReadOnly bool
	// ListAllocations has the error of a step that runs out of memory (ErrOutOfMemory)
	// list what the memory was given to. Such a step is run once more for it, which
	// takes TensorFlow 10 s on a CPU.
	ListAllocations bool
	// AllowInexactSplit has SetMicroBatches split the batches of a model, too, whose
	// update from parts is another one than from the whole; see CheckSplit.
	AllowInexactSplit bool
	// StepsPerExecution is the most train steps that TrainN runs in one call of TensorFlow,
	// through the signature train_n; 0 and 1 run them one by one. They are the same steps
	// bit for bit, but in the single-threaded executor and with Compiled (Rounding). A model that cannot
	// is the error of Compile.
	StepsPerExecution int
	// Compiled trains with the model's twins that XLA has compiled, train_xla and, with
	// StepsPerExecution, train_n_xla, wherever a batch and the number of steps have the sizes
	// that a twin was made for; all else goes through the signatures that they are twins
	// of. Compiled steps round differently. A model without twins is the error of
	// Compile.
	Compiled bool
	// CallerRuns has the steps that the session prepares, for training, evaluation and
	// Prepare, run their operations one after the other in the thread that calls, rather
	// than hand them to TensorFlow's threads (RunOptions.inter_op_thread_pool -1). The
	// threads that share one operation stay, and so do the bits. It takes less time where
	// handing over is much of a step, and more where operations had run side by side.
	//
	// TensorFlow does so where all of a step is on one device, and else hands over as
	// without it (DirectSession::RunInternal in common_runtime/direct_session.cc, which
	// sets run_all_kernels_inline). It may be combined with gpuopts.SingleThreaded and
	// changes nothing there: that executor runs in the calling thread anyway.
	CallerRuns bool
	// Seed is fed, together with the number of the step, to models that take the
	// reserved input seed.
	Seed int64
	// LossScale is what the reserved input loss_scale is fed.
	LossScale LossScale
}

// ErrNoSignature: the model has no signature for what was asked.
var ErrNoSignature = errors.New("the model has no such signature")

// Session is an open model. Its methods other than Close are for one goroutine
// at a time; sessions are independent of each other.
type Session struct {
	*Plan
	// config is a serialized tensorflow.ConfigProto.
	config []byte
	parts  int     // that a batch is split into; 0 and 1 are the whole
	rate   float64 // what the reserved input learning_rate is fed; NaN if not set

	scaler     *lossScaler // nil if the session does not scale the loss
	begin      scaleState  // of the scaler
	skipped    bool        // see Skipped
	stuck      float64     // see Stuck; NaN if it is not
	trainNames []string    // of the results of a train step
	trace      *[]byte     // where Trace wants the RunMetadata; nil otherwise

	// mu is held while anything of native is written, and by Close, which may come from
	// another goroutine. Nobody else writes, so that reading takes no lock.
	mu     sync.Mutex
	closed bool
	gpu    *gpuMeter // once GPUBytes was asked where there is a GPU
	native
}

// native is what a session has of TensorFlow.
type native struct {
	tf              *tfbind.Session
	train, evaluate *runner
	compiled        *runner   // the twin of train; nil if there is none, or it is not wanted
	stacker         *stacker  // nil if steps run one by one
	split           *splitter // once batches were split
	state           *stateOps // once a snapshot was taken
	setRate         *Step     // the signature set_learning_rate, once it was used
	resetMetrics    *Step     // nil if there is no such signature
}

// runner is a role's step with what it reports.
type runner struct {
	*Step
	metrics []int // outputs of the step, in the order of names
	names   []string
	// means says how the results of parts make that of a batch; part is room for the
	// results of one.
	means []mean
	part  []float64
	// finite is the output grads_finite of the step, -1 if there is none; applied is
	// what it was in the last run, and true without it.
	finite  int
	applied bool
}

// Open loads the model of a plan into TensorFlow, its variables restored. Device options
// that contradict each other or the environment are an *option.Error; those that
// ask for a GPU (gpuopts.Options.AsksForGPU) that TensorFlow does not have are ErrNoGPU.
// The result must be closed.
//
// ctx is looked at before loading, which TensorFlow cannot interrupt.
func Open(ctx context.Context, p *Plan) (*Session, error) {
	if p == nil {
		return nil, errors.New("open session: the plan is nil; give one from Compile")
	}
	if err := causeOf(ctx); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	resolved := *p
	p = &resolved
	if _, err := ResolvePrecision(&p.opts.Device); err != nil {
		return nil, err
	}
	opts := p.opts
	config, err := opts.Device.ConfigProto()
	if err != nil {
		return nil, fmt.Errorf("device options: %w", err)
	}
	// Two messages in a row are the second one merged over the first, by the
	// definition of the wire format; so fields that this build does not know stay.
	config = slices.Concat(config, opts.Config)
	if err := settle(opts.Device, config); err != nil {
		return nil, fmt.Errorf("device options: %w", err)
	}
	s := &Session{Plan: p, config: config, rate: math.NaN(), stuck: math.NaN()}
	if p.lossScale != nil {
		scaler := *p.lossScale
		s.scaler = &scaler
	}
	if err := s.load(); err != nil {
		return nil, gpuError(opts.Device, err)
	}
	if err := s.checkGPU(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.train != nil {
		s.trainNames = s.train.names
		if s.scaler != nil {
			s.begin = s.scaler.scaleState
			s.trainNames = append(slices.Clone(s.trainNames), savedmodels.MetricLossScale, savedmodels.MetricSkippedSteps)
		}
	}
	return s, nil
}

var errNoModel = errors.New("the model is nil; give one from savedmodels.Open")

// causeOf is why a context has ended, or that there is none.
func causeOf(ctx context.Context) error {
	if ctx == nil {
		return errors.New("the context is nil; give one, such as context.Background()")
	}
	return context.Cause(ctx)
}

// ErrNoGPU: the options ask for a GPU, and TensorFlow has none, or not that one.
var ErrNoGPU = errors.New("TensorFlow has no GPU here")

// checkGPU is ErrNoGPU where the options ask for one in vain.
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

// load opens the model in TensorFlow. After an error the session is closed, and what
// it had before, which is closed, too, answers with tfbind.ErrClosed.
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

// unload closes what there is of TensorFlow, for load to make it anew. After an error
// the session is closed.
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

// adopt has put enter into native what was made of the native session. If the session
// was closed meanwhile, c, if there is one, is closed instead, and the error is
// tfbind.ErrClosed.
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
		n.resetMetrics, err = s.prepareAll(n.tf, s.roles.ResetMetrics)
	}
	return err
}

// runner prepares a role. There is none with an error.
func (s *Session) runner(tf *tfbind.Session, signature string) (*runner, error) {
	sig, err := s.model.Signature(signature)
	if err != nil {
		return nil, err
	}
	r := &runner{finite: -1}
	var fetch []savedmodels.Tensor
	for i, m := range sig.Metrics() {
		fetch = append(fetch, m)
		r.metrics = append(r.metrics, i)
		r.names = append(r.names, m.Name)
		r.means = append(r.means, meanOf(s.model, m.Name))
	}
	if t := gradsFinite(sig); t != nil {
		r.finite = len(fetch)
		fetch = append(fetch, *t)
	}
	r.part = make([]float64, len(r.names))
	if r.Step, err = s.prepare(tf, sig, fetch); err != nil {
		return nil, err
	}
	return r, nil
}

// Devices lists the devices that TensorFlow really has.
func (s *Session) Devices() ([]tfbind.Device, error) { return s.tf.Devices() }

// Close frees the session, its steps for training and evaluation, its graph and
// its variables. Steps made by Prepare are closed by their owner, before or
// after. TensorFlow keeps some of the memory for itself: with its default CPU
// allocator, most of it (measured on 2.21). Closing twice does nothing.
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
	_ = s.gpu.Close() // only figures came from there
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

// TrainMetrics names the scalars of a train step, "loss" first; the last ones are
// loss_scale and skipped_steps if the session scales the loss. It is part of
// fit.Session.
func (s *Session) TrainMetrics() []string {
	if s.train == nil {
		return nil
	}
	return s.trainNames
}

// EvaluateMetrics names the scalars of an evaluation, "loss" first; nil if the
// model has no signature for it.
func (s *Session) EvaluateMetrics() []string {
	if s.evaluate == nil {
		return nil
	}
	return s.evaluate.names
}

// Train runs one train step on a batch and writes its scalars to out. It does
// not allocate once the first batch of a shape has been seen. step counts the
// steps done before; it is part of what the reserved input seed is fed. The
// step is not interrupted when ctx ends; see tfbind.Finish. After an error of
// TensorFlow the variables are in doubt: restore a checkpoint.
func (s *Session) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	if s.train == nil {
		return fmt.Errorf("train: %w: the session was opened to read only", ErrNoSignature)
	}
	if len(out) != len(s.trainNames) {
		return s.train.room(out)
	}
	s.skipped, s.stuck = false, math.NaN()
	seed := [2]int64{s.opts.Seed, step}
	if s.parts > 1 && b.Size > 1 {
		return s.trainParts(ctx, seed, b, out)
	}
	r := s.train
	if twin := s.twinOf(b.Size); twin != nil {
		r = twin
	}
	r.seed = seed
	if err := r.feed(b, true); err != nil {
		return err
	}
	if err := r.runFed(ctx, b, out[:len(r.names)]); err != nil {
		return err
	}
	s.rescale(r.applied, out)
	return nil
}

// twinOf is the compiled twin that trains on whole batches of that many samples; nil if
// there is none.
func (s *Session) twinOf(samples int) *runner {
	if c := s.compiled; c != nil && batchOf(c.signature, 0) == int64(samples) {
		return c
	}
	return nil
}

// Trace is Train, and returns a serialized tensorflow.RunMetadata: see
// [Step.Trace]. Of a batch that is split it is that of the last part.
func (s *Session) Trace(ctx context.Context, step int64, b data.Batch, out []float64) (metadata []byte, err error) {
	if s.train == nil {
		return nil, fmt.Errorf("train: %w: the session was opened to read only", ErrNoSignature)
	}
	s.trace = &metadata
	defer func() { s.trace = nil }()
	err = s.Train(ctx, step, b, out)
	return metadata, err
}

// RunningMetrics names the metrics of TrainMetrics and EvaluateMetrics that are values over
// all batches since ResetMetrics; see savedmodels.Model.RunningMetrics.
func (s *Session) RunningMetrics() []string { return s.model.RunningMetrics() }

// ResetMetrics begins the running metrics anew, as an epoch or an evaluation does. It does
// nothing for a model without such metrics.
func (s *Session) ResetMetrics(ctx context.Context) error {
	if s.resetMetrics == nil {
		return nil
	}
	return s.resetMetrics.Run(ctx)
}

// Finalize gives the weights the values with which a training ends, such as their moving
// averages (the option use_ema of Keras optimizers), through the signature finalize. It does
// nothing for a model without one. Training that goes on afterwards goes on from these.
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

// Evaluate runs the evaluation signature on a batch and writes its scalars to
// out. It changes nothing but what running metrics are computed from, which it has in
// common with Train.
//
// While train batches are split (SetMicroBatches), this one is evaluated in as many
// parts, unless its size is part of the signature. The results are made of those of the
// parts as in training: so they equal those of the whole batch, but for the order in
// which floats are added, if loss and metrics are means over samples.
func (s *Session) Evaluate(ctx context.Context, b data.Batch, out []float64) error {
	if s.evaluate == nil {
		return fmt.Errorf("evaluate: %w: it has neither evaluate nor eval", ErrNoSignature)
	}
	if n := s.evaluateIn(b.Size); n > 1 {
		return s.evaluate.inParts(ctx, b, n, [2]int64{}, s.evaluate.metrics, out)
	}
	if len(out) != len(s.evaluate.names) {
		return s.evaluate.room(out)
	}
	if err := s.evaluate.feed(b, true); err != nil {
		return err
	}
	return s.evaluate.runFed(ctx, b, out)
}

// runFed runs the step on a batch that was fed, releases the batch, also after an error, and
// writes the results to out.
func (r *runner) runFed(ctx context.Context, b data.Batch, out []float64) (err error) {
	if trace := r.session.trace; trace != nil {
		*trace, err = r.Trace(ctx)
	} else {
		err = r.Run(ctx)
	}
	if err := errors.Join(err, r.release(b)); err != nil {
		return err
	}
	for i, m := range r.metrics {
		v, err := r.tf.Float(m)
		if err != nil {
			return err
		}
		out[i] = v
	}
	return r.readApplied()
}

// readApplied reads grads_finite of the last run; a step without it was applied.
func (r *runner) readApplied() error {
	r.applied = true
	if r.finite < 0 {
		return nil
	}
	v, err := r.tf.Float(r.finite)
	if err != nil {
		return err
	}
	r.applied = v != 0
	return nil
}

// room is the error of a slice that has no room for the results.
func (r *runner) room(out []float64) error {
	return fmt.Errorf("signature %s: room for %d results, it has %d: %v", r.signature.Name, len(out), len(r.metrics), r.names)
}

// SetLearningRate sets the rate of the train steps that follow: through the
// reserved input learning_rate of the train signature if it has one, else
// through the signature set_learning_rate. A rate set through the signature is
// part of the model's state, and so of what Save writes. A model with neither
// gives ErrNoSignature.
func (s *Session) SetLearningRate(rate float64) error {
	if s.train != nil && s.train.signature.Reserved(savedmodels.InputLearningRate) != nil {
		s.rate = rate
		return nil
	}
	name := s.roles.SetLearningRate
	if name == "" {
		return fmt.Errorf("set the learning rate: %w: it has neither set_learning_rate nor an input learning_rate, so its rate is fixed; export it again with one, or leave the rate to the model", ErrNoSignature)
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

// Save writes all variables, those of the optimizer included, to the files
// prefix.index and prefix.data-00000-of-00001. ctx is looked at before; a save
// in progress is not interrupted. If the folder cannot be written, or the disk is
// full, the error is a SaveError.
func (s *Session) Save(ctx context.Context, prefix string) error {
	saver, err := s.saver()
	if err != nil {
		return err
	}
	target, err := s.tf.Graph().Output(saver.SaveTensor)
	if err != nil {
		return fmt.Errorf("save %s: %w", prefix, err)
	}
	return s.withPrefix(prefix, func(feeds tfbind.Feeds) error {
		unfinished := newUnfinished(prefix)
		out, err := s.tf.Run(ctx, feeds, []tfbind.Output{target})
		if err != nil {
			unfinished.remove()
			return s.saveError(prefix, err)
		}
		return out.Close()
	})
}

// Restore sets all variables from what Save wrote. If it fails, the variables
// are in doubt.
func (s *Session) Restore(ctx context.Context, prefix string) error {
	saver, err := s.saver()
	if err != nil {
		return err
	}
	target, err := s.tf.Graph().Operation(saver.RestoreOp)
	if err != nil {
		return fmt.Errorf("restore %s: %w", prefix, err)
	}
	return s.withPrefix(prefix, func(feeds tfbind.Feeds) error {
		_, err := s.tf.RunWith(ctx, feeds, nil, tfbind.RunOptions{Targets: []tfbind.Operation{target}})
		if err != nil {
			return fmt.Errorf("restore %s: %w", prefix, err)
		}
		return nil
	})
}

func (s *Session) saver() (*savedmodels.Saver, error) {
	if s.model.Saver == nil {
		return nil, errNoSaver(s.model)
	}
	return s.model.Saver, nil
}

func errNoSaver(m *savedmodels.Model) error {
	return fmt.Errorf("%s cannot be saved or restored: the SavedModel has no saver; export it with TensorFlow 2 or scripts/export.py", m.Dir)
}

func (s *Session) withPrefix(prefix string, run func(tfbind.Feeds) error) error {
	input, err := s.tf.Graph().Output(s.model.Saver.FilenameTensor)
	if err != nil {
		return err
	}
	name, err := tfbind.NewTensor([]string{prefix})
	if err != nil {
		return err
	}
	defer name.Close()
	return run(tfbind.Feeds{input: name})
}

// Identity says what a checkpoint must have been made with to be restored here:
// the graph of the model, the signature that trains it, what it computes in
// (gpuopts.Options.Precision, XLA), which compiled twins train it, whether several steps run
// in a call of an executor that rounds differently there ([Rounding]), and the version of
// TensorFlow, since another one rounds differently.
func (s *Session) Identity() map[string]string {
	id := map[string]string{
		"model": s.model.Hash, "signature": s.roles.Train,
		"precision": cmp.Or(string(s.opts.Device.Precision), "that of the model"),
		"xla":       cmp.Or(string(s.opts.Device.XLA), "TensorFlow's default"),
		"compiled":  s.twins(),
		"fused":     s.loop(),
	}
	if info, err := tfbind.Load(""); err == nil { // it is open, so there is no error
		id["tensorflow"] = info.Version
	}
	if s.train != nil && s.train.signature.Reserved(savedmodels.InputSeed) != nil {
		id["seed"] = strconv.FormatInt(s.opts.Seed, 10)
	}
	if s.scaler != nil {
		id["loss_scale"] = s.scaler.String()
	} else if s.train != nil && s.train.signature.Reserved(savedmodels.InputLossScale) != nil {
		id["loss_scale"] = "1" // what it is fed
	}
	return id
}

// LiveTensors is the number of native tensors held in this process.
func (s *Session) LiveTensors() int64 { return tfbind.Live().Tensors }
