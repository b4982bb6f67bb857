package train

import (
	"context"
	"errors"
	"fmt"

	"steadyfit/fit"
	"steadyfit/internal/files"
	"steadyfit/internal/manifest"
	"steadyfit/session"
)

// openAdapter reads the adapter to start from, and checks the folder for the trained one.
func (t *training) openAdapter() (err error) {
	if t.Adapter != "" {
		if t.start, err = session.ReadAdapter(t.Adapter, t.model); err != nil {
			return err
		}
		t.model = t.model.WithRecord(t.start.Record)
		t.Loop.Hook(fit.Hook{Name: "adapter", Start: func(_ context.Context, st *fit.State) error {
			if st.History.ResumedFrom != "" && !t.continues() {
				t.report("note", text("the training resumed from a checkpoint, so {Config.Adapter} has no effect"))
			}
			return nil
		}})
	}
	if t.OutAdapter == "" {
		return nil
	}
	if err := session.CheckAdapter(t.model, nil); err != nil {
		return wrong("Config.OutAdapter", t.OutAdapter, err)
	}
	return wrong("Config.OutAdapter", t.OutAdapter, files.WritableDir(t.OutAdapter, t.model.WeightBytes()))
}

func (t *training) save(ctx context.Context, r *Result) error {
	var errs []error
	if t.Out != "" {
		err := t.session.SaveModel(ctx, t.Out, t.record)
		if errs = append(errs, err); err == nil {
			r.Out = t.Out
		}
	}
	if t.OutVersion != "" {
		path, err := t.session.SaveVersion(ctx, t.OutVersion, t.record)
		r.Out, errs = path, append(errs, err)
	}
	if t.OutAdapter != "" {
		a, err := t.session.Adapter(ctx)
		if err == nil {
			a.Record = &t.reader.record
			err = a.Write(t.OutAdapter)
		}
		if errs = append(errs, err); err == nil {
			r.OutAdapter = t.OutAdapter
		}
	}
	return errors.Join(errs...)
}

// withSaved adds the paths of the saved results to the error of a complete training.
func (r *Result) withSaved(err error) error {
	if err != nil && r.Out != "" {
		err = fmt.Errorf("%w; the training is complete, and the trained model is in %s", err, r.Out)
	}
	if err != nil && r.OutAdapter != "" {
		err = fmt.Errorf("%w; the training is complete, and the trained adapter is in %s", err, r.OutAdapter)
	}
	return err
}

// record adds the record of the data to a trained model.
func (t *training) record(dir string) error { return manifest.RecordNotes(dir, t.reader.record) }
