package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/fit/internal/checkpoint"
	"steadyfit/fit/internal/disk"
	"steadyfit/internal/files"
	"steadyfit/option"
)

// Direction states whether low or high values of a metric are better.
type Direction int

const (
	// auto derives the direction from the metric's name: low for losses and errors, high for
	// accuracies, areas and scores. An unknown name is an error.
	auto Direction = iota
	// Min means that lower values are better.
	Min
	// Max means that higher values are better.
	Max
)

// auto looks for these words in metric names.
var (
	lowWords  = []string{"loss", "error", "mae", "mse", "rmse", "mape", "msle", "perplexity", "crossentropy", "entropy", "divergence", "hinge"}
	highWords = []string{"accuracy", "acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "dice", "r2", "specificity", "sensitivity"}
)

func guessDirection(metric string) (Direction, bool) {
	words := strings.Split(strings.ToLower(metric), "_")
	for _, word := range slices.Backward(words) {
		switch {
		case slices.Contains(highWords, word):
			return Max, true
		case slices.Contains(lowWords, word):
			return Min, true
		}
	}
	return auto, false
}

type monitor struct {
	metric    string
	direction Direction
	patience  int
	minDelta  float64
	resolved  Direction

	// known is true if there is a best value.
	known bool
	best  float64
}

func (m *monitor) reset() { m.known, m.best = false, 0 }

func (m *monitor) set(value float64) { m.known, m.best = true, value }

func (m *monitor) state() *number {
	if !m.known {
		return nil
	}
	best := number(m.best)
	return &best
}

func (m *monitor) setState(best *number) {
	if m.reset(); best != nil {
		m.set(float64(*best))
	}
}

func (m *monitor) improves(value float64) bool {
	return (!m.known && !math.IsNaN(value)) || (m.known && m.beats(value, m.best))
}

// beats reports whether value is better than other by more than minDelta. NaN is never better.
func (m *monitor) beats(value, other float64) bool {
	delta := math.Abs(m.minDelta)
	if m.resolved == Max {
		return value-delta > other
	}
	return value+delta < other
}

func (m *monitor) find(name string, available []string, validates bool) error {
	if slices.Contains(available, m.metric) {
		return nil
	}
	remedy := "use one of " + strings.Join(available, ", ")
	if strings.HasPrefix(m.metric, validationPrefix) && !validates {
		remedy += ", or set {Loop.Validation} to have validation metrics"
	}
	return &option.Error{Option: name, Value: m.metric, Reason: "there is no such metric", Fix: remedy}
}

func (m *monitor) finder(name string) func([]string, bool) error {
	return func(available []string, validates bool) error {
		if m.metric == "" {
			return nil
		}
		return m.find(name, available, validates)
	}
}

// check returns an error if the run lacks the metric. It resolves the direction.
func (m *monitor) check(name string, s *State) error {
	if err := m.find(name, s.available(), s.run.loop.Validation != nil); err != nil {
		return err
	}
	if m.patience < 0 {
		return &option.Error{Option: name, Value: m.metric, Reason: fmt.Sprintf("the patience is %d, expected at least 0", m.patience)}
	}
	m.resolved = m.direction
	if m.resolved == auto {
		guessed, ok := guessDirection(m.metric)
		if !ok {
			return &option.Error{Option: name, Value: m.metric, Reason: "the name does not say whether low or high is better", Fix: "give the direction, min or max"}
		}
		m.resolved = guessed
	}
	return nil
}

// EarlyStop is a hook that stops training when a metric, such as "val_loss", no longer
// improves. It decides like the Keras callback EarlyStopping, except that a metric that the run
// lacks is an error at the start, and that NaN is never an improvement. It ignores epochs
// without validation.
//
// If EarlyStop stopped a run, a resumed run stops at once unless Patience is higher.
func EarlyStop(metric string, given ...Option) Hook {
	e := &earlyStop{options: options{monitor: monitor{metric: metric}}.with(given)}
	return Hook{
		Name: "early_stop(" + metric + ")",
		Load: e.load, Save: e.save, Start: e.start, Epoch: e.epoch, End: e.end, metric: e.finder("EarlyStop"),
		// The weights of the first rank count in the end.
		follow: func() bool { e.restore = false; return true },
	}
}

type earlyStop struct {
	options
	// scratch is a temporary folder that replaces an empty bestDir. remove deletes it.
	scratch string
	remove  func() error

	wait      int
	bestEpoch int
	stopped   int
	// saved is the folder of the best state that could be written; empty if there is none.
	// savedBest is its value.
	saved     string
	savedBest monitor
	// own is true if this run created the workspace.
	own bool
	// lost is the error of writing the best state; nil after a success. failed is the error for
	// which this hook stopped the run.
	lost, failed error
}

type earlyStopState struct {
	Best *number `json:"best,omitempty"`
	// BestEpoch is the epoch of the saved state, or 0. Saved is the metric of that epoch if it
	// differs from Best.
	BestEpoch int     `json:"best_epoch"`
	Saved     *number `json:"kept,omitempty"`
	Wait      int     `json:"wait"`
	// Stopped is the epoch after which the hook stopped the run, or 0.
	Stopped int `json:"stopped"`
}

func (e *earlyStop) workspace() string {
	return filepath.Join(cmp.Or(e.bestDir, e.scratch), ".best-"+url.PathEscape(e.metric))
}

func (e *earlyStop) load(dir string, state json.RawMessage) error {
	e.reset()
	e.savedBest.reset()
	e.wait, e.bestEpoch, e.stopped, e.saved, e.own, e.lost, e.failed = 0, 0, 0, "", false, nil, nil
	if err := e.check("EarlyStop", "Patience", "MinDelta", "Mode", "Baseline", "RestoreBest", "StartFrom", "OnError"); err != nil {
		return err
	}
	if state == nil {
		return nil
	}
	var loaded earlyStopState
	if err := json.Unmarshal(state, &loaded); err != nil {
		return fmt.Errorf("reading its state: %w", err)
	}
	e.setState(loaded.Best)
	e.bestEpoch, e.wait, e.stopped = loaded.BestEpoch, loaded.Wait, loaded.Stopped
	if !e.restore || disk.Missing(dir) {
		return nil
	}
	saved, err := e.folder(e.bestEpoch)
	if err == nil {
		err = e.disk.CopyFiles(dir, saved)
	}
	if err != nil && e.onError != Continue {
		return notSaved(err)
	}
	if e.lost = err; err != nil {
		e.bestEpoch = 0
		return nil
	}
	e.saved = saved
	if loaded.Saved == nil {
		loaded.Saved = loaded.Best
	}
	e.savedBest.setState(loaded.Saved)
	return nil
}

func (e *earlyStop) folder(epoch int) (string, error) {
	if e.bestDir == "" && e.scratch == "" {
		var err error
		if e.scratch, e.remove, err = files.Scratch("steadyfit-best-"); err != nil {
			return "", err
		}
	}
	if !e.own {
		// A killed process may have left files. No other run uses them, because the Checkpoint
		// hook or Loop.Resume locks the folder.
		if err := e.disk.Remove(e.workspace()); err != nil {
			return "", err
		}
		e.own = true
	}
	dir := filepath.Join(e.workspace(), strconv.Itoa(epoch))
	return dir, e.disk.MakeDir(dir)
}

func notSaved(err error) error {
	return fmt.Errorf("saving the best state: %w; %s", err, files.Remedy(err, ""))
}

func (e *earlyStop) save(dir string) (json.RawMessage, error) {
	state := earlyStopState{Best: e.state(), BestEpoch: e.bestEpoch, Wait: e.wait, Stopped: e.stopped}
	if e.saved != "" {
		if err := e.disk.CopyFiles(e.saved, dir); err != nil {
			return nil, err
		}
		if e.savedBest.best != e.best {
			state.Saved = e.savedBest.state()
		}
	}
	return json.Marshal(state)
}

func (e *earlyStop) start(_ context.Context, s *State) error {
	if err := e.monitor.check("EarlyStop", s); err != nil {
		return err
	}
	if e.lost != nil {
		s.Log.Warn("training continues without the best state so far", "error", notSaved(e.lost))
	}
	if e.stopped > 0 {
		if e.wait >= e.patience {
			s.Finish(e.reason())
		} else {
			e.stopped = 0
		}
	}
	return nil
}

func (e *earlyStop) reason() string {
	return fmt.Sprintf("early stop after epoch %d: %s has not improved for %d epochs", e.stopped, e.metric, e.wait)
}

func (e *earlyStop) epoch(ctx context.Context, s *State) error {
	value, ok := s.Record.Metrics.Get(e.metric)
	if !ok || s.Epoch <= e.startFrom {
		return nil
	}
	if e.restore && (e.saved == "" || !e.savedBest.known && !math.IsNaN(value) || e.savedBest.known && e.beats(value, e.savedBest.best)) {
		e.saveBest(ctx, s, value)
	}
	e.wait++
	if e.improves(value) {
		e.set(value)
		if e.baseline == nil || e.beats(value, *e.baseline) {
			e.wait = 0
		}
		return nil
	}
	if e.wait >= e.patience && s.Epoch > 1 {
		e.stopped = s.Epoch
		s.Finish(e.reason())
	}
	return nil
}

const notSavedEvent = "best_not_kept"

// saveBest saves the state of the session as the best one. If that fails, it applies OnError.
// It returns no error, because an error would end the run without a checkpoint of the epoch.
func (e *earlyStop) saveBest(ctx context.Context, s *State, value float64) {
	dir, err := e.folder(s.Epoch)
	if err == nil {
		err = e.disk.Change("save", dir, func() error {
			return s.Session.Save(context.WithoutCancel(ctx), filepath.Join(dir, checkpoint.Variables))
		})
	}
	if err == nil {
		before := e.saved
		e.saved, e.bestEpoch, e.lost = dir, s.Epoch, nil
		if e.savedBest.reset(); !math.IsNaN(value) {
			e.savedBest.set(value)
		}
		if before != "" {
			_ = e.disk.Remove(before) // after an error, end removes it with the workspace
		}
		return
	}
	_ = e.disk.Remove(dir) // an incomplete state is useless
	if e.onError != Continue {
		e.failed = err
		s.Stop("the best state could not be written")
		return
	}
	if e.lost == nil {
		s.Log.Warn("training continues with the best state of an earlier epoch, or none", "best_epoch", e.bestEpoch, "error", notSaved(err))
	}
	e.lost = err
	s.Event(notSavedEvent)
}

func (e *earlyStop) end(ctx context.Context, s *State) error {
	if !e.restore {
		return nil
	}
	var err error
	switch {
	case e.failed != nil:
		err = notSaved(e.failed)
	case e.saved != "" && s.Err == nil:
		if err = s.Session.Restore(ctx, filepath.Join(e.saved, checkpoint.Variables)); err != nil {
			err = fmt.Errorf("restoring the best state, of epoch %d: %w", e.bestEpoch, err)
		} else {
			s.run.restored = true
			best := Metric{e.metric, math.NaN()}
			if e.savedBest.known {
				best.Value = e.savedBest.best
			}
			s.Log.Info(fmt.Sprintf("restored the weights of epoch %d (%s %s)", e.bestEpoch, best.Name, best.text()))
		}
	}
	if e.own {
		if left := e.disk.Remove(e.workspace()); left != nil && e.onError != Continue {
			err = errors.Join(err, left)
		}
	}
	if e.scratch != "" {
		_ = e.remove() // after an error, the next run removes the folder
		e.scratch = ""
	}
	return err
}

// ReduceOnPlateau is a hook that multiplies the learning rate by Factor when a metric, such as
// "val_loss", no longer improves. It decides like the Keras callback ReduceLROnPlateau. It
// needs Loop.LearningRate. The epoch of a reduction has the event "learning_rate".
func ReduceOnPlateau(metric string, given ...Option) Hook {
	p := &plateau{options: options{monitor: monitor{metric: metric, patience: 10, minDelta: 1e-4}, factor: 0.1}.with(given)}
	return Hook{
		Name: "reduce_on_plateau(" + metric + ")",
		Load: p.load, Save: p.save, Start: p.start, Epoch: p.epoch, metric: p.finder("ReduceOnPlateau"),
	}
}

type plateau struct {
	options
	wait, cooling int
}

type plateauState struct {
	Best    *number `json:"best,omitempty"`
	Wait    int     `json:"wait"`
	Cooling int     `json:"cooldown"`
}

func (p *plateau) load(_ string, state json.RawMessage) error {
	p.reset()
	p.wait, p.cooling = 0, 0
	if state == nil {
		return nil
	}
	var loaded plateauState
	if err := json.Unmarshal(state, &loaded); err != nil {
		return fmt.Errorf("reading its state: %w", err)
	}
	p.setState(loaded.Best)
	p.wait, p.cooling = loaded.Wait, loaded.Cooling
	return nil
}

func (p *plateau) save(string) (json.RawMessage, error) {
	return json.Marshal(plateauState{Best: p.state(), Wait: p.wait, Cooling: p.cooling})
}

func (p *plateau) start(_ context.Context, s *State) error {
	if err := p.monitor.check("ReduceOnPlateau", s); err != nil {
		return err
	}
	if err := p.check("ReduceOnPlateau", "Patience", "MinDelta", "Mode", "Factor", "Cooldown", "MinRate"); err != nil {
		return err
	}
	if _, ok := s.LearningRate(); !ok {
		return &option.Error{Option: "ReduceOnPlateau", Reason: "the learning rate is not known", Fix: "set {Loop.LearningRate}"}
	}
	if !(p.factor > 0 && p.factor < 1) {
		return &option.Error{Option: "Factor", Value: p.factor, Reason: "expected a number above 0 and below 1, as in 0.1"}
	}
	if p.cooldown < 0 || !validRate(p.minRate) {
		return &option.Error{Option: "ReduceOnPlateau", Reason: fmt.Sprintf("Cooldown is %d and MinRate %v, expected at least 0", p.cooldown, p.minRate)}
	}
	return nil
}

func (p *plateau) epoch(_ context.Context, s *State) error {
	value, ok := s.Record.Metrics.Get(p.metric)
	if !ok {
		return nil
	}
	if p.cooling > 0 {
		p.cooling--
		p.wait = 0
	}
	if p.improves(value) {
		p.set(value)
		p.wait = 0
		return nil
	}
	if p.cooling > 0 {
		return nil
	}
	p.wait++
	rate, _ := s.LearningRate()
	if p.wait < p.patience || rate <= p.minRate {
		return nil
	}
	s.ScaleLearningRate(max(p.factor, p.minRate/rate))
	s.Event("learning_rate")
	p.cooling, p.wait = p.cooldown, 0
	return nil
}
