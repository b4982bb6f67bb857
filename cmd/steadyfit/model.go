package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"steadyfit/adapter"
	"steadyfit/data"
	"steadyfit/internal/autotune"
	"steadyfit/internal/doctor"
	"steadyfit/internal/files"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
	"steadyfit/train"
)

// prepareProcess sets the environment for the device flags, which may restart the process. It
// warns of flags without effect. A command calls it first.
func (s *settings) prepareProcess(stderr io.Writer) error {
	if err := s.checkGrowth(); err != nil {
		return err
	}
	warnings, err := autotune.UseEnvironment(s.Session.Device, s.ReleaseMemory, s.Allocator)
	if err != nil {
		return unusable(err)
	}
	for _, w := range warnings {
		notice(stderr, "warning", w)
	}
	return nil
}

// checkGrowth returns an error for --memory-growth=false if an environment variable turns
// memory growth on. The options cannot express that, because their default is also false.
func (s *settings) checkGrowth() error {
	const force = "TF_FORCE_GPU_ALLOW_GROWTH"
	if value := os.Getenv(force); s.given("memory-growth") && !s.Session.Device.MemoryGrowth && value == "true" {
		return option.New("Options.MemoryGrowth false", force+` is "true" in the environment, and TensorFlow obeys the variable`, "unset it, or leave the option out")
	}
	return nil
}

// inputs returns the paths that the command reads.
func (s *settings) inputs() files.Inputs {
	return files.NewInputs(s.Model, s.Data.Path, s.Validation)
}

// checkOutput returns an error if an output would replace or change the model or the data.
func (s *settings) checkOutput(flag, path string) error {
	if err := s.inputs().Check(path); err != nil {
		return usagef("--%s %s: %w", flag, path, err)
	}
	return nil
}

// checkOutputFile is checkOutput for --out if it is a file. Such a file is called like the example.
func (s *settings) checkOutputFile(example string) error {
	if err := s.checkOutput("out", s.Out); err != nil {
		return err
	}
	if file, err := os.Stat(s.Out); err == nil && file.IsDir() {
		return usagef("--out %s: it is a folder; name a file in it, such as %s", s.Out, filepath.Join(s.Out, example))
	}
	return nil
}

// openSession opens TensorFlow and the model for a command that does not train. readOnly allows
// a model without a train signature.
func (s *settings) openSession(cmd *cobra.Command, model *savedmodels.Model, readOnly bool) (*session.Session, error) {
	s.Session.ReadOnly = readOnly
	opened, err := session.OpenModel(cmd.Context(), model, s.Session)
	return opened, s.explainNoGPU(cmd.Context(), err)
}

// loadDevices opens TensorFlow and resolves the precision. It warns if float16 is slow on this
// machine.
func (s *settings) loadDevices(cmd *cobra.Command) error {
	if _, err := s.load(); err != nil {
		return err
	}
	warning, err := session.ResolvePrecision(&s.Session.Device)
	if warning != nil {
		notice(cmd.ErrOrStderr(), "warning", warning)
	}
	return s.explainNoGPU(cmd.Context(), err)
}

// infer opens the model and its data, and calls do. role returns the signature for the data; if
// it is empty, the error states the purpose.
func (s *settings) infer(cmd *cobra.Command, role func(savedmodels.Roles) string, purpose string, do func(*session.Session, *data.InMemory) error) error {
	if err := s.prepareProcess(cmd.ErrOrStderr()); err != nil {
		return err
	}
	model, err := train.OpenModel(s.Model, s.LossOutput)
	if err != nil {
		return err
	}
	weights, err := s.readAdapter(model)
	if err != nil {
		return err
	}
	signature := role(model.Roles)
	if signature == "" {
		return usagef("%s has no signature to %s", model.Dir, purpose)
	}
	if weights != nil {
		model = model.WithRecord(weights.Record)
	}
	s.Data.Note = func(message string) { notice(cmd.ErrOrStderr(), "warning", message) }
	ds, err := train.OpenData(model, signature, s.Data, "test", data.Pass{Batch: s.Loop.Batch})
	if err != nil {
		return err
	}
	defer ds.Close()
	if err := s.loadDevices(cmd); err != nil {
		return err
	}
	opened, err := s.openSession(cmd, model, true)
	if err != nil {
		return err
	}
	defer opened.Close()
	ds.UseJPEG(opened.DecodeJPEG)
	if weights != nil {
		if err := opened.Swap(cmd.Context(), weights); err != nil {
			return err
		}
	}
	return do(opened, ds)
}

// readAdapter reads the adapter for a model; nil without --adapter.
func (s *settings) readAdapter(model *savedmodels.Model) (*adapter.Adapter, error) {
	if s.Adapter == "" {
		return nil, nil
	}
	a, err := adapter.Read(s.Adapter, model.WeightBytes())
	if err == nil {
		err = session.CheckAdapter(model, a)
	}
	return a, unusable(err)
}

// explainNoGPU adds the missing libraries and drivers to an ErrNoGPU.
func (s *settings) explainNoGPU(ctx context.Context, err error) error {
	if !errors.Is(err, session.ErrNoGPU) {
		return err
	}
	text := ""
	for _, c := range doctor.Examine(ctx, doctor.Options{TensorFlow: s.TensorFlow, NeedGPU: true}).Checks {
		if c.Group == "GPU" && c.Status == doctor.Problem {
			text += fmt.Sprintf("\n  %s: %s", c.Name, c.Found)
		}
	}
	switch {
	case text != "":
	case errors.As(err, new(*tfbind.Error)): // the requested GPU is missing, but others exist
		return &coded{exitEnvironment, fmt.Errorf("%w\nsteadyfit doctor --gpu lists the GPUs of this machine", err)}
	default:
		text = "\n  no library is missing; --verbose prints TensorFlow's log"
	}
	return &coded{exitEnvironment, fmt.Errorf("%w%s\nsteadyfit doctor --gpu prints how to fix it", err, text)}
}
