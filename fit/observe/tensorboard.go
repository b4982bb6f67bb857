package observe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"steadyfit/fit"
	"steadyfit/internal/tfproto"
)

// TensorBoard writes the scalars of a training (fit.Record.Scalars) to event files in Dir/train and
// Dir/validation, as Keras's callback TensorBoard does. Dir belongs to one training.
//
// A run that resumes adds its events to those in Dir, or, if Dir has none, writes the earlier epochs first.
// An epoch that an earlier process completed after the checkpoint is in the files twice, with equal values.
// After a new training in Dir, TensorBoard hides the events of an earlier one; its files stay.
type TensorBoard struct {
	Dir string
	// Graph returns the graph to show at the beginning of a training, as a serialized GraphDef; nil
	// shows none.
	Graph func() ([]byte, error)

	begun *fit.Observation
	// writers are the open event files by run. TensorBoard shows each folder of event files as a run.
	writers map[string]*eventFile
}

// Observe implements fit.Observer.
func (t *TensorBoard) Observe(_ context.Context, o *fit.Observation) error {
	var err error
	switch o.Moment {
	case fit.AtStart:
		err = t.start(o)
	case fit.AtEpoch:
		if t.writers != nil {
			err = errors.Join(t.scalars(o.Time, "train", o.Record), t.scalars(o.Time, "validation", o.Record))
		}
	case fit.AtEnd:
		var errs []error
		for _, w := range t.writers {
			errs = append(errs, w.file.Close())
		}
		t.writers = nil
		err = errors.Join(errs...)
	}
	if err != nil {
		return fmt.Errorf("event files for TensorBoard in %s: %w", t.Dir, err)
	}
	return nil
}

func (t *TensorBoard) start(o *fit.Observation) error {
	t.begun, t.writers = o, map[string]*eventFile{}
	w, err := t.writer("train")
	if err != nil || o.Resumed {
		return err
	}
	// A validation of an earlier training in the folder must not count as one of this training.
	if _, missing := os.Stat(filepath.Join(t.Dir, "validation")); missing == nil {
		if _, err := t.writer("validation"); err != nil {
			return err
		}
	}
	if t.Graph != nil {
		return t.graph(w)
	}
	return nil
}

// writer returns the writer of a run. It opens the run at the first call.
func (t *TensorBoard) writer(run string) (*eventFile, error) {
	if w := t.writers[run]; w != nil {
		return w, nil
	}
	dir := filepath.Join(t.Dir, run)
	existing, err := eventFiles(dir)
	if err != nil {
		return nil, err
	}
	w, err := createEvents(dir, t.begun.Time)
	if err != nil {
		return nil, err
	}
	t.writers[run] = w
	// TensorBoard drops all earlier events of the folder whose step is at least that of this event.
	session := &tfproto.Event{What: &tfproto.Event_SessionLog{
		SessionLog: &tfproto.SessionLog{Status: tfproto.SessionLog_START}}}
	if t.begun.Resumed {
		session.Step = t.begun.Step + 1
	}
	if err := w.write(t.begun.Time, session); err != nil {
		return nil, err
	}
	if len(existing) == 0 {
		for i := range t.begun.Earlier {
			if err := t.scalars(t.begun.Time, run, &t.begun.Earlier[i]); err != nil {
				return nil, err
			}
		}
	}
	return w, nil
}

func (t *TensorBoard) graph(w *eventFile) error {
	graph, err := t.Graph()
	if err != nil {
		return fmt.Errorf("the graph: %w", err)
	}
	return w.write(t.begun.Time, &tfproto.Event{What: &tfproto.Event_GraphDef{GraphDef: graph}})
}

// scalars writes the scalars of a run from the record of an epoch. The scalars of one step are one
// event.
func (t *TensorBoard) scalars(at time.Time, run string, r *fit.Record) error {
	var steps []int64
	values := map[int64][]*tfproto.Summary_Value{}
	for _, s := range r.Scalars() {
		if s.Run != run {
			continue
		}
		if values[s.Step] == nil {
			steps = append(steps, s.Step)
		}
		values[s.Step] = append(values[s.Step], scalar(s.Name, s.Value))
	}
	if len(steps) == 0 {
		return nil
	}
	w, err := t.writer(run)
	for _, step := range steps {
		if err == nil {
			summary := &tfproto.Event_Summary{Summary: &tfproto.Summary{Value: values[step]}}
			err = w.write(at, &tfproto.Event{Step: step, What: summary})
		}
	}
	return err
}
