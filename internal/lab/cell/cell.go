// Package cell is what the matrix and its child processes say to each other. A
// cell is one workload with one remedy, run once in a process of its own.
//
// The parent writes a [Spec] into the environment of the child and opens two
// pipes. The child does the work; whenever a sample is due it writes one [Message]
// with what only it can know (its Go heap, its allocator, its live objects) and
// waits. The parent reads what the system says of the waiting process, adds it to
// the same sample, and answers. So every sample is taken between steps, with the
// same instrument whatever the child is written in: a Go program, or Python.
//
// This package is the child's side in Go and the types of both; package matrix is
// the parent. It knows nothing of TensorFlow.
//
// # The protocol
//
// The child reads the Spec as JSON from the environment variable STEADYFIT_CELL.
// It writes messages as JSON lines to file descriptor 3, and after each one of a
// kind that is answered ("phase" and "step") reads one byte from descriptor 4
// before it goes on. An end of file on descriptor 4 means that the parent is gone;
// the child ends. Standard output is not used; standard error is kept as the log.
package cell

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

// Spec is what one child has to do.
type Spec struct {
	// Workload is its ID, as in "W3".
	Workload string `json:"workload"`
	// Steps is how many steps to run, Every how many lie between two samples, and
	// Epoch how many make an epoch; what a step is, the workload says.
	Steps int `json:"steps"`
	Every int `json:"every"`
	Epoch int `json:"epoch"`
	// From is how many steps were done before by an earlier process of the same
	// run, whose state is in Scratch; see [Child.Again].
	From int `json:"from,omitempty"`
	// Batch is the samples of a train step.
	Batch int `json:"batch"`
	// Samples is how many the data set has; 0 means Epoch times Batch. See SetSize.
	Samples int `json:"samples,omitempty"`
	// Seed of everything random. Both arms of a pair have the same one.
	Seed int64 `json:"seed"`
	// Model is the folder of the SavedModel; empty for workloads without one.
	Model string `json:"model,omitempty"`
	// Data is the dataset of the user's workload.
	Data string `json:"data,omitempty"`
	// Config is a serialized tensorflow.ConfigProto for every session.
	Config []byte `json:"config,omitempty"`
	// Knobs are the choices that workload and remedy make; see [Child.Knob].
	Knobs map[string]string `json:"knobs,omitempty"`
	// Trace asks for one more step after the last one, which is traced; see the
	// facts. It takes memory of its own, so a run under a limit is not asked for it.
	Trace bool `json:"trace,omitempty"`
	// Scratch is a folder for files of the child, empty at its start. The parent
	// removes it.
	Scratch string `json:"scratch,omitempty"`
}

// SetSize is how many samples there are in the data set of a workload that has one: as
// many as an epoch of whole batches takes.
//
// Arms that differ in their batch have the same set, the same number of steps, and
// epochs of the same number of steps. So what differs between them is the memory of a
// step, and what is done at the end of an epoch is done as often per step; but a pass
// over the set takes two epochs with half the batch. A workload whose step takes all
// samples that it has (W2, W4, W10), or that makes them as it goes (S3), has no set.
func (s *Spec) SetSize() int { return cmp.Or(s.Samples, s.Epoch*s.Batch) }

// WholeBatch is the batch that the set was made for, of which Batch may be a part.
func (s *Spec) WholeBatch() int { return s.SetSize() / s.Epoch }

// Kind is the kind of a Message.
type Kind string

// The kinds of messages.
const (
	// KindFact tells something about the run that verifies that a remedy took, or
	// belongs into the report.
	KindFact Kind = "fact"
	// KindPhase asks for a sample at a turning point: see the Phase constants.
	KindPhase Kind = "phase"
	// KindStep asks for a sample between steps.
	KindStep Kind = "step"
	// KindEnd is the last message: the child did what it should, or says why not.
	KindEnd Kind = "end"
	// KindAgain is a last message, too: this process has done its part and saved
	// its state, and another one is to go on.
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
	PhaseTrimmed = "trimmed" // malloc_trim was called after that
)

// Facts that children of all kinds tell in the same words, if they know them.
const (
	// FactAllocator names the malloc of the process: "glibc", "jemalloc", "tcmalloc",
	// "mimalloc" or "unknown".
	FactAllocator = "allocator"
	// FactLossFirst and FactLossLast are the losses of the first and the last step of a
	// run that trained, as strconv.ParseFloat reads them: those of a run that diverged
	// are "NaN", "+Inf" or "-Inf".
	FactLossFirst = "loss_first"
	FactLossLast  = "loss_last"
	// FactSplit is told by a run with micro-batches: SplitExact or SplitInexact.
	FactSplit = "split"
)

// The values of FactSplit.
const (
	// SplitExact: the update is that of the whole batch, but for rounding.
	SplitExact = "exact"
	// SplitInexact: it is another one, as of a model that draws for each sample (Dropout)
	// or mixes those of a batch (session.Plan.CheckSplit).
	SplitInexact = "inexact"
)

// The facts about a traced step: how many operations ran, and how many of them were
// put there by rewriting, or run by oneDNN, or functions that were not inlined; how
// many multiplied matrices or convolved, gradients included, and gave out 16 bits. A
// child that traces no step (Spec.Trace) does not tell them.
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

// Failure says why a child did not do what it should.
type Failure string

// The failures.
const (
	// NotApplicable: this workload has nothing that the knob could change.
	NotApplicable Failure = "not applicable"
	// CouldNotApply: the knob makes sense but could not be set on this machine.
	CouldNotApply Failure = "could not apply"
	// OutOfMemory: TensorFlow said RESOURCE_EXHAUSTED.
	OutOfMemory Failure = "out of memory"
	// Failed: anything else.
	Failed Failure = "failed"
)

// Message is a line from the child.
type Message struct {
	Kind Kind `json:"kind"`
	// Name of a fact or phase; Value of a fact.
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
	// Step is the number of steps done.
	Step int `json:"step,omitempty"`
	// StepNS is the time per step since the last sample, in nanoseconds.
	StepNS int64 `json:"step_ns,omitempty"`
	// Values are the layers that the child itself knows; null is unknown.
	Values map[memory.Layer]*int64 `json:"values,omitempty"`
	// Failure and Text say why a run ended before its time; both are empty if it
	// came to its end.
	Failure Failure `json:"failure,omitempty"`
	Text    string  `json:"text,omitempty"`
}

// ErrKnob means that a run cannot use a knob that it was given.
var ErrKnob = errors.New("knob")

// KnobError says which knob, and why.
type KnobError struct {
	Failure Failure // NotApplicable or CouldNotApply
	Name    string
	Value   string
	Reason  string
}

func (e *KnobError) Error() string {
	return fmt.Sprintf("%s: %s=%s: %s", e.Failure, e.Name, e.Value, e.Reason)
}

// Is reports that this is ErrKnob.
func (e *KnobError) Is(target error) bool { return target == ErrKnob }

// Child is the child's side of a run. It is for one goroutine.
type Child struct {
	Spec Spec

	out     *os.File
	in      *os.File
	sampler *memory.Sampler
	sample  memory.Sample
	line    []byte
	used    map[string]bool
	since   time.Time
	last    int
}

// Start takes up the work that the environment describes. sources add the layers
// that only the child knows; those of the Go runtime are added by themselves.
// Close the child at the end.
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

// Knob is the value of a knob, or the default if neither workload nor remedy sets
// it. A knob that a run was given and never asked for is an error at its end: a
// remedy that nobody looked at must not pass for one that has no effect.
func (c *Child) Knob(name, otherwise string) string {
	c.used[name] = true
	if v, ok := c.Spec.Knobs[name]; ok {
		return v
	}
	return otherwise
}

// Int is Knob for a number.
func (c *Child) Int(name string, otherwise int) (int, error) {
	text := c.Knob(name, strconv.Itoa(otherwise))
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("knob %s=%s: %w", name, text, err)
	}
	return n, nil
}

// Choice is Knob for one of several words; the first is the default. Any other is
// a KnobError: this runtime does not have it.
func (c *Child) Choice(name string, words ...string) (string, error) {
	v := c.Knob(name, words[0])
	if !slices.Contains(words, v) {
		return "", &KnobError{NotApplicable, name, v, "this workload has only " + strings.Join(words, ", ")}
	}
	return v, nil
}

// Fact reports something about the run.
func (c *Child) Fact(name, value string) error {
	return c.send(Message{Kind: KindFact, Name: name, Value: value})
}

// Phase has a sample taken at a turning point, and starts the clock of the next
// step anew. More readings are added to those of the child's sources.
func (c *Child) Phase(name string, more ...memory.Value) error {
	return c.ask(Message{Kind: KindPhase, Name: name, Step: c.last}, more...)
}

// Step is called after each step with the number of steps done, from 1. When a
// sample is due it is taken. It does not allocate otherwise.
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

// Done ends the run: err is nil if it came to its end. Give Failed for what no
// *KnobError describes, OutOfMemory if TensorFlow ran out of memory.
func (c *Child) Done(err error, failure Failure) error {
	m := Message{Kind: KindEnd}
	if err == nil {
		err = c.unused()
	}
	if err != nil {
		m.Failure, m.Text = failure, err.Error()
		if m.Failure == "" {
			m.Failure = Failed
		}
		if knob := (*KnobError)(nil); errors.As(err, &knob) {
			m.Failure = knob.Failure
		}
	}
	return c.send(m)
}

// Again ends this process, whose state the caller has saved in Spec.Scratch, after
// that many steps. The parent starts another one, with the same Spec but From.
func (c *Child) Again(steps int) error {
	return c.send(Message{Kind: KindAgain, Step: steps})
}

// unused is the error of a knob that nobody asked for.
func (c *Child) unused() error {
	for _, name := range slices.Sorted(maps.Keys(c.Spec.Knobs)) {
		if !c.used[name] {
			return &KnobError{NotApplicable, name, c.Spec.Knobs[name], "this workload has nothing that it changes"}
		}
	}
	return nil
}

// Close gives the files back.
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

// write is send for messages with a sample. It builds the line by hand, so that
// sampling leaves no garbage in the heap that is being watched.
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
