// Package program is what the programs of the laboratory in Go have in common: their options, their loop with the marks
// of memory.Mark, and the result that they print.
//
// A program runs a workload in its own process. It gets options as --name=value, and prints its result as the last line
// of its standard output: a JSON object with facts, such as the loss of the last step. What an option cannot do ends it
// with an error that begins with [NotApplicable] or [CouldNotApply].
package program

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"steadyfit/internal/dtype"
	"steadyfit/internal/native"
	"steadyfit/internal/watch"
	"steadyfit/memory"
)

// Kinds of marks. Loaded comes when data and model are loaded, Closed after everything that can be freed explicitly was
// freed, and Trimmed after malloc_trim that follows.
const (
	Step    = "step"
	Loaded  = watch.Loaded
	Closed  = "closed"
	Trimmed = "trimmed"
)

// Beginnings of errors about options.
const (
	NotApplicable = "not applicable"  // it changes nothing in this program
	CouldNotApply = "could not apply" // this machine cannot do it
)

// Facts of a result. They have the same names on all runtimes.
const (
	// FactLossFirst and FactLossLast are the losses of the first and the last step, in the format of strconv.ParseFloat.
	FactLossFirst = "loss_first"
	FactLossLast  = "loss_last"
	// FactAllocator is the malloc of the process.
	FactAllocator = "allocator"
	// Numbers of operations of a traced step: all; those that graph rewriting inserted, that oneDNN ran, and that call
	// functions; and matrix products and convolutions by type.
	FactOperations     = "operations"
	FactBFloat16       = "bfloat16 casts"
	FactFloat16        = "float16 casts"
	FactRecomputed     = "recomputed operations"
	FactClusters       = "XLA clusters"
	FactOneDNN         = "oneDNN operations"
	FactCalls          = "function calls"
	FactMatrix         = "matrix operations"
	FactMatrixBFloat16 = "matrix operations in bfloat16"
	FactMatrixFloat16  = "matrix operations in float16"
	// FactPool is the most memory in bytes that an allocator of TensorFlow, whose name follows, held in a traced step.
	FactPool = "pool "
)

// Program is a run.
type Program struct {
	// Steps is the number of steps, Epoch that of an epoch, and Batch the number of samples of a step.
	Steps, Epoch, Batch int
	// Samples is the size of the dataset: Epoch times Batch unless an option says otherwise. With half the batch, runs
	// have the same dataset, and as many steps in an epoch, so only the memory of a step differs.
	Samples int
	Seed    int64
	// Model is the folder of a SavedModel, and Data a dataset of the user; both may be empty.
	Model, Data string
	// Config is a serialized ConfigProto.
	Config []byte
	// Scratch is an empty folder for files.
	Scratch string
	// From is the number of steps that earlier processes of this run did. They left their state in Scratch.
	From int

	trace    bool
	gc, trim string
	options  map[string]string
	used     map[string]bool
	facts    map[string]string
	closers  []func() error
	out      io.Writer
	own      int             // arguments of the process before those of the program
	marks    context.Context //nolint:containedctx // that of Run, for marks
	done     int
	first    bool
	last     float64
}

// failure is the value with which Check panics.
type failure struct{ error }

// Check ends the run with an error, unless it is nil. It panics, and Caught returns the error: each error of a program
// of the laboratory ends it.
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

// New returns a run with options from arguments of the form --name=value.
func New(arguments []string, out io.Writer) (p *Program, err error) {
	p = &Program{options: map[string]string{}, used: map[string]bool{}, facts: map[string]string{}, out: out}
	for _, a := range arguments {
		name, value, ok := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		if !ok || !strings.HasPrefix(a, "--") {
			return nil, fmt.Errorf("argument %q: expected --name=value", a)
		}
		p.options[name] = value
	}
	err = Caught(func() {
		p.Steps, p.Batch = p.Int("steps", 100), p.Int("batch", 32)
		p.Epoch = p.Int("epoch", p.Steps)
		if p.Steps < 1 || p.Batch < 1 || p.Epoch < 1 {
			Check(errors.New("--steps, --batch and --epoch: expected at least 1"))
		}
		p.Samples, p.Seed, p.From = p.Int("samples", p.Epoch*p.Batch), int64(p.Int("seed", 1)), p.Int("from", 0)
		p.Model, p.Data, p.Scratch = p.Option("model", ""), p.Option("data", ""), p.Option("scratch", "")
		p.Config = Must(hex.DecodeString(p.Option("config", "")))
		p.trace = p.Option("trace", "") != ""
		p.gc, p.trim = p.Choice("gc", "", eachEpoch, eachStep), p.Choice("trim", "", eachEpoch)
	})
	p.own = len(os.Args) - len(arguments)
	return p, err
}

// WholeBatch returns the batch before a remedy divides it.
func (p *Program) WholeBatch() int { return p.Samples / p.Epoch }

// Option returns the value of an option, or otherwise if it is not set. An option that is set but never read ends the
// run. Otherwise a remedy would seem to have no effect.
func (p *Program) Option(name, otherwise string) string {
	p.used[name] = true
	return cmp.Or(p.options[name], otherwise)
}

// Int is like Option, for an integer.
func (p *Program) Int(name string, otherwise int) int {
	text := p.Option(name, strconv.Itoa(otherwise))
	n, err := strconv.Atoi(text)
	if err != nil {
		Check(fmt.Errorf("--%s=%s: expected an integer", name, text))
	}
	return n
}

// Choice is like Option, for one of several words; the first is the default.
func (p *Program) Choice(name string, words ...string) string {
	v := p.Option(name, words[0])
	if !slices.Contains(words, v) {
		Refuse(NotApplicable, name, v, "this program has only "+strings.Join(words, ", "))
	}
	return v
}

// Refuse ends the run because of an option. kind is NotApplicable or CouldNotApply.
func Refuse(kind, name, value, reason string) {
	Check(fmt.Errorf("%s: --%s=%s: %s", kind, name, value, reason))
}

// Fact adds a fact to the result.
func (p *Program) Fact(name, value string) { p.facts[name] = value }

// OnClose adds a function to call at the end of the loop, in reverse order.
func (p *Program) OnClose(f func() error) { p.closers = append(p.closers, f) }

func (p *Program) close() error {
	var errs []error
	for _, f := range slices.Backward(p.closers) {
		errs = append(errs, f())
	}
	p.closers = nil
	return errors.Join(errs...)
}

// Loop is a workload that is ready to run. Its functions end the run by Check.
type Loop struct {
	// Step does step n, from 1, and returns its loss.
	Step      func(ctx context.Context, n int) (loss float64)
	Untrained bool
	// Epoch is called after step n at the end of each epoch except the last one. It may be nil.
	Epoch func(ctx context.Context, n int)
	// Trace makes the next steps store a serialized RunMetadata in *into. It is nil if steps cannot be traced.
	Trace func(into *[]byte)
}

// ErrSaved ends a loop whose state is in Scratch, so that another process continues.
var ErrSaved = errors.New("another process continues")

const (
	eachStep  = "step"
	eachEpoch = "epoch"
)

// Run opens a workload, does its steps, closes it and prints the result. collect frees the objects that closing leaves
// to the garbage collector; it may be nil.
func (p *Program) Run(ctx context.Context, open func(context.Context) *Loop, collect func()) error {
	p.marks = context.WithoutCancel(ctx) // a mark with it allocates nothing
	native.AddToMarks()
	p.Fact(FactAllocator, native.Allocator())
	err := p.work(ctx, open)
	if errors.Is(err, ErrSaved) {
		return p.next()
	}
	if err != nil {
		return err
	}
	if collect != nil {
		collect()
	}
	debug.FreeOSMemory() // return freed Go memory, too
	memory.Mark(p.marks, Closed)
	if native.Trim() {
		memory.Mark(p.marks, Trimmed)
	}
	return json.NewEncoder(p.out).Encode(p.facts)
}

// next makes this process run the rest of the steps anew.
func (p *Program) next() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	p.options["from"] = strconv.Itoa(p.done)
	arguments := slices.Clone(os.Args[:p.own])
	for name, value := range p.options {
		arguments = append(arguments, "--"+name+"="+value)
	}
	return syscall.Exec(program, arguments, os.Environ())
}

// work opens the loop, does its steps and closes it. The loop's objects are unreachable afterwards.
func (p *Program) work(ctx context.Context, open func(context.Context) *Loop) error {
	err := Caught(func() {
		l := open(ctx)
		// Otherwise the steps would reuse the free memory of loading, which would hide their growth.
		debug.FreeOSMemory()
		for _, name := range slices.Sorted(maps.Keys(p.options)) {
			if !p.used[name] {
				Refuse(NotApplicable, name, p.options[name], "it changes nothing in this program")
			}
		}
		memory.Mark(p.marks, Loaded)
		p.steps(ctx, l)
		if l.Trace != nil && p.trace {
			p.traced(ctx, l)
		}
	})
	return errors.Join(err, p.close())
}

func (p *Program) steps(ctx context.Context, l *Loop) {
	for n := p.From + 1; n <= p.Steps; n++ {
		loss, err := step(ctx, l, n)
		if err != nil {
			Check(fmt.Errorf("step %d: %w", n, err))
		}
		p.after(ctx, l, n, loss)
	}
}

func step(ctx context.Context, l *Loop, n int) (loss float64, err error) {
	err = Caught(func() { loss = l.Step(ctx, n) })
	return loss, err
}

// after ends step n, and the epoch. It allocates nothing except at the end of an epoch.
func (p *Program) after(ctx context.Context, l *Loop, n int, loss float64) {
	p.done = n
	if !l.Untrained {
		if !p.first {
			p.first = true
			p.Fact(FactLossFirst, number(loss))
		}
		p.last = loss
	}
	if p.gc == eachStep {
		runtime.GC()
	}
	var saved error
	if n%p.Epoch == 0 {
		saved = p.endEpoch(ctx, l, n)
	}
	if n == p.Steps && !l.Untrained {
		p.Fact(FactLossLast, number(p.last))
	}
	memory.Mark(p.marks, Step)
	Check(saved)
}

func number(loss float64) string { return strconv.FormatFloat(loss, 'g', 6, 64) }

// endEpoch calls Loop.Epoch, collects garbage and trims malloc as the options say. It returns ErrSaved if another
// process continues.
func (p *Program) endEpoch(ctx context.Context, l *Loop, n int) (saved error) {
	if n < p.Steps && l.Epoch != nil {
		if saved = Caught(func() { l.Epoch(ctx, n) }); saved != nil && !errors.Is(saved, ErrSaved) {
			Check(fmt.Errorf("end of epoch at step %d: %w", n, saved))
		}
	}
	if p.gc == eachEpoch {
		runtime.GC()
	}
	if p.trim == eachEpoch && !native.Trim() {
		Refuse(CouldNotApply, "trim", p.trim, "the allocator of this process has no malloc_trim")
	}
	return saved
}

// traced does one more step, and adds its memory and operations to the facts. A trace takes memory itself, so it comes
// last.
func (p *Program) traced(ctx context.Context, l *Loop) {
	var metadata []byte
	l.Trace(&metadata)
	if _, err := step(ctx, l, p.done+1); err != nil {
		Check(fmt.Errorf("traced step: %w", err))
	}
	if metadata == nil {
		return // the session cannot trace
	}
	seen := Must(native.ReadTrace(metadata))
	for name, use := range seen.Allocators {
		if use.Peak.OK {
			p.Fact(FactPool+name, strconv.FormatInt(int64(use.Peak.Bytes), 10))
		}
	}
	matrix := 0
	for _, count := range seen.Matrix {
		matrix += count
	}
	for name, count := range map[string]int{
		FactOperations: seen.Operations, FactBFloat16: seen.BFloat16Casts, FactFloat16: seen.Float16Casts,
		FactRecomputed: seen.Recomputed, FactClusters: seen.XLAClusters, FactOneDNN: seen.OneDNN, FactCalls: seen.Calls,
		FactMatrix: matrix, FactMatrixBFloat16: seen.Matrix[dtype.BFloat16], FactMatrixFloat16: seen.Matrix[dtype.Float16],
	} {
		p.Fact(name, strconv.Itoa(count))
	}
}
