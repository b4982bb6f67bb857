// Package worker is the child's side of a run of the matrix: one workload with one remedy in
// its own process. Package matrix is the parent.
//
// The parent starts the child with a [Spec] and two pipes. When a sample is due, the child
// writes a [Message] with the values that only it knows (its Go heap, its allocator, its live
// objects) and waits. The parent reads the system's figures of the waiting process, adds them
// to the sample, and answers. So every sample is taken between steps, in the same way for Go
// and Python.
//
// # The protocol
//
// Package child has the protocol; the Spec is in the environment variable STEADYFIT_RUN. After a
// message of the kinds "phase" and "step" the child reads one byte before it continues. Standard
// output is not used.
package worker

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/child"
	"steadyfit/memory"
)

// Env is the environment variable with the Spec.
const Env = "STEADYFIT_RUN"

type Spec struct {
	Workload string `json:"workload"`
	// Steps is the number of steps of a run, and Epoch that of an epoch. Every is the number
	// of steps between samples. The workload defines a step.
	Steps int `json:"steps"`
	Every int `json:"every"`
	Epoch int `json:"epoch"`
	// From is the number of steps that an earlier process of the run completed. The state of that
	// process is in Scratch; see [Child.Again].
	From int `json:"from,omitempty"`
	// Batch is the number of samples per train step.
	Batch int `json:"batch"`
	// Samples is the size of the dataset; 0 means Epoch times Batch. See SetSize.
	Samples int `json:"samples,omitempty"`
	// Seed is the seed of all random numbers.
	Seed int64 `json:"seed"`
	// Model is the folder of the SavedModel; it may be empty.
	Model string `json:"model,omitempty"`
	// Data is the dataset of the workload "user".
	Data   string `json:"data,omitempty"`
	Config []byte `json:"config,omitempty"`
	// Params are the parameters of workload and remedy; see [Child.Param].
	Params map[string]string `json:"knobs,omitempty"`
	// Trace asks for an additional traced step at the end. A trace takes memory itself, so a
	// run with a memory limit has none.
	Trace bool `json:"trace,omitempty"`
	// Scratch is an empty folder for files of the child. The parent removes it.
	Scratch string `json:"scratch,omitempty"`
}

// SetSize returns the number of samples in the dataset of a workload.
//
// Runs with different batches have the same dataset, the same number of steps, and epochs of
// the same number of steps, so only the memory of a step differs. With half the batch, a pass
// over the dataset takes two epochs. Workloads that use all samples in a step (W2, W4, W10) or
// generate them (S3) have no dataset.
func (s *Spec) SetSize() int { return cmp.Or(s.Samples, s.Epoch*s.Batch) }

// WholeBatch returns the batch before a remedy divides it.
func (s *Spec) WholeBatch() int { return s.SetSize() / s.Epoch }

type Kind string

const (
	// KindFact reports a fact, which verifies a remedy or appears in the report.
	KindFact Kind = "fact"
	// KindPhase asks for a sample between two phases.
	KindPhase Kind = "phase"
	KindStep  Kind = "step"
	// KindEnd is the last message of a run.
	KindEnd Kind = "end"
	// KindAgain is the last message of a process that saved its state, so that another process
	// continues.
	KindAgain Kind = "again"
)

// The phases of a run, in their order. A workload may leave some out.
const (
	PhaseStart   = "start"   // nothing loaded yet
	PhaseLibrary = "library" // TensorFlow is loaded
	PhaseLoaded  = "loaded"  // data and model are loaded; the parent resets the peak
	PhaseFirst   = "first"   // the first step is done
	PhaseSteady  = "steady"  // the last step is done
	PhaseTraced  = "traced"  // one more step was traced
	PhaseClosed  = "closed"  // everything that can be freed explicitly was freed
	PhaseTrimmed = "trimmed" // malloc_trim was called after PhaseClosed
)

// Facts have the same names on all runtimes. A child leaves out unknown facts.
const (
	// FactAllocator is the malloc of the process: "glibc", "jemalloc", "tcmalloc", "mimalloc"
	// or "unknown".
	FactAllocator = "allocator"
	// FactLossFirst and FactLossLast are the losses of the first and the last step, in the
	// format of strconv.ParseFloat, which includes "NaN" and "+Inf".
	FactLossFirst = "loss_first"
	FactLossLast  = "loss_last"
	// FactSplit is SplitExact or SplitInexact, for a run with micro-batches.
	FactSplit = "split"
)

const (
	// SplitExact means that the update is that of the whole batch, except for rounding.
	SplitExact = "exact"
	// SplitInexact means that the update differs, because the model draws numbers per sample
	// (Dropout) or mixes the samples of a batch (session.Plan.CheckSplit).
	SplitInexact = "inexact"
)

// Facts about a traced step: the number of operations; of those, the numbers that graph
// rewriting inserted, that oneDNN ran, and that call functions; and the numbers of matrix
// products and convolutions by type, including gradients.
const (
	FactOperations = "operations"
	FactBFloat16   = "bfloat16 casts"
	FactFloat16    = "float16 casts"
	FactRecomputed = "recomputed operations"
	FactClusters   = "XLA clusters"
	FactOneDNN     = "oneDNN operations"
	FactCalls      = "function calls"

	FactMatrix         = "matrix operations"
	FactMatrixBFloat16 = "matrix operations in bfloat16"
	FactMatrixFloat16  = "matrix operations in float16"
)

// Failure is the kind of a failure.
type Failure string

const (
	// NotApplicable means that the parameter changes nothing in this workload.
	NotApplicable Failure = "not applicable"
	// CouldNotApply means that the parameter could not be set on this machine.
	CouldNotApply Failure = "could not apply"
	// OutOfMemory means that TensorFlow returned RESOURCE_EXHAUSTED.
	OutOfMemory Failure = "out of memory"
	Failed      Failure = "failed"
)

type Message struct {
	Kind Kind `json:"kind"`
	// Name is the name of a fact or phase, Value the value of a fact.
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
	Step  int    `json:"step,omitempty"`
	// StepNS is the time per step since the last sample in nanoseconds.
	StepNS int64 `json:"step_ns,omitempty"`
	// Values are the layers that the child knows; null is unknown.
	Values map[memory.Layer]*int64 `json:"values,omitempty"`
	// Failure and Text are the kind and the reason of a failure.
	Failure Failure `json:"failure,omitempty"`
	Text    string  `json:"text,omitempty"`
}

// ErrParameter means that a run cannot use a parameter. The error is a *ParameterError.
var ErrParameter = errors.New("parameter")

type ParameterError struct {
	Failure Failure // NotApplicable or CouldNotApply
	Name    string
	Value   string
	Reason  string
}

func (e *ParameterError) Error() string {
	return fmt.Sprintf("%s: %s=%s: %s", e.Failure, e.Name, e.Value, e.Reason)
}

func (e *ParameterError) Is(target error) bool { return target == ErrParameter }

// failure is the value with which Check panics.
type failure struct{ error }

// Check ends the run with an error, unless it is nil. It panics, and Caught returns the error. It is only
// for workloads, which are the programs of child processes: each of their errors ends the run, so they
// would only pass errors on. All code of a workload runs inside Caught.
func Check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Must returns a value, or ends the run with an error.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// Caught returns the error with which do ended the run, or nil.
func Caught(do func()) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	do()
	return nil
}

// Child is the child's side of a run. It must be used by one goroutine.
type Child struct {
	Spec Spec

	parent  *child.Parent
	sampler *memory.Sampler
	sample  memory.Sample
	line    []byte
	used    map[string]bool
	since   time.Time
	last    int
}

// New returns a Child without a parent, to open a workload in another program.
func New(s Spec) *Child { return &Child{Spec: s, used: map[string]bool{}} }

// Start reads the Spec from the environment. sources read the layers that only the child knows.
// The result must be closed.
func Start(sources ...memory.Source) (*Child, error) {
	if os.Getenv(Env) == "" {
		return nil, fmt.Errorf("%s is not set: only steadyfit matrix can start this command", Env)
	}
	c := New(Spec{})
	var err error
	if c.parent, err = child.Connect(Env, &c.Spec); err == nil {
		err = c.Spec.check()
	}
	if err != nil {
		return nil, err
	}
	c.line, c.last = make([]byte, 0, 4096), c.Spec.From
	if c.sampler, err = memory.NewSampler(0, sources...); err != nil {
		return nil, err
	}
	return c, nil
}

func (s *Spec) check() error {
	if s.Steps < 1 || s.Every < 1 || s.Epoch < 1 {
		return fmt.Errorf("%s: steps %d, every %d, epoch %d: expected at least 1 each", Env, s.Steps, s.Every, s.Epoch)
	}
	if s.Samples < 0 || s.Samples%s.Epoch != 0 {
		return fmt.Errorf("%s: %d samples: expected a multiple of the %d steps of an epoch", Env, s.Samples, s.Epoch)
	}
	return nil
}

// Param returns the value of a parameter, or otherwise if it is not set. A parameter that is
// set but never read ends the run with an error. Otherwise the report would show its remedy as
// one without an effect.
func (c *Child) Param(name, otherwise string) string {
	c.used[name] = true
	return cmp.Or(c.Spec.Params[name], otherwise)
}

// Int is like Param, for an integer. It ends the run if the value is not an integer.
func (c *Child) Int(name string, otherwise int) int {
	text := c.Param(name, strconv.Itoa(otherwise))
	n, err := strconv.Atoi(text)
	if err != nil {
		Check(fmt.Errorf("parameter %s=%s: %w", name, text, err))
	}
	return n
}

// Choice is like Param, for one of several words; the first is the default. It ends the run with a
// ParameterError for another word.
func (c *Child) Choice(name string, words ...string) string {
	v := c.Param(name, words[0])
	if !slices.Contains(words, v) {
		Check(&ParameterError{NotApplicable, name, v, "this workload has only " + strings.Join(words, ", ")})
	}
	return v
}

// Unused returns an error for a parameter that was set but never read.
func (c *Child) Unused() error {
	for _, name := range slices.Sorted(maps.Keys(c.Spec.Params)) {
		if !c.used[name] {
			return &ParameterError{NotApplicable, name, c.Spec.Params[name], "it changes nothing in this workload"}
		}
	}
	return nil
}

// Last returns an amount of the last sample. It knows only the amounts of this process, not those
// that the parent reads.
func (c *Child) Last(layer memory.Layer) memory.Reading { return c.sample.Get(layer) }

func (c *Child) Fact(name, value string) error {
	return c.parent.Send(Message{Kind: KindFact, Name: name, Value: value})
}

// Phase takes a sample between two phases, with additional values, and restarts the clock of
// the next step.
func (c *Child) Phase(name string, more ...memory.Value) error {
	return c.ask(Message{Kind: KindPhase, Name: name, Step: c.last}, more...)
}

// Step is called after each step with the number of completed steps. It takes a sample when one
// is due, and allocates nothing otherwise.
func (c *Child) Step(step int) error {
	if step%c.Spec.Every != 0 {
		return nil
	}
	m := Message{Kind: KindStep, Step: step}
	if n := step - c.last; n > 0 && !c.since.IsZero() {
		m.StepNS = int64(time.Since(c.since)) / int64(n)
	}
	c.last = step
	return c.ask(m)
}

// Done ends the run. failure is the kind of err (default Failed) unless err is a
// *ParameterError.
func (c *Child) Done(err error, failure Failure) error {
	m := Message{Kind: KindEnd}
	if err == nil {
		err = c.Unused()
	}
	if err != nil {
		m.Failure, m.Text = cmp.Or(failure, Failed), err.Error()
		if p := (*ParameterError)(nil); errors.As(err, &p) {
			m.Failure = p.Failure
		}
	}
	return c.parent.Send(m)
}

// Again ends this process. The caller saved the state in Spec.Scratch, and the parent starts
// another process with From set to steps.
func (c *Child) Again(steps int) error {
	return c.parent.Send(Message{Kind: KindAgain, Step: steps})
}

func (c *Child) Close() error {
	return errors.Join(c.sampler.Close(), c.parent.Messages.Close(), c.parent.Requests.Close())
}

// ask sends a message with the layers of this process and waits for the answer.
func (c *Child) ask(m Message, more ...memory.Value) error {
	if err := c.sampler.Sample(m.Step, &c.sample); err != nil {
		return err
	}
	for _, v := range more {
		c.sample.Set(v.Layer, v.Reading)
	}
	if err := c.write(m); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := c.parent.Requests.Read(answer[:]); err != nil {
		return fmt.Errorf("the parent has ended: %w", err)
	}
	c.since = time.Now()
	return nil
}

// write builds the line by hand, so that sampling leaves no garbage in the measured heap.
func (c *Child) write(m Message) error {
	b := append(c.line[:0], `{"kind":"`...)
	b = append(b, m.Kind...)
	if m.Name != "" {
		b = append(append(append(b, `","name":"`...), m.Name...), '"')
	} else {
		b = append(b, '"')
	}
	b = strconv.AppendInt(append(b, `,"step":`...), int64(m.Step), 10)
	b = strconv.AppendInt(append(b, `,"step_ns":`...), m.StepNS, 10)
	b = append(b, `,"values":{`...)
	for i, v := range c.sample.Values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendQuote(b, string(v.Layer))
		b = append(b, ':')
		if v.Reading.OK {
			b = strconv.AppendInt(b, int64(v.Reading.Bytes), 10)
		} else {
			b = append(b, "null"...)
		}
	}
	c.line = append(b, "}}\n"...)
	_, err := c.parent.Messages.Write(c.line)
	return err
}
