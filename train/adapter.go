package train

import (
	"context"
	"errors"
	"os"

	"steadyfit/adapter"
	"steadyfit/fit"
	"steadyfit/internal/files"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// openAdapter reads the adapter to start from, and checks the folder for the trained one.
func (t *training) openAdapter() (err error) {
	if t.Adapter != "" {
		if t.start, err = adapter.Read(t.Adapter, t.model.WeightBytes()); err == nil {
			err = session.CheckAdapter(t.model, t.start)
		}
		if err != nil {
			return unusable(err)
		}
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
	if err := os.MkdirAll(t.OutAdapter, 0o777); err != nil {
		return unusable(err)
	}
	return unusable(files.Writable(t.OutAdapter, t.model.WeightBytes()))
}

func (t *training) save(ctx context.Context, r *Result) error {
	var errs []error
	if t.Out != "" {
		err := t.session.SaveModel(ctx, t.Out)
		if columns := t.reader.columns; err == nil && t.model.Metadata != nil && len(columns) > 1 {
			err = savedmodels.RecordColumns(t.Out, columns)
		}
		if errs = append(errs, err); err == nil {
			r.Out = t.Out
		}
	}
	if t.OutAdapter != "" {
		a, err := t.session.Adapter(ctx)
		if err == nil {
			err = a.Write(t.OutAdapter)
		}
		if errs = append(errs, err); err == nil {
			r.OutAdapter = t.OutAdapter
		}
	}
	return errors.Join(errs...)
}
