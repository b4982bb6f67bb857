package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/internal/lab/measure"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
	"steadyfit/train"
	"steadyfit/tune"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	modelFlags
	data                       dataFlags
	batch, steps, stepsPerCall int
	signature                  string
	synthetic                  bool
	learningRate               float64
	autoFlags
	choice train.Autotune
}

func newBench(g *global) *cobra.Command {
	f := &benchFlags{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure one step of a SavedModel: time and memory",
		Long: `Measure one step of a SavedModel and print it in Go benchmark format, which
benchstat reads: the median time per step over groups of steps; resident,
anonymous and peak memory in bytes after them, and how far anonymous memory
ranged after the warm-up. A step copies the batch into the native buffers, runs,
and reads the loss, if there is one. The model is not written back.

Without --data, one synthetic batch is used for every step. Of a signature that
runs several steps in a call (train_n), the figures are those of one step.

With --auto on, it first measures which way to run steps is the fastest, as fit
does at its start, in at most a minute, and prints a line for each: the median
time per step over rounds that alternate with those of the fastest so far, in
processes of their own; their peak and anonymous memory; and how long steps take
relative to plain ones, as the product of the ratios within rounds. The line of the
one that is chosen ends with "1 chosen"; BenchmarkStep is of plain steps. The choice
is kept for fit on data of the same types and shapes, with the same flags of threads,
devices and precision and the same variables; --auto kept prints what is kept.`,
		Example: "  steadyfit bench --model builtin:digits --batch 32 --steps 2000 --synthetic",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), g, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.modelFlags.register(cmd.Flags())
	f.data.register(cmd.Flags())
	flags := cmd.Flags()
	flags.IntVar(&f.batch, "batch", 32, "samples per step")
	flags.IntVar(&f.steps, "steps", 1000, "steps to measure, after a tenth as many to warm up")
	flags.IntVar(&f.stepsPerCall, "steps-per-call", 50, "steps in a call of train_n, where the model leaves that open")
	flags.Float64Var(&f.learningRate, "learning-rate", 0, "learning rate, for a model that takes one")
	flags.StringVar(&f.signature, "signature", "", "signature to run; default the train signature")
	flags.StringVar(&f.auto, "auto", autoOff, "choose how steps run, too: off, on (measure), precision (16 bits among it), kept (as measured before)")
	f.registerCache(flags)
	flags.BoolVar(&f.synthetic, "synthetic", false, "use a synthetic batch; this is the default without --data")
	return cmd
}

func (f *benchFlags) run(ctx context.Context, g *global, out, stderr io.Writer) error {
	if f.batch < 1 || f.steps < 1 || f.stepsPerCall < 1 {
		return usagef("--batch %d --steps %d --steps-per-call %d: expected at least 1 each", f.batch, f.steps, f.stepsPerCall)
	}
	if !(f.learningRate >= 0) || math.IsInf(f.learningRate, 1) {
		return usagef("--learning-rate %v: expected a number above 0; leave it out for a model that has its own", f.learningRate)
	}
	if f.synthetic && f.data.Path != "" {
		return usagef("--synthetic and --data exclude each other")
	}
	var err error
	if f.choice, err = f.autoFlags.parse(f.device.flags.Changed, autoOff, autoOn, autoPrecision, autoKept); err != nil {
		return err
	}
	if f.auto != autoOff && f.signature != "" {
		return usagef("--auto chooses among the signatures that train; expected it without --signature")
	}
	if err := f.checkCache(); err != nil {
		return err
	}
	if err := f.data.parse(); err != nil {
		return err
	}
	if err := f.apply(stderr); err != nil {
		return err
	}
	m, err := f.open()
	if err != nil {
		return err
	}
	if f.signature == "" {
		f.signature = m.Roles.Train
	}
	sig, err := m.Signature(f.signature)
	if err != nil {
		return unusable(err)
	}
	source, err := f.source(m, sig)
	if err != nil {
		return err
	}
	defer source.close()
	if _, err := g.load(); err != nil {
		return err
	}
	if err := resolvePrecision(&f.options, stderr); err != nil {
		return g.noGPU(ctx, err)
	}
	var choice tune.Choice
	if f.auto != autoOff {
		// Before there is a session here, which would take memory from those of the race.
		if choice, err = f.race(ctx, m, source.data); err != nil {
			return err
		}
		fmt.Fprintf(stderr, "auto: %s\n", choice.Why)
		if choice.Unkept != nil {
			notice(stderr, "warning", choice.Unkept)
		}
	}
	f.options.ReadOnly = !slices.Contains(m.Roles.Training(), f.signature)
	plan, err := session.Compile(m, f.options)
	if err != nil {
		return unusable(err)
	}
	s, err := session.Open(ctx, plan)
	if err != nil {
		return g.noGPU(ctx, err)
	}
	defer s.Close()
	if f.learningRate > 0 {
		if err := s.SetLearningRate(f.learningRate); err != nil {
			return err
		}
	}
	step, err := s.Prepare(f.signature)
	if err != nil {
		return err
	}
	defer step.Close()
	next, stop := iter.Pull2(source.batches)
	defer stop()

	calls := max(f.steps/source.stepsPerCall, 1)
	hasLoss := sig.Output(savedmodels.OutputLoss) != nil
	r, err := measure.Run(measure.Plan{Warmup: min(max(calls/10, 5), 200), Steps: calls, Chunks: min(50, calls)}, func() (float32, error) {
		b, err, _ := next()
		if err != nil {
			return 0, err
		}
		if err := step.Feed(b); err != nil {
			return 0, err
		}
		if err := step.Run(ctx); err != nil || !hasLoss {
			return 0, err
		}
		loss, err := step.Float(savedmodels.OutputLoss)
		return float32(loss), err
	})
	if errors.Is(err, tfbind.ErrInvalidArgument) && f.data.Path == "" {
		return fmt.Errorf("%w; synthetic integers are 0 to %d, which this model may not take: give --data", err, classes(m)-1)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(step.Close(), s.Close()); err != nil {
		return err
	}
	if live := tfbind.Live(); live != (tfbind.Counts{}) {
		return fmt.Errorf("native objects are left after everything was closed: %+v", live)
	}
	n := source.stepsPerCall
	r.Steps, r.Median, r.Mean, r.Slope = r.Steps*n, r.Median/time.Duration(n), r.Mean/time.Duration(n), r.Slope/float64(n)
	name := strings.TrimPrefix(filepath.Base(filepath.Clean(f.model)), savedmodels.BuiltinPrefix)
	if err := r.Print(out, "steadyfit", name, int64(f.batch)); err != nil {
		return err
	}
	for _, c := range choice.Measurements {
		if c.Rounds == 0 {
			continue
		}
		run, chosen := strings.ReplaceAll(c.Candidate.String(), " ", "_"), 0
		if c.Candidate == choice.Candidate {
			chosen = 1
		}
		if _, err := fmt.Fprintf(out, "BenchmarkAuto/model=%s/batch=%d/run=%s\t%d\t%.0f ns/op\t%.1f steps/s\t%d peak-bytes\t%d anon-bytes\t%.3f x-plain\t%.3f x-plain-low\t%.3f x-plain-high\t%d chosen\n",
			name, f.batch, run, c.Rounds, c.Step*1e9, 1/c.Step, c.Peak, c.Anon, c.Ratio, c.Low, c.High, chosen); err != nil {
			return err
		}
	}
	return nil
}

// benchRace is the most that a race takes that was asked for: the ways that a busy machine
// or long steps leave no time for in a training are measured, too.
const benchRace = time.Minute

// race measures each way to run steps, or looks up what was measured.
func (f *benchFlags) race(ctx context.Context, m *savedmodels.Model, ds data.Dataset) (tune.Choice, error) {
	limits := f.choice.Limits(f.options, ds.Len()/f.batch)
	limits.Preload = true // for fit
	return tune.Choose(ctx, tune.Plan{
		Model: m, Options: f.options, Limits: limits,
		Data: ds, Batch: f.batch, LearningRate: f.learningRate, Time: benchRace,
		Cache: f.choice.Folder(), KeptOnly: f.auto == autoKept, Anew: f.auto != autoKept,
	})
}

// repeated is a dataset of one batch, as often as a call has steps as a rule.
type repeated struct {
	*data.InMemory
}

const repeats = 50

func (r repeated) Len() int { return repeats * r.InMemory.Len() }

// Batches yields the one batch again and again, whatever the size that the pass asks for.
func (r repeated) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		for i := range repeats {
			for b, err := range r.InMemory.Batches(data.Pass{Batch: r.InMemory.Len()}) {
				b.Index = i
				if !yield(b, err) {
					return
				}
			}
		}
	}
}

// benchSource is an endless source of batches for one signature.
type benchSource struct {
	batches      iter.Seq2[data.Batch, error]
	stepsPerCall int
	// data has the batches, for --auto; nil without it.
	data data.Dataset
	// close closes the data.
	close func() error
}

func (f *benchFlags) source(m *savedmodels.Model, sig *savedmodels.Signature) (benchSource, error) {
	s := benchSource{stepsPerCall: 1, close: func() error { return nil }}
	fused := sig.Name != "" && (sig.Name == m.Roles.TrainN || sig.Name == m.Roles.TrainNXLA)
	if f.data.Path == "" {
		leading := []int{f.batch}
		if fused {
			s.stepsPerCall = f.stepsPerCall
			if in := sig.DataInputs(); len(in) > 0 && len(in[0].Shape) > 0 && in[0].Shape[0] > 0 {
				s.stepsPerCall = int(in[0].Shape[0])
			}
			leading = []int{s.stepsPerCall, f.batch}
		}
		b, err := syntheticBatch(sig, leading, classes(m))
		if err != nil {
			return s, err
		}
		s.batches = func(yield func(data.Batch, error) bool) {
			for yield(b, nil) {
			}
		}
		if f.auto != autoOff {
			one, err := data.New("synthetic", b.Fields...)
			if err != nil {
				return s, err
			}
			s.data = repeated{one}
		}
		return s, nil
	}
	if fused {
		return s, usagef("--data cannot feed %s, which takes the batches of several steps; leave it out", sig.Name)
	}
	pass := data.Pass{Batch: f.batch, DropRemainder: true}
	ds, err := train.OpenData(m, sig.Name, f.data.Data, "", pass)
	if err != nil {
		return s, err
	}
	s.data, s.close = ds, ds.Close
	if ds.Len() < f.batch {
		return s, errors.Join(usagef("%s has %d samples, less than one batch of %d", ds.Name(), ds.Len(), f.batch), ds.Close())
	}
	s.batches = func(yield func(data.Batch, error) bool) {
		for epoch := 0; ; epoch++ {
			pass.Epoch = epoch
			for b, err := range ds.Batches(pass) {
				if !yield(b, err) {
					return
				}
			}
		}
	}
	return s, nil
}

// classes is what synthetic integers, which are labels as a rule, stay below.
func classes(m *savedmodels.Model) uint32 {
	if m.Metadata != nil && len(m.Metadata.ClassNames) > 0 {
		return uint32(len(m.Metadata.ClassNames))
	}
	return measure.DefaultLimit
}

// maxSynthetic is the most values of an input that are made: 1 GiB of float32.
const maxSynthetic = 1 << 28

// syntheticBatch makes the batch that the other programs of the benchmark make
// for the same signature (see package measure). Sizes that the model leaves open
// are those of leading where they come first, and 1 elsewhere. Integers are drawn
// below classes.
func syntheticBatch(sig *savedmodels.Signature, leading []int, classes uint32) (data.Batch, error) {
	b := data.Batch{Size: leading[len(leading)-1]}
	for i, in := range sig.DataInputs() {
		if in.UnknownRank {
			return data.Batch{}, usagef("signature %s, input %s: its shape is unknown; give --data", sig.Name, in.Name)
		}
		f, left := measure.Feed{Limit: classes}, int64(maxSynthetic)
		a := data.Array{}
		for d, n := range in.Shape {
			switch {
			case d < len(leading) && n >= 0 && n != int64(leading[d]):
				return data.Batch{}, usagef("signature %s takes batches of exactly %d: give --batch %d", sig.Name, n, n)
			case d < len(leading):
				n = int64(leading[d])
			case n < 0:
				n = 1
			}
			f.Shape = append(f.Shape, n)
			a.Shape = append(a.Shape, int(n))
			if left /= max(n, 1); left == 0 {
				return data.Batch{}, usagef("signature %s, input %s: a batch of %v would have more than %d values; give a smaller --batch", sig.Name, in.Name, leading, maxSynthetic)
			}
		}
		switch in.DType {
		case tfbind.Int32:
			a.Values = measure.Integers[int32](f, i)
		case tfbind.Int64:
			a.Values = measure.Integers[int64](f, i)
		case tfbind.Float32, tfbind.Float64, tfbind.Float16, tfbind.BFloat16:
			a.Values = f.Floats(i)
		default:
			return data.Batch{}, usagef("signature %s, input %s: no synthetic values of %s; give --data", sig.Name, in.Name, in.DType)
		}
		b.Fields = append(b.Fields, data.Field{Name: in.Name, Array: a})
	}
	return b, nil
}
