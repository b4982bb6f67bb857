package main

import (
	"cmp"
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
	"steadyfit/internal/autotune"
	"steadyfit/internal/contract"
	"steadyfit/internal/files"
	"steadyfit/internal/lab/measure"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
	"steadyfit/train"
)

// off and kept are the values of bench --auto that measure nothing.
const off, kept train.Choice = "off", "kept"

func newBench(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "bench",
		Short: "Measure one step of a SavedModel: time and memory",
		Long: `Measure one step of a SavedModel and print it in Go benchmark format, for
benchstat: the median time per step; resident, anonymous and peak memory; and the
range of anonymous memory after the warm-up. A step copies the batch into native
buffers, runs, and reads the loss, if there is one. The model is not changed.

Without --data, every step uses the same synthetic batch. For train_n, which runs
several steps per execution, the figures are per step.

With --auto on, bench first measures for up to a minute which configuration is
fastest, and prints a line for each: the median time per step, the peak and the
anonymous memory, and the time relative to plain steps. Each configuration runs in
a separate process, in rounds that alternate with rounds of the fastest so far. The
line of the chosen configuration ends with "1 chosen"; BenchmarkStep has plain
steps. fit uses the choice if the model, the types and shapes of the data, the flags
for devices and the environment variables are the same. --auto kept prints it.`,
		Example: "  steadyfit bench --model builtin:digits --batch 32 --steps 2000 --synthetic",
		Args:    noArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.bench(cmd) },
	}
}

func (s *settings) bench(cmd *cobra.Command) error {
	if err := s.checkBench(); err != nil {
		return err
	}
	if err := s.prepareProcess(cmd.ErrOrStderr()); err != nil {
		return err
	}
	m, err := train.OpenModel(s.Model, s.LossOutput)
	if err != nil {
		return err
	}
	s.signature = cmp.Or(s.signature, m.Roles.Train)
	sig, err := m.Signature(s.signature)
	if err != nil {
		return unusable(err)
	}
	source, err := s.source(m, sig)
	if err != nil {
		return err
	}
	defer source.close()
	if err := s.loadDevices(cmd); err != nil {
		return err
	}
	var choice autotune.Choice
	if s.autotune != off {
		// Trials run before a session takes memory.
		if choice, err = s.choose(cmd, m, source.data); err != nil {
			return err
		}
	}
	r, err := s.measure(cmd, m, sig, source)
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(filepath.Base(filepath.Clean(s.Model)), contract.BuiltinPrefix)
	if err := r.Print(cmd.OutOrStdout(), "steadyfit", name, int64(s.Loop.Batch)); err != nil {
		return err
	}
	return printTrials(cmd.OutOrStdout(), choice, name, s.Loop.Batch)
}

// checkRate checks the learning rate of a command that does not train.
func (s *settings) checkRate() error {
	if !(s.rate >= 0) || math.IsInf(s.rate, 1) {
		return usagef("--learning-rate %v: expected a number above 0; leave it out for a model that has its own", s.rate)
	}
	return nil
}

func (s *settings) checkBench() error {
	if err := s.checkRate(); err != nil {
		return err
	}
	switch {
	case s.synthetic && s.Data.Path != "":
		return usagef("--synthetic and --data exclude each other")
	case s.autotune != off && s.signature != "":
		return usagef("--auto chooses among the signatures that train; leave --signature out")
	}
	if s.autotune == off || s.autotune == kept {
		return nil
	}
	return s.checkCache()
}

// checkCache checks --cache for a command that measures. fit also uses a folder that it can only read.
func (s *settings) checkCache() error {
	if s.Autotune.Cache == "" {
		return nil
	}
	if err := files.WritableDir(s.Autotune.Cache, 0); err != nil {
		return unusable(fmt.Errorf("--cache %s: the folder cannot hold measurements: %w", s.Autotune.Cache, err))
	}
	return nil
}

func (s *settings) measure(cmd *cobra.Command, m *savedmodels.Model, sig *savedmodels.Signature, source benchSource) (r measure.Result, err error) {
	ctx := cmd.Context()
	opened, err := s.openSession(cmd, m, !slices.Contains(m.Roles.Training(), sig.Name))
	if err != nil {
		return r, err
	}
	defer opened.Close()
	if source.images != nil {
		source.images.UseJPEG(opened.DecodeJPEG)
	}
	if s.rate > 0 {
		if err := opened.SetLearningRate(s.rate); err != nil {
			return r, err
		}
	}
	step, err := opened.Prepare(sig.Name)
	if err != nil {
		return r, err
	}
	defer step.Close()
	next, stop := iter.Pull2(source.batches)
	defer stop()
	calls := max(s.steps/source.stepsPerCall, 1)
	hasLoss := sig.Output(contract.OutputLoss) != nil
	r, err = measure.Run(measure.Plan{Warmup: min(max(calls/10, 5), 200), Steps: calls, Chunks: min(50, calls)}, func() (float32, error) {
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
		loss, err := step.Float(contract.OutputLoss)
		return float32(loss), err
	})
	if errors.Is(err, tfbind.ErrInvalidArgument) && s.Data.Path == "" {
		return r, fmt.Errorf("%w; synthetic integers are 0 to %d, which this model may not take: give --data", err, classes(m)-1)
	}
	if err != nil {
		return r, err
	}
	if err := errors.Join(step.Close(), opened.Close()); err != nil {
		return r, err
	}
	if live := tfbind.Live(); live != (tfbind.Counts{}) {
		return r, fmt.Errorf("native objects are left after everything was closed: %+v", live)
	}
	n := source.stepsPerCall
	r.Steps, r.Median, r.Mean, r.Slope = r.Steps*n, r.Median/time.Duration(n), r.Mean/time.Duration(n), r.Slope/float64(n)
	return r, nil
}

func printTrials(w io.Writer, choice autotune.Choice, model string, batch int) error {
	var text strings.Builder
	for _, c := range choice.Measurements {
		if c.Rounds == 0 {
			continue
		}
		run, chosen := strings.ReplaceAll(c.Configuration.String(), " ", "_"), 0
		if c.Configuration == choice.Configuration {
			chosen = 1
		}
		fmt.Fprintf(&text, "BenchmarkAuto/model=%s/batch=%d/run=%s\t%d\t%.0f ns/op\t%.1f steps/s\t%d peak-bytes\t%d anon-bytes\t%.3f x-plain\t%.3f x-plain-low\t%.3f x-plain-high\t%d chosen\n",
			model, batch, run, c.Rounds, c.Step*1e9, 1/c.Step, c.Peak, c.Anon, c.Ratio, c.Low, c.High, chosen)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// trialTime is the duration of the measurements of --auto. It is longer than that of fit, so
// that it suffices for a busy machine and for long steps.
const trialTime = time.Minute

func (s *settings) choose(cmd *cobra.Command, m *savedmodels.Model, ds data.Dataset) (autotune.Choice, error) {
	limits := s.fixed().Limits(s.Session, ds.Len()/s.Loop.Batch, s.autotune == train.Precision)
	limits.Restart = true // fit may restart the program
	choice, err := autotune.Choose(cmd.Context(), autotune.Plan{
		Model: m, Options: s.Session, Limits: limits,
		Data: ds, Batch: s.Loop.Batch, LearningRate: s.rate, Time: trialTime,
		Cache: cmp.Or(s.Autotune.Cache, autotune.CacheDir()), CacheOnly: s.autotune == kept, Refresh: s.autotune != kept,
	})
	if err != nil {
		return choice, err
	}
	notice(cmd.ErrOrStderr(), "auto", choice.Reason)
	if choice.CacheError != nil {
		notice(cmd.ErrOrStderr(), "warning", choice.CacheError)
	}
	return choice, nil
}

// repeated is a dataset of one batch, repeated to fill an execution of several steps.
type repeated struct{ *data.InMemory }

const repeats = 50

func (r repeated) Len() int { return repeats * r.InMemory.Len() }

// Batches yields the batch whatever the size of the pass.
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

// benchSource is an endless source of batches for a signature.
type benchSource struct {
	batches      iter.Seq2[data.Batch, error]
	stepsPerCall int
	data         data.Dataset   // the dataset of the batches for --auto, or nil
	images       *data.InMemory // the dataset of --data, or nil
	close        func() error
}

func (s *settings) source(m *savedmodels.Model, sig *savedmodels.Signature) (benchSource, error) {
	stacked := sig.Name != "" && (sig.Name == m.Roles.TrainN || sig.Name == m.Roles.TrainNXLA)
	switch {
	case s.Data.Path == "":
		return s.syntheticSource(m, sig, stacked)
	case stacked:
		return benchSource{}, usagef("--data cannot feed %s, which takes the batches of several steps; leave it out", sig.Name)
	}
	pass := data.Pass{Batch: s.Loop.Batch, DropRemainder: true}
	ds, err := train.OpenData(m, sig.Name, s.Data, "", pass)
	if err != nil {
		return benchSource{}, err
	}
	if ds.Len() < pass.Batch {
		return benchSource{}, errors.Join(usagef("%s has %d samples, less than one batch of %d", ds.Name(), ds.Len(), pass.Batch), ds.Close())
	}
	return benchSource{stepsPerCall: 1, data: ds, images: ds, close: ds.Close, batches: func(yield func(data.Batch, error) bool) {
		for epoch := 0; ; epoch++ {
			pass.Epoch = epoch
			for b, err := range ds.Batches(pass) {
				if !yield(b, err) {
					return
				}
			}
		}
	}}, nil
}

// syntheticSource returns a source that repeats one synthetic batch, or the stacked batches of
// one execution.
func (s *settings) syntheticSource(m *savedmodels.Model, sig *savedmodels.Signature, stacked bool) (benchSource, error) {
	source := benchSource{stepsPerCall: 1, close: func() error { return nil }}
	leading := []int{s.Loop.Batch}
	if stacked {
		source.stepsPerCall = s.stepsPerCall
		if in := sig.DataInputs(); len(in) > 0 && len(in[0].Shape) > 0 && in[0].Shape[0] > 0 {
			source.stepsPerCall = int(in[0].Shape[0])
		}
		leading = []int{source.stepsPerCall, s.Loop.Batch}
	}
	b, err := syntheticBatch(sig, leading, classes(m))
	if err != nil {
		return source, err
	}
	source.batches = func(yield func(data.Batch, error) bool) {
		for yield(b, nil) {
		}
	}
	if s.autotune != off {
		var one *data.InMemory
		one, err = data.New("synthetic", b.Fields...)
		source.data = repeated{one}
	}
	return source, err
}

// classes returns the limit of synthetic integers, which are usually labels.
func classes(m *savedmodels.Model) uint32 {
	if m.Metadata != nil && len(m.Metadata.ClassNames) > 0 {
		return uint32(len(m.Metadata.ClassNames))
	}
	return measure.DefaultLimit
}

// maxSynthetic is the maximum number of values of an input, 1 GiB of float32.
const maxSynthetic = 1 << 28

// syntheticBatch makes the same batch for a signature as the other programs of the benchmark
// (package measure). leading are the values of the first sizes of an input, if these are open in
// the signature; other open sizes become 1. Integers are below classes.
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
