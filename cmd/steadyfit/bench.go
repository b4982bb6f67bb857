package main

import (
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/internal/measure"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

func newBench(g *global) *cobra.Command {
	var (
		model     modelFlags
		input     dataFlags
		batch     int
		steps     int
		signature string
		synthetic bool
	)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure one step of a SavedModel: time and memory",
		Long: `Measure one step of a SavedModel and print it in Go benchmark format, which
benchstat reads: the median time per step over groups of steps, and resident,
anonymous and peak memory in bytes after them, and how far anonymous memory
ranged after the warm-up. A step copies the batch into the
native buffers, runs, and reads the loss. The model is not written back.

Without --data, one synthetic batch is used for every step.`,
		Example: "  steadyfit bench --model builtin:digits --batch 32 --steps 2000 --synthetic",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if batch < 1 || steps < 1 {
				return usagef("--batch %d --steps %d: expected at least 1 each", batch, steps)
			}
			if synthetic && input.path != "" {
				return usagef("--synthetic and --data exclude each other")
			}
			m, err := model.open()
			if err != nil {
				return err
			}
			roles := m.Roles
			if signature == "" {
				signature = roles.Train
			}
			if _, err := m.Signature(signature); err != nil {
				return unusable(err)
			}
			var ds *data.Memory
			if input.path != "" {
				if ds, err = input.open(input.path, ""); err != nil {
					return err
				}
				if err := session.CheckData(m, signature, ds, batch); err != nil {
					return err
				}
			}
			if _, err := g.load(); err != nil {
				return err
			}
			s, err := session.Open(cmd.Context(), m, model.options)
			if err != nil {
				return err
			}
			defer s.Close()
			step, err := s.Prepare(signature)
			if err != nil {
				return err
			}
			defer step.Close()
			next, stop, err := batches(step, ds, batch, classes(m))
			if err != nil {
				return err
			}
			defer stop()
			plan := measure.Plan{Warmup: min(max(steps/10, 5), 200), Steps: steps, Chunks: min(50, steps)}
			r, err := measure.Run(plan, func() (float32, error) {
				b, err, _ := next()
				if err != nil {
					return 0, err
				}
				if err := step.Feed(b); err != nil {
					return 0, err
				}
				if err := step.Run(cmd.Context()); err != nil {
					return 0, err
				}
				loss, err := step.Float(savedmodels.OutputLoss)
				return float32(loss), err
			})
			if errors.Is(err, tfbind.ErrInvalidArgument) && ds == nil {
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
			name := strings.TrimPrefix(filepath.Base(filepath.Clean(model.model)), builtinPrefix)
			return r.Print(cmd.OutOrStdout(), "steadyfit", name, int64(batch))
		},
	}
	model.register(cmd.Flags())
	input.register(cmd.Flags())
	flags := cmd.Flags()
	flags.IntVar(&batch, "batch", 32, "samples per step")
	flags.IntVar(&steps, "steps", 1000, "steps to measure, after a tenth as many to warm up")
	flags.StringVar(&signature, "signature", "", "signature to run; default the train signature")
	flags.BoolVar(&synthetic, "synthetic", false, "use a synthetic batch; this is the default without --data")
	return cmd
}

// batches returns an endless source of batches: full ones of the dataset, or
// one synthetic batch again and again.
func batches(step *session.Step, ds *data.Memory, size int, classes uint32) (next func() (data.Batch, error, bool), stop func(), err error) {
	if ds == nil {
		b, err := syntheticBatch(step.Signature(), size, classes)
		return func() (data.Batch, error, bool) { return b, nil, true }, func() {}, err
	}
	if ds.Len() < size {
		return nil, nil, usagef("%s has %d samples, less than one batch of %d", ds.Name(), ds.Len(), size)
	}
	next, stop = iter.Pull2(func(yield func(data.Batch, error) bool) {
		for epoch := 0; ; epoch++ {
			for b, err := range ds.Batches(data.Pass{Batch: size, Epoch: epoch, DropRemainder: true}) {
				if !yield(b, err) {
					return
				}
			}
		}
	})
	return next, stop, nil
}

// classes is what synthetic integers, which are labels as a rule, stay below.
func classes(m *savedmodels.Model) uint32 {
	if m.Metadata != nil && len(m.Metadata.ClassNames) > 0 {
		return uint32(len(m.Metadata.ClassNames))
	}
	return measure.DefaultLimit
}

// syntheticBatch makes the batch that the other programs of the benchmark make
// for the same signature (see package measure). A size that is open is the batch
// where it comes first, and 1 elsewhere. Integers are drawn below classes.
func syntheticBatch(sig *savedmodels.Signature, size int, classes uint32) (data.Batch, error) {
	b := data.Batch{Size: size}
	for i, in := range sig.DataInputs() {
		f := measure.Feed{Tensor: in.Op, Limit: classes}
		a := data.Array{}
		for d, n := range in.Shape {
			if n < 0 {
				if n = 1; d == 0 {
					n = int64(size)
				}
			}
			f.Shape = append(f.Shape, n)
			a.Shape = append(a.Shape, int(n))
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
		if in.UnknownRank {
			return data.Batch{}, usagef("signature %s, input %s: its shape is unknown; give --data", sig.Name, in.Name)
		}
		b.Fields = append(b.Fields, data.Field{Name: in.Name, Array: a})
	}
	return b, nil
}
