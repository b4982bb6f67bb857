// Package worker is the child's side of one run of the matrix: one workload with one remedy, in
// its own process. Package matrix is the parent.
//
// The parent writes a [Spec] into the environment of the child and opens two pipes. When a
// sample is due, the child writes one [Message] with the values that only it knows (its Go heap,
// its allocator, its live objects) and waits. The parent reads the system's figures for the
// waiting process, adds them to the same sample, and answers. So every sample is taken between
// steps, in the same way for Go and for Python.
//
// # The protocol
//
// The child reads the Spec as JSON from the environment variable STEADYFIT_CELL. It writes
// messages as JSON lines to file descriptor 3. After a message of the kinds "phase" and "step"
// it reads one byte from descriptor 4 before it continues. An end of file on descriptor 4 means
// that the parent has ended; the child exits. Standard output is not used; standard error is
// kept as the log.
package worker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/memory"
)

// Env is the environment variable that holds the Spec.
const Env = "STEADYFIT_CELL"

// Spec describes the run of a child.
type Spec struct {
	// Workload is the ID of the workload, as in "W3".
	Workload string `json:"workload"`
	// Steps is the number of steps to run, Every the number of steps between two samples, and
	// Epoch the number of steps in an epoch. The workload defines what a step is.
	Steps int `json:"steps"`
	Every int `json:"every"`
	Epoch int `json:"epoch"`
	// From is the number of steps that an earlier process of the same run has done. Its state is
	// in Scratch; see [Child.Again].
	From int `json:"from,omitempty"`
	// Batch is the number of samples in a train step.
	Batch int `json:"batch"`
	// Samples is the size of the data set; 0 means Epoch times Batch. See SetSize.
	Samples int `json:"samples,omitempty"`
	// Seed of all random numbers; the same for both runs of a pair.
	Seed int64 `json:"seed"`
	// Model is the folder of the SavedModel; empty for workloads without one.
	Model string `json:"model,omitempty"`
	// Data is the dataset of the user's workload.
	Data string `json:"data,omitempty"`
	// Config is a serialized tensorflow.ConfigProto for every session.
	Config []byte `json:"config,omitempty"`
	// Params are the parameters of workload and remedy; see [Child.Param].
	Params map[string]string `json:"knobs,omitempty"`
	// Trace asks for one more step after the last one, which is traced; see the facts. A trace
	// takes memory itself, so a run with a limit has none.
	Trace bool `json:"trace,omitempty"`
	// Scratch is a folder for files of the child, empty at its start. The parent removes it.
	Scratch string `json:"scratch,omitempty"`
}

// SetSize returns the number of samples in the data set of a workload: that of an epoch of whole
// batches.
//
// Runs with different batches have the same set, the same number of steps, and epochs of the
// same number of steps. So only the memory of a step differs. With half the batch, a pass over
// the set takes two epochs. A workload whose step takes all samples (W2, W4, W10), or that
// generates them (S3), has no set.
func (s *Spec) SetSize() int { return cmp.Or(s.Samples, s.Epoch*s.Batch) }

// WholeBatch is the batch that the set was made for. Batch may be a part of it.
func (s *Spec) WholeBatch() int { return s.SetSize() / s.Epoch }

// Kind is the kind of a Message.
type Kind string

// The kinds of messages.
const (
	// KindFact reports a fact about the run. A fact verifies a remedy or appears in the report.
	KindFact Kind = "fact"
	// KindPhase asks for a sample between two phases: see the Phase constants.
	KindPhase Kind = "phase"
	// KindStep asks for a sample between steps.
	KindStep Kind = "step"
	// KindEnd is the last message: the run is done, or has failed.
	KindEnd Kind = "end"
	// KindAgain is also a last message: this process has saved its state, and another one
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
	PhaseTraced  = "traced"  // one more step was traced: TFUsed and TFPeak
	PhaseClosed  = "closed"  // everything that can be freed explicitly was freed
	PhaseTrimmed = "trimmed" // malloc_trim was called after PhaseClosed
)

// Facts that children on all runtimes report under the same names, if they know them.
const (
	// FactAllocator names the malloc of the process: "glibc", "jemalloc", "tcmalloc",
	// "mimalloc" or "unknown".
	FactAllocator = "allocator"
	// FactLossFirst and FactLossLast are the losses of the first and the last step of a run that
	// trains, in the format of strconv.ParseFloat, which includes "NaN" and "+Inf".
	FactLossFirst = "loss_first"
	FactLossLast  = "loss_last"
	// FactSplit is reported by a run with micro-batches: SplitExact or SplitInexact.
	FactSplit = "split"
)

// The values of FactSplit.
const (
	// SplitExact means that the update is that of the whole batch, except for rounding.
	SplitExact = "exact"
	// SplitInexact means that the update differs, since the model draws numbers per sample
	// (Dropout) or mixes the samples of a batch (session.Plan.CheckSplit).
	SplitInexact = "inexact"
)

// The facts about a traced step (Spec.Trace): the number of operations that ran; the numbers of
// those that graph rewriting inserted, that oneDNN ran, and that call functions that were not
// inlined; and the numbers of matrix products and convolutions, gradients included, by type.
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

// Failure is the kind of reason for which a run failed.
type Failure string

// The failures.
const (
	// NotApplicable means that the parameter cannot change anything in this workload.
	NotApplicable Failure = "not applicable"
	// CouldNotApply means that the parameter could not be set on this machine.
	CouldNotApply Failure = "could not apply"
	// OutOfMemory means that TensorFlow returned RESOURCE_EXHAUSTED.
	OutOfMemory Failure = "out of memory"
	// Failed is any other failure.
	Failed Failure = "failed"
)

// Message is a line from the child.
type Message struct {
	Kind Kind `json:"kind"`
	// Name is that of a fact or phase; Value is that of a fact.
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
	// Step is the number of completed steps.
	Step int `json:"step,omitempty"`
	// StepNS is the time per step since the last sample, in nanoseconds.
	StepNS int64 `json:"step_ns,omitempty"`
	// Values are the layers that the child knows; null is unknown.
	Values map[memory.Layer]*int64 `json:"values,omitempty"`
	// Failure and Text are the kind and the reason of a failure; both are empty without one.
	Failure Failure `json:"failure,omitempty"`
	Text    string  `json:"text,omitempty"`
}

// ErrParameter means that a run cannot use a parameter.
var ErrParameter = errors.New("parameter")

// ParameterError is the error about a parameter that a run cannot use.
type ParameterError struct {
	Failure Failure // NotApplicable or CouldNotApply
	Name    string
	Value   string
	Reason  string
}

func (e *ParameterError) Error() string {
	return fmt.Sprintf("%s: %s=%s: %s", e.Failure, e.Name, e.Value, e.Reason)
}

// Is reports whether target is ErrParameter.
func (e *ParameterError) Is(target error) bool { return target == ErrParameter }

// Child is the child's side of a run. It must be used from one goroutine.
type Child struct {
	Spec Spec

	out     *os.File
	in      *os.File
	sampler *memory.Sampler
	sample  memory.Sample
	line    []byte
	used    map[string]bool
	err     error // first error of the parameters
	since   time.Time
	last    int
}

// Start reads the Spec from the environment. sources add the layers that only the child knows,
// beside those of the Go runtime. The result must be closed.
func Start(sources ...memory.Source) (*Child, error) {
	text := os.Getenv(Env)
	if text == "" {
		return nil, fmt.Errorf("%s is not set: this command is started by steadyfit matrix, not by hand", Env)
	}
	c := &Child{
		out:  os.NewFile(3, "messages"),
		in:   os.NewFile(4, "answers"),
		used: make(map[string]bool),
		line: make([]byte, 0, 4096),
	}
	if err := json.Unmarshal([]byte(text), &c.Spec); err != nil {
		return nil, fmt.Errorf("%s: %w", Env, err)
	}
	if c.Spec.Steps < 1 || c.Spec.Every < 1 || c.Spec.Epoch < 1 {
		return nil, fmt.Errorf("%s: steps %d, every %d, epoch %d: expected at least 1 each", Env, c.Spec.Steps, c.Spec.Every, c.Spec.Epoch)
	}
	if n := c.Spec.Samples; n < 0 || n%c.Spec.Epoch != 0 {
		return nil, fmt.Errorf("%s: %d samples: expected a whole number for each of the %d steps of an epoch", Env, n, c.Spec.Epoch)
	}
	c.last = c.Spec.From
	var err error
	if c.sampler, err = memory.NewSampler(memory.SamplerOptions{Sources: sources}); err != nil {
		return nil, err
	}
	return c, nil
}

// Param returns the value of a parameter, or the default if neither workload nor remedy sets it.
// A parameter that is set but never read is an error, since a remedy that was not applied must
// not appear as one without effect.
func (c *Child) Param(name, otherwise string) string {
	c.used[name] = true
	return cmp.Or(c.Spec.Params[name], otherwise)
}

// Int is Param for a number. It keeps an error for [Child.Err], and then returns the default.
func (c *Child) Int(name string, otherwise int) int {
	text := c.Param(name, strconv.Itoa(otherwise))
	n, err := strconv.Atoi(text)
	if err != nil {
		c.fail(fmt.Errorf("parameter %s=%s: %w", name, text, err))
		return otherwise
	}
	return n
}

// Choice is Param for one of several words; the first is the default. For another word, it keeps
// a ParameterError for [Child.Err] and returns the default.
func (c *Child) Choice(name string, words ...string) string {
	v := c.Param(name, words[0])
	if !slices.Contains(words, v) {
		c.fail(&ParameterError{NotApplicable, name, v, "this workload has only " + strings.Join(words, ", ")})
		return words[0]
	}
	return v
}

// Err returns the first error of the parameters that were read.
func (c *Child) Err() error { return c.err }

func (c *Child) fail(err error) { c.err = cmp.Or(c.err, err) }

// Unused returns an error for a parameter that was set but never read.
func (c *Child) Unused() error {
	for _, name := range slices.Sorted(maps.Keys(c.Spec.Params)) {
		if !c.used[name] {
			return &ParameterError{NotApplicable, name, c.Spec.Params[name], "this workload has nothing that it changes"}
		}
	}
	return nil
}

// Last returns an amount of the last sample, as this process measured it.
func (c *Child) Last(layer memory.Layer) memory.Reading { return c.sample.Get(layer) }

// Fact reports a fact about the run.
func (c *Child) Fact(name, value string) error {
	return c.send(Message{Kind: KindFact, Name: name, Value: value})
}

// Phase takes a sample between two phases, and restarts the clock of the next step. It adds more
// to the readings of the child's sources.
func (c *Child) Phase(name string, more ...memory.Value) error {
	return c.ask(Message{Kind: KindPhase, Name: name, Step: c.last}, more...)
}

// Step is called after each step with the number of completed steps, from 1, and takes a sample
// when one is due. It does not allocate otherwise.
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

// Done ends the run, with an error if it failed. failure is the kind of failure (default
// Failed); that of a *ParameterError overrides it.
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
	return c.send(m)
}

// Again ends this process after that many steps. The caller has saved the state in Spec.Scratch.
// The parent starts another process with From set.
func (c *Child) Again(steps int) error {
	return c.send(Message{Kind: KindAgain, Step: steps})
}

// Close closes the pipes.
func (c *Child) Close() error {
	return errors.Join(c.sampler.Close(), c.out.Close(), c.in.Close())
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
	if _, err := c.in.Read(answer[:]); err != nil {
		return fmt.Errorf("the parent is gone: %w", err)
	}
	c.since = time.Now()
	return nil
}

// write is send for messages with a sample. It builds the line by hand, so that sampling leaves
// no garbage in the measured heap.
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
	_, err := c.out.Write(c.line)
	return err
}

func (c *Child) send(m Message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = c.out.Write(append(text, '\n'))
	return err
}
