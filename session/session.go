package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"steadyfit/cluster"
	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/bundle"
	"steadyfit/internal/contract"
	"steadyfit/internal/gpu"
	"steadyfit/internal/resolved"
	"steadyfit/internal/tfprocess"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Options configure a session. The zero value trains with TensorFlow's default settings.
type Options struct {
	// Device has the settings of TensorFlow's devices. TensorFlow reads some of them once per
	// process. A different value in a later session is gpuopts.ErrTooLate. The first Open sets
	// the environment variables that the settings need.
	Device gpuopts.Options
	// Config is a serialized tensorflow.ConfigProto whose fields override Device.
	Config []byte
	// AllowUnsafeOps accepts operations that access files, the network or Python; see
	// savedmodels.Model.CheckSafe.
	AllowUnsafeOps bool
	// ReadOnly is for evaluation and prediction. The model need not be trainable.
	ReadOnly bool
	// Only names the signatures to load; nil loads all of them. A model takes less memory and time to load
	// without the signatures that a program does not run. It cannot be combined with Cluster.
	Only []string `json:",omitempty"`
	// AllowInexactSplit accepts micro-batches whose update differs from that of the whole
	// batch; see Plan.CheckSplit.
	AllowInexactSplit bool
	// MicroBatches is the number of micro-batches that Open sets (Session.SetMicroBatches). 0 and 1
	// mean whole batches. More than 1 cannot be combined with StepsPerExecution, Compiled or
	// Cluster.
	MicroBatches int `json:",omitempty"`
	// StepsPerExecution is the maximum number of train steps that fit.Loop runs in one execution
	// of the signature train_n. 0 and 1 mean that steps run one by one. The results are the
	// same bit for bit, except with Compiled, or in the single-threaded executor with oneDNN
	// (docs/explanation/speed.md).
	StepsPerExecution int
	// Compiled trains with the XLA-compiled signatures train_xla and, with StepsPerExecution,
	// train_n_xla, whenever the batch and the number of steps have the compiled sizes. Compiled
	// steps round differently.
	Compiled bool
	// CallerRuns runs the operations of a step one after the other in the calling thread
	// (RunOptions.inter_op_thread_pool -1). A step then does not hand operations to other
	// threads, but operations no longer run in parallel. Results do not change. TensorFlow
	// supports CallerRuns for steps on one device (run_all_kernels_inline in
	// common_runtime/direct_session.cc).
	CallerRuns bool
	// Seed is the first number of the reserved input seed. The second is the number of the
	// step.
	Seed int64
	// Cluster makes the process a rank of a cluster, whose ranks train one model together. All
	// ranks call Train with the same batches. Each computes the gradients of its part, and all
	// make the same update with their sum, as with micro-batches (Plan.CheckSplit). A process
	// can be a rank once. Open waits for the other ranks.
	Cluster *cluster.Cluster
}

// errFixedRate means that a training cannot set the learning rate.
var errFixedRate = contract.Mark(errors.New("the model has a learning rate or schedule of its own, since it has "+
	"neither a signature set_learning_rate nor an input learning_rate"), savedmodels.ErrNoSignature)

// errNoSignature means that the model has no signature for a purpose.
var errNoSignature = fmt.Errorf("the model has %w", savedmodels.ErrNoSignature)

// Session is an open model. One goroutine at a time may use it.
type Session struct {
	*Plan
	config []byte  // serialized tensorflow.ConfigProto
	parts  int     // number of micro-batches; 0 and 1 mean no splitting
	rate   float64 // reserved input learning_rate; NaN if not set

	scaler  *lossScaler // nil if the session does not scale the loss
	skipped bool        // see Skipped
	stuck   float64     // see Skipped; NaN if the scale is not stuck
	traces  *[][]byte   // receives each RunMetadata during Trace; nil otherwise
	rank    *ranked     // nil without a cluster

	closed bool
	gpu    *gpu.Meter
	jpeg   side // decodes JPEG files
	writer side // writes the files of Save
	native
}

// native is the part of a session that TensorFlow holds.
type native struct {
	tf              *tfbind.Session
	train, evaluate *runner
	compiled        *runner   // the XLA-compiled form of train; nil if unused
	stacks          []*stack  // for several steps per execution, the compiled one first
	next            *stack    // to which batches are added; nil if there is none
	split           *update   // nil until SetMicroBatches needs it
	state           *stateOps // nil until it is needed
	setRate         *Step     // signature set_learning_rate; nil until it is used
	resetMetrics    *Step     // nil if there is no such signature
	rank            rankNative
}

// OpenModel calls Compile and then Open.
func OpenModel(ctx context.Context, model *savedmodels.Model, o Options) (*Session, error) {
	p, err := Compile(model, o)
	if err != nil {
		return nil, err
	}
	return Open(ctx, p)
}

// Open loads the model of a plan into TensorFlow and restores its variables. The result must be
// closed. Device options that contradict each other or the environment return an *option.Error.
// If the options need a GPU (gpuopts.Options.ForGPU) that TensorFlow does not have, the
// error is ErrNoGPU. If TensorFlow cannot load the model, it is savedmodels.ErrNotSavedModel. ctx is
// checked before loading, which TensorFlow cannot interrupt.
func Open(ctx context.Context, p *Plan) (*Session, error) {
	if p == nil {
		return nil, errors.New("open session: the plan is nil; pass one from Compile")
	}
	if err := causeOf(ctx); err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	own := *p
	device := &own.opts.Device
	if _, err := ResolvePrecision(device); err != nil {
		return nil, err
	}
	config, err := device.ConfigProto()
	if err == nil {
		// The concatenation of two messages is their merge, in which fields of the second
		// message replace fields of the first. It keeps unknown fields.
		config = slices.Concat(withoutMLIR, config, p.opts.Config)
		err = settle(*device, config)
	}
	if err != nil {
		return nil, fmt.Errorf("device options: %w", err)
	}
	s := &Session{Plan: &own, config: config, rate: math.NaN(), stuck: math.NaN()}
	if err := s.startServer(ctx); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		s.rank.close()
		return nil, unusableModel(err)
	}
	err = s.checkGPU()
	if err == nil {
		err = s.join(ctx)
	}
	if err == nil && p.opts.MicroBatches > 1 && !p.opts.ReadOnly {
		err = s.SetMicroBatches(p.opts.MicroBatches)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if p.scales {
		s.scaler = &lossScaler{Scale: initialScale}
	}
	return s, nil
}

// withoutMLIR is a serialized tensorflow.ConfigProto whose graph_options (10) have rewrite_options (10) with
// disable_tfg_optimizer (32). Before the first step, Grappler converts the graph to MLIR and back four times for
// passes that change no result of a training.
var withoutMLIR = []byte{10<<3 | 2, 5, 10<<3 | 2, 3, 0x80, 2, 1}

var errNoModel = errors.New("the model is nil; pass one from savedmodels.Open")

// causeOf returns why a context has ended. A nil context is an error.
func causeOf(ctx context.Context) error {
	if ctx == nil {
		return errors.New("the context is nil; pass one, such as context.Background()")
	}
	return context.Cause(ctx)
}

// ErrNoGPU means that the options ask for a GPU that TensorFlow does not have.
var ErrNoGPU = resolved.ErrNoGPU

// checkGPU returns ErrNoGPU if the options need a GPU and there is none.
func (s *Session) checkGPU() error {
	asks, _ := s.opts.Device.ForGPU()
	if len(asks) == 0 {
		return nil
	}
	devices, err := s.tf.Devices()
	if err != nil || resolved.HasGPU(devices) {
		return err
	}
	return option.Errorf("{"+asks[0]+"} asks for a GPU: %w, only %s", ErrNoGPU,
		strings.Join(resolved.ShortNames(devices), ", "))
}

// load opens the model in TensorFlow. An error closes the session and its earlier steps.
func (s *Session) load() error {
	n := native{}
	err := s.loadModel(&n)
	if err == nil {
		err = s.prepareRoles(&n)
	}
	if err == nil {
		err = s.prepareRanks(&n)
	}
	if err == nil {
		s.native = n
		return nil
	}
	err = errors.Join(err, n.close())
	s.closed = true
	if errors.Is(err, &tfbind.Error{Code: "DATA_LOSS"}) {
		err = fmt.Errorf("%w; a file of the model in %s is damaged: copy or export it again", err, s.model.Dir)
	}
	return err
}

// unusableModel marks an error of TensorFlow about a new model as savedmodels.ErrNotSavedModel. Other
// codes are about the machine, its memory or other ranks.
func unusableModel(err error) error {
	var failed *tfbind.Error
	ofModel := strings.Fields("INVALID_ARGUMENT NOT_FOUND FAILED_PRECONDITION OUT_OF_RANGE UNIMPLEMENTED DATA_LOSS")
	if errors.As(err, &failed) && slices.Contains(ofModel, failed.Code) && !errors.Is(err, ErrNoGPU) {
		return contract.Mark(err, savedmodels.ErrNotSavedModel)
	}
	return err
}

// unload closes the native session before another load. An error closes the session.
func (s *Session) unload() error {
	err := s.native.close()
	s.closed = err != nil
	return err
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
		n.resetMetrics, err = s.prepare(n.tf, sig, sig.Outputs, nil)
		return err
	}
	return nil
}

// Close frees the session with its graph and variables. Steps made by Prepare must be closed
// separately, before or after. TensorFlow's default CPU allocator keeps most of the memory for
// reuse (measured with 2.21). Closing twice does nothing.
func (s *Session) Close() error {
	if s == nil {
		return nil
	}
	err := errors.Join(s.jpeg.close(), s.writer.close()) // also those of a session that a failed reset has closed
	if s.closed {
		return err
	}
	s.closed = true
	if s.rank.close() {
		return err
	}
	return errors.Join(err, s.native.close())
}

func (n *native) close() error {
	for _, r := range []*runner{n.train, n.compiled, n.evaluate} {
		r.Close()
	}
	for _, k := range n.stacks {
		k.Close()
	}
	n.split.Close()
	n.setRate.Close()
	n.resetMetrics.Close()
	n.rank.Close()
	n.rank.sum.Close()
	return n.tf.Close()
}

// Train runs one train step on a batch and writes its results to out. step is the number of
// steps done before, which is part of the reserved input seed. ctx does not interrupt the step;
// see package tfbind. After an error of TensorFlow some of the variables may be updated, so the
// caller must restore a checkpoint. Running metrics cover all batches since ResetMetrics. Train
// does not allocate after the first batch of each shape.
func (s *Session) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	if err := s.beginTrain(out); err != nil {
		return err
	}
	var applied bool
	var err error
	switch {
	case s.rank != nil:
		applied, err = s.trainRank(ctx, step, b, out)
	case s.parts > 1 && b.Size > 1:
		applied, err = s.trainParts(ctx, step, b, out)
	default:
		r := s.train
		if c := s.compiled; c != nil && c.batch == int64(b.Size) {
			r = c
		}
		r.setSeeds(s.opts.Seed, step)
		applied, err = r.on(ctx, b, out[:len(r.names)])
	}
	if err == nil {
		s.rescale(applied, out)
	}
	return err
}

// beginTrain checks the length of out and resets the status of the previous step.
func (s *Session) beginTrain(out []float64) error {
	if s.train == nil {
		return fmt.Errorf("train: %w: the session was opened read-only", errNoSignature)
	}
	s.skipped, s.stuck = false, math.NaN()
	return s.train.checkLen(out, s.trainNames)
}

// Trace calls the function do. For each signature that runs meanwhile, in order, it returns a
// serialized tensorflow.RunMetadata with the times and allocations of each operation. With
// micro-batches, Train runs a signature for each of them, and then the signature apply. Tracing
// costs time and memory; see [tfbind.Step.Trace].
func (s *Session) Trace(do func() error) (metadata [][]byte, err error) {
	s.traces = &metadata
	defer func() { s.traces = nil }()
	err = do()
	return metadata, err
}

// RunningMetrics returns the names of the metrics that accumulate over all batches since ResetMetrics,
// like Keras metrics. The other results are values of one batch.
func (s *Session) RunningMetrics() []string { return runningMetrics(s.model) }

// runningMetrics returns the names of the outputs of the signature reset_metrics.
func runningMetrics(model *savedmodels.Model) (names []string) {
	if sig, err := model.Signature(model.Roles.ResetMetrics); err == nil && model.Roles.ResetMetrics != "" {
		for _, t := range sig.Outputs {
			names = append(names, t.Name)
		}
	}
	return names
}

// ResetMetrics resets the running metrics, if any, before an epoch or an evaluation. Running
// metrics are the outputs of the signature reset_metrics, and cover all batches since its last run.
func (s *Session) ResetMetrics(ctx context.Context) error {
	if s.resetMetrics == nil {
		return nil
	}
	return s.resetMetrics.Run(ctx)
}

// Finalize runs the signature finalize, if there is one. It gives the weights their final
// values, such as moving averages (use_ema of Keras optimizers). Later training continues from
// these values.
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
// only running metrics, which it shares with Train: call ResetMetrics before an evaluation.
//
// With micro-batches (SetMicroBatches), Evaluate splits the batch like Train, unless the signature
// has a fixed batch size, or the loss of the batch cannot be computed from the losses of parts
// (savedmodels.Metadata.LossReduction). Results that are means over samples equal those of the
// whole batch except for the order of floating-point additions.
func (s *Session) Evaluate(ctx context.Context, b data.Batch, out []float64) (err error) {
	r := s.evaluate
	if r == nil {
		return fmt.Errorf("evaluate: %w: the model has neither evaluate nor eval", errNoSignature)
	}
	if err := r.checkLen(out, r.names); err != nil {
		return err
	}
	if s.rank != nil {
		err = s.evaluateRank(ctx, b, out)
	} else if n := s.evaluateIn(s.parts, b.Size); n > 1 {
		_, err = r.inParts(ctx, b, n, 0, 0, r.every, out)
	} else {
		_, err = r.on(ctx, b, out)
	}
	return err
}

// SetLearningRate sets the rate of later train steps through the reserved input learning_rate
// or else the signature set_learning_rate. A model that has neither is savedmodels.ErrNoSignature. Save
// includes a rate that was set through the signature.
func (s *Session) SetLearningRate(rate float64) error {
	if !(rate >= 0 && rate <= math.MaxFloat64) {
		return fmt.Errorf("learning rate %v: %w: expected a finite number of at least 0", rate, tfbind.ErrInvalidArgument)
	}
	if s.train != nil && s.train.Signature.Takes(contract.InputLearningRate) {
		s.rate = rate
		return nil
	}
	name := s.roles.SetLearningRate
	if name == "" {
		return errFixedRate
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
		s.setRate = step
	}
	if err := setScalar(s.setRate.tf, 0, s.setRate.inputs[0].DType, rate); err != nil {
		return fmt.Errorf("signature %s: %w", name, err)
	}
	return s.setRate.Run(context.Background())
}

// Identity describes what a session must have in common with the session that wrote a
// checkpoint: the graph, the train signature, the seed, the loss scale, the version of
// TensorFlow, whether it uses oneDNN, the options that change how steps round, and the
// number of micro-batches or ranks of a model whose update depends on it.
func (s *Session) Identity() map[string]string {
	id := map[string]string{
		"model": s.model.Hash, "signature": s.roles.Train,
		"precision": cmp.Or(string(s.opts.Device.Precision), "that of the model"),
		"xla":       cmp.Or(string(s.opts.Device.XLA), "TensorFlow's default"),
		"compiled":  s.compiledSignatures(),
		"stacked":   "as single steps",
	}
	if info, err := tfbind.Load(""); err == nil {
		id["tensorflow"] = info.Version
	}
	if own, err := bundle.Read(ownWeights(s.model)); err == nil {
		id["weights"] = bundle.Sum(own, slices.Collect(maps.Keys(own)))
	}
	if on, known := tfprocess.OneDNN(); known {
		id["onednn"] = "off"
		if on {
			id["onednn"] = "on"
		}
		// TensorFlow does not rewrite the loop of train_n to oneDNN kernels in this executor.
		if n := s.opts.StepsPerExecution; on && n > 1 && s.opts.Device.Executor == gpuopts.SingleThreaded {
			id["stacked"] = fmt.Sprintf("up to %d steps per call in the single-threaded executor", n)
		}
	}
	if s.train != nil && s.train.Signature.Takes(contract.InputSeed) {
		id["seed"] = strconv.FormatInt(s.opts.Seed, 10)
	}
	if c := s.model.Constants(); len(c) > 0 {
		id["constants"] = fmt.Sprint(c)
	}
	if parts := s.fixedParts(); parts > 0 {
		id["parts"] = strconv.Itoa(parts)
	}
	if s.scaler != nil {
		id["loss_scale"] = scaleIdentity
	} else if s.train != nil && s.train.Signature.Takes(contract.InputLossScale) {
		id["loss_scale"] = "1" // the generated value
	}
	return id
}

// SetCallerRuns changes Options.CallerRuns for the following steps. Their results stay the same, bit
// for bit. ok is false, and nothing changes, with another executor or several devices.
func (s *Session) SetCallerRuns(on bool) (ok bool) {
	devices, err := s.tf.Devices()
	if ok = err == nil && len(devices) == 1 && s.opts.Device.Executor == ""; ok {
		s.opts.CallerRuns = on
	}
	return ok
}
