package observe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/framework/summary_go_proto"

	"steadyfit/fit"
)

// TensorBoard writes the scalars of a training (fit.Record.Scalars) to event files in Dir/train and
// Dir/validation, as Keras's callback TensorBoard does.
//
// A run that resumes removes the events after its checkpoint from the files, and adds the epochs that
// they lack, so that no step occurs twice. A new training begins with an event that makes TensorBoard
// drop the events of earlier trainings in the same folder, whose files stay. A run that resumes does
// the same if the files are those of another training: an epoch has other values than in the run, or
// the files have none of the epochs that the run has done.
type TensorBoard struct {
	Dir string
	// EverySteps also writes the metrics at multiples of this number of train steps, if
	// fit.Observers.EverySteps is the same; 0 disables this.
	EverySteps int
	// Graph returns the graph to show at the beginning of a training, as a serialized GraphDef; nil
	// shows none.
	Graph func() ([]byte, error)

	begun *fit.Observation
	// joins is true for a run that resumes and whose earlier events are in the folder.
	joins   bool
	writers map[string]*runWriter
}

// runWriter writes the events of a run. TensorBoard shows each folder of event files as a run.
type runWriter struct {
	*eventFile
	// done is the number of epochs in the files.
	done int64
}

// Observe implements fit.Observer.
func (t *TensorBoard) Observe(_ context.Context, o *fit.Observation) error {
	switch o.Moment {
	case fit.AtStart:
		t.begun, t.writers = o, map[string]*runWriter{}
		var err error
		if t.joins, err = t.continues(); err != nil {
			return t.named(err)
		}
		w, err := t.writer("train")
		if err == nil && !t.joins {
			if t.Graph != nil {
				err = t.named(t.graph(w))
			}
			// A validation of an earlier training in the folder must not count as one of this training.
			if _, missing := os.Stat(filepath.Join(t.Dir, "validation")); missing == nil {
				_, second := t.writer("validation")
				err = errors.Join(err, second)
			}
		}
		return err
	case fit.AtStep:
		if t.EverySteps > 0 && o.Step%int64(t.EverySteps) == 0 {
			return t.write(o, o.Scalars())
		}
	case fit.AtEpoch:
		return errors.Join(t.write(o, o.Scalars()), t.histograms(o))
	case fit.AtEnd:
		var errs []error
		for _, w := range t.writers {
			errs = append(errs, w.close())
		}
		t.writers = nil
		return t.named(errors.Join(errs...))
	}
	return nil
}

func (t *TensorBoard) named(err error) error {
	if err != nil {
		err = fmt.Errorf("event files for TensorBoard in %s: %w", t.Dir, err)
	}
	return err
}

// writer returns the writer of a run. It opens the run at the first call.
func (t *TensorBoard) writer(run string) (*runWriter, error) {
	if w := t.writers[run]; w != nil {
		return w, nil
	}
	w, err := t.open(run)
	if err != nil {
		return nil, t.named(err)
	}
	t.writers[run] = w
	return w, nil
}

func (t *TensorBoard) open(run string) (w *runWriter, err error) {
	w = &runWriter{}
	dir, o := filepath.Join(t.Dir, run), t.begun
	if t.joins {
		events, err := cut(dir, t.beyond)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if strings.HasPrefix(e.tag, "epoch_") {
				w.done = max(w.done, e.step+1)
			}
		}
	}
	if w.eventFile, err = createEvents(dir, o.Time); err != nil {
		return nil, err
	}
	if err = t.begin(run, w); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// begin writes the first events of a run in this process.
func (t *TensorBoard) begin(run string, w *runWriter) error {
	o := t.begun
	if !t.joins {
		// TensorBoard drops all earlier events whose step is not below that of START.
		if err := w.write(event(o.Time, 0, message(nil, eventSession, sessionStart))); err != nil {
			return err
		}
	}
	for i := range o.Earlier {
		if r := &o.Earlier[i]; int64(r.Epoch) > w.done {
			if err := w.scalars(o, run, r.Scalars()); err != nil {
				return err
			}
		}
	}
	return nil
}

// beyond reports whether an event is after the checkpoint of a run that resumes.
func (t *TensorBoard) beyond(e parsed) bool {
	if ofEpoch(e.tag) {
		return e.step >= int64(t.begun.EpochsDone)
	}
	return e.tag != "" && e.step > t.begun.Step
}

// continues reports whether the newest training in the folder is the one that the run resumes. It
// returns false if an epoch has other values in the folder. If no epoch can be compared, it returns
// false if the events to remove belong to a complete epoch, or if the run has complete epochs and any
// event is to be removed.
func (t *TensorBoard) continues() (bool, error) {
	o := t.begun
	if !o.Resumed {
		return false, nil
	}
	newest, err := newestEvents(filepath.Join(t.Dir, "train"))
	if err != nil {
		return false, err
	}
	own := map[fit.Scalar]uint32{} // the bits of a value; the keys have none
	for i := range o.Earlier {
		for _, s := range o.Earlier[i].Scalars() {
			own[fit.Scalar{Run: s.Run, Name: s.Name, Step: s.Step}] = math.Float32bits(float32(s.Value))
		}
	}
	common, removes, removesEpoch := false, false, false
	for _, r := range newest {
		for _, e := range r.events {
			value, known := own[fit.Scalar{Run: "train", Name: e.tag, Step: e.step}]
			switch {
			case t.beyond(e):
				removes, removesEpoch = true, removesEpoch || ofEpoch(e.tag)
			case known && value != e.value:
				return false, nil
			}
			common = common || known
		}
	}
	return common || !removesEpoch && !(removes && o.EpochsDone > 0), nil
}

func (t *TensorBoard) graph(w *runWriter) error {
	graph, err := t.Graph()
	if err != nil {
		return fmt.Errorf("the graph: %w", err)
	}
	return w.write(event(t.begun.Time, 0, message(nil, eventGraph, graph)))
}

// ofEpoch reports whether the step of a tag is the number of an epoch.
func ofEpoch(tag string) bool {
	return strings.HasPrefix(tag, "epoch_") || strings.HasSuffix(tag, histogramSuffix)
}

func (t *TensorBoard) histograms(o *fit.Observation) error {
	if len(o.Histograms) == 0 || t.writers == nil {
		return nil
	}
	w, err := t.writer("train")
	if err != nil {
		return err
	}
	var values []*pb.Summary_Value
	for _, h := range o.Histograms {
		values = append(values, histogram(h))
	}
	return t.named(w.summary(o.Time, int64(o.Record.Epoch)-1, values))
}

func (t *TensorBoard) write(o *fit.Observation, scalars []fit.Scalar) error {
	if t.writers == nil {
		return nil // the run has not begun
	}
	for _, run := range []string{"train", "validation"} {
		if !slices.ContainsFunc(scalars, func(s fit.Scalar) bool { return s.Run == run }) {
			continue
		}
		w, err := t.writer(run)
		if err == nil {
			err = t.named(w.scalars(o, run, scalars))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scalars writes the scalars of a run. An event has those of one step and kind.
func (w *runWriter) scalars(o *fit.Observation, run string, scalars []fit.Scalar) error {
	var values []*pb.Summary_Value
	var first fit.Scalar
	for _, s := range scalars {
		if s.Run != run {
			continue
		}
		if len(values) > 0 && (s.Step != first.Step || ofEpoch(s.Name) != ofEpoch(first.Name)) {
			if err := w.summary(o.Time, first.Step, values); err != nil {
				return err
			}
			values = nil
		}
		if len(values) == 0 {
			first = s
		}
		values = append(values, scalar(s.Name, s.Value))
	}
	if len(values) == 0 {
		return nil
	}
	return w.summary(o.Time, first.Step, values)
}
