package main

import (
	"cmp"
	"errors"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/lab/measure"
	"steadyfit/internal/lab/synth"
	"steadyfit/savedmodels"
	"steadyfit/train"
)

func newBench(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "bench",
		Short: "Measure one step of a SavedModel: time and memory",
		Long: `Measure one step of a SavedModel and print it in Go benchmark format, for
benchstat: the median time per step; resident, anonymous and peak memory; and the
range of anonymous memory after the warm-up. A step copies the batch into native
buffers, runs, and reads the loss, if there is one. The model is not changed.

Without --data, every step uses the same synthetic batch. For train_n, which runs
several steps per execution, the figures are per step.`,
		Example: "  steadyfit bench --model builtin:digits --batch 32 --steps 2000 --synthetic",
		Args:    noArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.bench(cmd) },
	}
}

func (s *settings) bench(cmd *cobra.Command) error {
	if s.synthetic && s.Data.Path != "" {
		return usagef("--synthetic and --data exclude each other")
	}
	if err := s.prepareProcess(cmd.ErrOrStderr()); err != nil {
		return err
	}
	m, err := train.OpenModel(&s.Config)
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
	r, err := s.measure(cmd, m, sig, source)
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(filepath.Base(filepath.Clean(s.Model)), contract.BuiltinPrefix)
	return r.Print(cmd.OutOrStdout(), name, s.Loop.Batch)
}

func (s *settings) measure(cmd *cobra.Command, m *savedmodels.Model, sig *savedmodels.Signature,
	source benchSource) (r measure.Result, err error) {
	ctx := cmd.Context()
	opened, err := s.openSession(cmd, m, !slices.Contains(m.Roles.Training(), sig.Name))
	if err != nil {
		return r, err
	}
	defer opened.Close()
	if source.images != nil {
		source.images.UseJPEG(opened.DecodeJPEG)
	}
	if rate := s.firstRate(); rate > 0 {
		if err := opened.SetLearningRate(rate); err != nil {
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
	hasLoss := sig.HasLoss()
	r, err = measure.Run(measure.Plan{Warmup: min(max(calls/10, 5), 200), Steps: calls, Chunks: min(50, calls)},
		func() (float32, error) {
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
	n := source.stepsPerCall
	r.Steps, r.Median = r.Steps*n, r.Median/time.Duration(n)
	return r, err
}

// benchSource is an endless source of batches for a signature.
type benchSource struct {
	batches      iter.Seq2[data.Batch, error]
	stepsPerCall int
	images       *data.InMemory // the dataset of --data, or nil
	close        func() error
}

func (s *settings) source(m *savedmodels.Model, sig *savedmodels.Signature) (benchSource, error) {
	stacked := sig.Name != "" && (sig.Name == m.Roles.TrainN || sig.Name == m.Roles.TrainNXLA)
	switch {
	case s.Data.Path == "":
		return s.syntheticSource(m, sig, stacked)
	case stacked:
		return benchSource{}, usagef("--data cannot feed %s, which takes the batches of several steps; leave it out",
			sig.Name)
	}
	pass := data.Pass{Batch: s.Loop.Batch, DropRemainder: true}
	ds, err := train.OpenData(m, sig.Name, s.Data, "", pass)
	if err != nil {
		return benchSource{}, err
	}
	if ds.Len() < pass.Batch {
		return benchSource{}, errors.Join(usagef("%s has %d samples, less than one batch of %d", ds.Name(), ds.Len(),
			pass.Batch), ds.Close())
	}
	return benchSource{stepsPerCall: 1, images: ds, close: ds.Close,
		batches: func(yield func(data.Batch, error) bool) {
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

const (
	// openSteps is the number of steps per execution if the model does not fix it.
	openSteps = 50
	// maxSynthetic is the maximum number of values of an input, 1 GiB of float32.
	maxSynthetic = 1 << 28
)

// syntheticSource returns a source that repeats one synthetic batch, or the stacked batches of
// one execution.
func (s *settings) syntheticSource(m *savedmodels.Model, sig *savedmodels.Signature, stacked bool) (benchSource,
	error) {
	source := benchSource{stepsPerCall: 1, close: func() error { return nil }}
	samples, batchAt, open := s.Loop.Batch, 0, []int(nil)
	if stacked {
		source.stepsPerCall = openSteps
		if in := sig.DataInputs(); len(in) > 0 && len(in[0].Shape) > 0 && in[0].Shape[0] > 0 {
			source.stepsPerCall = int(in[0].Shape[0])
		}
		samples, batchAt, open = source.stepsPerCall, 1, []int{s.Loop.Batch}
	}
	generator, err := synth.New(m, sig.Name, 1, open...)
	if err != nil {
		return source, usagef("%w; give --data", err)
	}
	for i, in := range sig.DataInputs() {
		if len(in.Shape) > batchAt && in.Shape[batchAt] >= 0 && in.Shape[batchAt] != int64(s.Loop.Batch) {
			return source, usagef("signature %s takes batches of exactly %d: give --batch %[2]d", sig.Name, in.Shape[batchAt])
		}
		if generator.Fields[i].Width > maxSynthetic/samples {
			return source, usagef("signature %s, input %s: more than %d values; give a smaller --batch", sig.Name, in.Name,
				maxSynthetic)
		}
	}
	b := generator.Batch(samples)
	generator.Fill(b, 0)
	source.batches = func(yield func(data.Batch, error) bool) {
		for yield(b, nil) {
		}
	}
	return source, nil
}
