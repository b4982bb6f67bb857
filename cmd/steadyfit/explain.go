package main

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/explain"
	"steadyfit/internal/files"
	"steadyfit/train"
)

func newExplain(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "explain",
		Short: "Show what holds the peak of memory of a training step, and what grows",
		Long: `Show what holds the peak of memory of a training step, and what grows.

explain trains for some seconds, measures the resident memory at the peak of a
step, and attributes it: to libraries, Go, data, variables by role, the operations
that hold memory at that moment, free memory that a pool or malloc keeps, and a
rest that it cannot attribute. It then says whether memory grew from step to step,
and which part of it grew. The model is not changed.

The flags of training have the meaning that they have in fit, so --config with the
file of tune explains the training with the tuned settings.

With --out, it also writes a page with the course of a step: which operation holds
how much memory, and when. The page is one file and needs no network.`,
		Example: `  steadyfit explain --model builtin:digits --data builtin:digits
  steadyfit explain --model my/model --data train.npz --batch 64 --out out/explain
  steadyfit explain --config tuned.yaml`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.explain(cmd) },
	}
}

func (s *settings) explain(cmd *cobra.Command) error {
	if err := cmp.Or(s.checkLayer("explain"), s.checkOutput("out", s.Out)); err != nil {
		return err
	}
	if err := s.prepareProcess(cmd.ErrOrStderr()); err != nil {
		return err
	}
	if err := explain.UseAllocator(s.Allocator, s.Session.Device.OneDNN); err != nil {
		return usagef("--allocator %s: %w", s.Allocator, err)
	}
	if s.Out != "" {
		if err := checkFolder(s.Out, s.Out); err != nil {
			return err
		}
	}
	r, err := s.measurePeak(cmd)
	if err != nil {
		return err
	}
	if s.Out != "" {
		if err := writePage(cmd.ErrOrStderr(), filepath.Join(s.Out, "explain.html"), r.HTML); err != nil {
			return err
		}
	}
	if s.json {
		return printJSON(cmd.OutOrStdout(), r)
	}
	return r.WriteText(cmd.OutOrStdout())
}

func writePage(stderr io.Writer, path string, html func(io.Writer) error) error {
	if err := files.Stream(path, html); err != nil {
		return unusable(fmt.Errorf("--out: %w", err))
	}
	notice(stderr, "page", path)
	return nil
}

// growthTime is the maximum time of the steps that show whether memory grows.
const growthTime = 15 * time.Second

func (s *settings) measurePeak(cmd *cobra.Command) (*explain.Report, error) {
	m, plan, err := s.compile()
	if err != nil {
		return nil, err
	}
	return explain.Measure(cmd.Context(), explain.Plan{
		Name: s.modelName(), Model: m, Options: s.Session, Batch: s.Loop.Batch, Prefetch: s.Prefetch, Time: growthTime,
		Shuffle: s.Shuffle, ChooseSteps: s.ChooseSteps, Budgeted: s.Budget.Limit > 0, LearningRate: s.firstRate(),
		OpenData: func() (*data.InMemory, error) {
			return train.OpenData(m, plan.Roles().Train, s.Data, "train", data.Pass{Batch: s.Loop.Batch})
		},
		LoadTensorFlow: func() error { return s.loadDevices(cmd) },
	})
}

func (s *settings) modelName() string {
	if strings.HasPrefix(s.Model, contract.BuiltinPrefix) {
		return s.Model
	}
	return filepath.Base(filepath.Clean(s.Model))
}
