package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"steadyfit/data"
	"steadyfit/internal/files"
	"steadyfit/internal/tfprocess"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
	"steadyfit/train"
)

// prepareProcess sets the environment variables for the device flags, before TensorFlow is opened. It warns
// of flags without effect. A command calls it first.
func (s *settings) prepareProcess(stderr io.Writer) error {
	warnings, err := s.Session.Device.Check(os.Environ())
	if err == nil {
		err = session.UseEnvironment(s.Session.Device)
	}
	if err != nil {
		return unusable(err)
	}
	for _, w := range warnings {
		notice(stderr, "warning", w)
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

// checkOutputFile is checkOutput for an --out that must be a file. example is a name for such a
// file.
func (s *settings) checkOutputFile(example string) error {
	if err := s.checkOutput("out", s.Out); err != nil {
		return err
	}
	if file, err := os.Stat(s.Out); err == nil && file.IsDir() {
		return usagef("--out %s: it is a folder; name a file in it, such as %s", s.Out, filepath.Join(s.Out, example))
	}
	return nil
}

// checkFolder makes the folder of an --out, and returns an error if it cannot store files.
func checkFolder(out, folder string) error {
	if err := files.WritableDir(folder, 0); err != nil {
		return unusable(fmt.Errorf("--out %s: %w", out, err))
	}
	return nil
}

// openSession opens TensorFlow and the model for a command that does not train. readOnly allows
// a model without a train signature.
func (s *settings) openSession(cmd *cobra.Command, model *savedmodels.Model, readOnly bool) (*session.Session, error) {
	s.Session.ReadOnly = readOnly
	return session.OpenModel(cmd.Context(), model, s.Session)
}

// loadDevices opens TensorFlow and resolves the precision. It warns if float16 is slow on this
// machine.
func (s *settings) loadDevices(cmd *cobra.Command) error {
	if err := tfprocess.SetLogLevel(tfprocess.LogWarnings); err != nil {
		return err
	}
	if _, err := tfbind.Load(s.TensorFlow); err != nil {
		return err
	}
	warning, err := session.ResolvePrecision(&s.Session.Device)
	if warning != nil {
		notice(cmd.ErrOrStderr(), "warning", warning)
	}
	return err
}

// compile opens the model to train, and checks that the options allow its training.
func (s *settings) compile() (*savedmodels.Model, *session.Plan, error) {
	m, err := train.OpenModel(&s.Config)
	if err != nil {
		return nil, nil, err
	}
	plan, err := session.Compile(m, s.Session)
	if err != nil {
		return nil, nil, err
	}
	return m, plan, plan.Check(s.Loop.Batch, s.Loop.LearningRate != nil)
}

// infer opens the model and its data, and calls do. role returns the signature for the data; if
// it is empty, the error states the purpose.
func (s *settings) infer(cmd *cobra.Command, role func(savedmodels.Roles) string, purpose string,
	do func(*session.Session, *data.InMemory) error) error {
	if err := s.prepareProcess(cmd.ErrOrStderr()); err != nil {
		return err
	}
	model, err := train.OpenModel(&s.Config)
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
	if weights != nil && weights.Record != nil {
		if model, err = model.WithRecord(weights.Record).WithConstants(weights.Record.Constants); err == nil {
			model, err = model.WithConstants(s.Constants)
		}
		if err != nil {
			return err
		}
	}
	s.Data.Note = func(message string) { notice(cmd.ErrOrStderr(), "warning", message) }
	ds, err := train.OpenData(model, signature, s.Data, "test", data.Pass{Batch: s.Loop.Batch})
	if err != nil {
		return err
	}
	defer ds.Close()
	s.Session.Only = []string{signature, model.Roles.ResetMetrics}
	opened, err := s.openWith(cmd, model, weights)
	if err != nil {
		return err
	}
	defer opened.Close()
	ds.UseJPEG(opened.DecodeJPEG)
	return do(opened, ds)
}

// openWith opens TensorFlow and a model with the weights of an adapter, or nil.
func (s *settings) openWith(cmd *cobra.Command, model *savedmodels.Model, weights *session.Adapter) (*session.Session,
	error) {
	if err := s.loadDevices(cmd); err != nil {
		return nil, err
	}
	opened, err := s.openSession(cmd, model, true)
	if err == nil && weights != nil {
		if err = opened.Swap(cmd.Context(), weights); err != nil {
			err = errors.Join(err, opened.Close())
		}
	}
	return opened, err
}

// readAdapter reads the adapter for a model; nil without --adapter.
func (s *settings) readAdapter(model *savedmodels.Model) (*session.Adapter, error) {
	if s.Adapter == "" {
		return nil, nil
	}
	a, err := session.ReadAdapter(s.Adapter, model)
	return a, unusable(err)
}
