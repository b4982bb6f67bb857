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

	"steadyfit/fit/checkpoint"
	"steadyfit/fit/internal/disk"
	"steadyfit/internal/files"
	"steadyfit/option"
)

// Direction says which values of a metric are better.
type Direction int

const (
	// Auto goes by the metric's name: losses and errors should be low,
	// accuracies, areas and scores high. A name that does not tell is an error.
	Auto Direction = iota
	// Min means that lower is better.
	Min
	// Max means that higher is better.
	Max
)

// The words in metric names that Auto knows.
var (
	lowWords  = []string{"loss", "error", "mae", "mse", "rmse", "mape", "msle", "perplexity", "crossentropy", "entropy", "divergence", "hinge"}
	highWords = []string{"accuracy", "acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "dice", "r2", "specificity", "sensitivity"}
)

// guessDirection goes by the words of a metric's name, between underscores.
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
	return Auto, false
}

// monitor follows a metric.
type monitor struct {
	metric    string
	direction Direction
	patience  int
	minDelta  float64
	resolved  Direction

	// known is false while there is no best value.
	known bool
	best  float64
}

func (m *monitor) reset() { m.known, m.best = false, 0 }

func (m *monitor) set(value float64) { m.known, m.best = true, value }

// improves reports whether a value is better than the best so far.
func (m *monitor) improves(value float64) bool {
	return (!m.known && !math.IsNaN(value)) || (m.known && m.beats(value, m.best))
}

// beats reports whether a value is better than another by more than minDelta.
// NaN is never better.
func (m *monitor) beats(value, other float64) bool {
	delta := math.Abs(m.minDelta)
	if m.resolved == Max {
		return value-delta > other
	}
	return value+delta < other
}

// check finds out whether this run has the metric, and its direction.
func (m *monitor) check(name string, s *State) error {
	available := s.Available()
	if !slices.Contains(available, m.metric) {
		remedy := "use one of " + strings.Join(available, ", ")
		if strings.HasPrefix(m.metric, validationPrefix) && s.run.loop.Validation == nil {
			remedy += ", or set {Loop.Validation} for those of a validation"
		}
		return &option.Error{Option: name, Value: m.metric, Reason: "there is no such metric", Fix: remedy}
	}
	if m.patience < 0 {
		return &option.Error{Option: name, Value: m.metric, Reason: fmt.Sprintf("the patience is %d, expected at least 0", m.patience)}
	}
	m.resolved = m.direction
	if m.resolved == Auto {
		guessed, ok := guessDirection(m.metric)
		if !ok {
			return &option.Error{Option: name, Value: m.metric, Reason: "the name does not say whether low or high is better", Fix: "give the direction, min or max"}
		}
		m.resolved = guessed
	}
	return nil
}

// EarlyStopOption is an option of EarlyStop.
type EarlyStopOption interface{ applyToEarlyStop(*earlyStop) }

// PlateauOption is an option of ReduceOnPlateau.
type PlateauOption interface{ applyToPlateau(*plateau) }

// MonitorOption is an option of every hook that waits for a metric to improve.
type MonitorOption func(*monitor)

func (o MonitorOption) applyToEarlyStop(e *earlyStop) { o(&e.monitor) }
func (o MonitorOption) applyToPlateau(p *plateau)     { o(&p.monitor) }

// Patience is the number of epochs without improvement after which the hook
// acts. The default is 0 for EarlyStop and 10 for ReduceOnPlateau.
func Patience(epochs int) MonitorOption { return func(m *monitor) { m.patience = epochs } }

// MinDelta is by how much a value has to be better to count as an improvement.
// The default is 0 for EarlyStop and 0.0001 for ReduceOnPlateau.
func MinDelta(delta float64) MonitorOption { return func(m *monitor) { m.minDelta = delta } }

// Mode says which values are better; the default is Auto.
func Mode(d Direction) MonitorOption { return func(m *monitor) { m.direction = d } }

type earlyStopOption func(*earlyStop)

func (o earlyStopOption) applyToEarlyStop(e *earlyStop) { o(e) }

// Baseline is a value that the metric has to beat: epochs that do not beat it
// count as being without improvement, even if they are better than the ones
// before.
func Baseline(value float64) EarlyStopOption {
	return earlyStopOption(func(e *earlyStop) { e.baseline = &value })
}

// RestoreBest gives the session the state of the best epoch at the end of the
// run, whether it was stopped early or not, unless it ended with an error. The
// state is kept in files in the folder dir, usually that of the checkpoints, or in
// a temporary one if dir is empty, and in checkpoints. What a process that was killed
// has left of them is removed by the next run. See OnError for what happens if they
// cannot be written.
func RestoreBest(dir string) EarlyStopOption {
	return earlyStopOption(func(e *earlyStop) { e.restore, e.dir = true, dir })
}

// StartFrom leaves the first epochs out of consideration.
func StartFrom(epochs int) EarlyStopOption {
	return earlyStopOption(func(e *earlyStop) { e.startFrom = epochs })
}

// EarlyStop is a hook that stops training when a metric, such as "val_loss",
// no longer improves. It decides as the Keras callback EarlyStopping does, with
// these differences: a metric that the run does not have is an error at its
// start, and NaN is never an improvement. Epochs without validation are passed
// over.
//
// A run that was stopped early and is resumed stops at once, unless Patience was
// raised.
func EarlyStop(metric string, options ...EarlyStopOption) Hook {
	e := &earlyStop{monitor: monitor{metric: metric}}
	for _, o := range options {
		o.applyToEarlyStop(e)
	}
	return Hook{
		Name: "early_stop(" + metric + ")",
		Load: e.load, Save: e.save, Start: e.start, Epoch: e.epoch, End: e.end,
	}
}

type earlyStop struct {
	monitor
	writing
	baseline  *float64
	startFrom int
	restore   bool
	dir       string
	// scratch is a temporary folder in the place of dir; remove removes it.
	scratch string
	remove  func() error

	wait      int
	bestEpoch int
	stopped   int
	// saved is the folder of the best state; empty if there is none. kept is the value
	// that it goes with, which is worse than the best if that could not be written.
	saved string
	kept  monitor
	// own is true once this run has made the workspace.
	own bool
	// lost is why a best state could not be written, while it is not; failed, why this
	// hook has stopped the run.
	lost, failed error
}

// earlyStopState is what EarlyStop remembers.
type earlyStopState struct {
	Best *number `json:"best,omitempty"`
	// BestEpoch is the epoch whose state is kept, or 0, and Kept its value if that is
	// not the best.
	BestEpoch int     `json:"best_epoch"`
	Kept      *number `json:"kept,omitempty"`
	Wait      int     `json:"wait"`
	// Stopped is the epoch after which it stopped the run, or 0.
	Stopped int `json:"stopped"`
}

func (e *earlyStop) workspace() string {
	return filepath.Join(cmp.Or(e.dir, e.scratch), ".best-"+url.PathEscape(e.metric))
}

func (e *earlyStop) load(dir string, state json.RawMessage) error {
	e.reset()
	e.kept.reset()
	e.wait, e.bestEpoch, e.stopped, e.saved, e.own, e.lost, e.failed = 0, 0, 0, "", false, nil, nil
	if err := e.writing.check(); err != nil {
		return err
	}
	if state == nil {
		return nil
	}
	var loaded earlyStopState
	if err := json.Unmarshal(state, &loaded); err != nil {
		return fmt.Errorf("reading its state: %w", err)
	}
	if loaded.Best != nil {
		e.set(float64(*loaded.Best))
	}
	e.bestEpoch, e.wait, e.stopped = loaded.BestEpoch, loaded.Wait, loaded.Stopped
	if !e.restore || disk.Missing(dir) {
		return nil
	}
	saved, err := e.folder(e.bestEpoch)
	if err == nil {
		err = e.disk.CopyFiles(dir, saved)
	}
	if err != nil && e.onError != Continue {
		return keptNot(err)
	}
	if e.lost = err; err != nil {
		e.bestEpoch = 0
		return nil
	}
	e.saved = saved
	if loaded.Kept != nil {
		e.kept.set(float64(*loaded.Kept))
	} else if e.known {
		e.kept.set(e.best)
	}
	return nil
}

// folder makes the folder for the state of an epoch.
func (e *earlyStop) folder(epoch int) (string, error) {
	if e.dir == "" && e.scratch == "" {
		var err error
		if e.scratch, e.remove, err = files.Scratch("steadyfit-best-"); err != nil {
			return "", err
		}
	}
	if !e.own {
		// What a process that was killed has left. The folder of checkpoints is locked by
		// now, or while it is resumed from.
		if err := e.disk.Remove(e.workspace()); err != nil {
			return "", err
		}
		e.own = true
	}
	dir := filepath.Join(e.workspace(), strconv.Itoa(epoch))
	return dir, e.disk.MakeDir(dir)
}

// keptNot says what an error of files is about.
func keptNot(err error) error {
	return fmt.Errorf("keeping the best state: %w; %s", err, files.Remedy(err, ""))
}

func (e *earlyStop) save(dir string) (json.RawMessage, error) {
	state := earlyStopState{BestEpoch: e.bestEpoch, Wait: e.wait, Stopped: e.stopped}
	if e.known {
		best := number(e.best)
		state.Best = &best
	}
	if e.saved != "" {
		if err := e.disk.CopyFiles(e.saved, dir); err != nil {
			return nil, err
		}
		if e.kept.known && e.kept.best != e.best {
			kept := number(e.kept.best)
			state.Kept = &kept
		}
	}
	return json.Marshal(state)
}

func (e *earlyStop) start(_ context.Context, s *State) error {
	if err := e.monitor.check("EarlyStop", s); err != nil {
		return err
	}
	if e.lost != nil {
		s.Log.Warn("training continues without the best state so far", "error", keptNot(e.lost))
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
	if e.restore && (e.saved == "" || !e.kept.known && !math.IsNaN(value) || e.kept.known && e.beats(value, e.kept.best)) {
		e.keep(ctx, s, value)
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

// notKeptEvent says in the history that the best state could not be written.
const notKeptEvent = "best_not_kept"

// keep saves the state of the session as that of the best epoch, or goes on or stops
// as the policy says. An error here would end the epoch for the hooks that have seen
// it, and so the run without a checkpoint of it.
func (e *earlyStop) keep(ctx context.Context, s *State, value float64) {
	dir, err := e.folder(s.Epoch)
	if err == nil {
		err = e.disk.Change("save", dir, func() error {
			return s.Session.Save(context.WithoutCancel(ctx), filepath.Join(dir, checkpoint.Variables))
		})
	}
	if err == nil {
		before := e.saved
		e.saved, e.bestEpoch, e.lost = dir, s.Epoch, nil
		if e.kept.reset(); !math.IsNaN(value) {
			e.kept.set(value)
		}
		if before != "" {
			_ = e.disk.Remove(before) // else with the workspace
		}
		return
	}
	_ = e.disk.Remove(dir) // half of a state would keep the disk full
	if e.onError != Continue {
		e.failed = err
		s.Stop("the best state could not be written")
		return
	}
	if e.lost == nil {
		s.Log.Warn("training continues with the best state of an earlier epoch, or none", "best_epoch", e.bestEpoch, "error", keptNot(err))
	}
	e.lost = err
	s.Event(notKeptEvent)
}

func (e *earlyStop) end(ctx context.Context, s *State) error {
	if !e.restore {
		return nil
	}
	var err error
	switch {
	case e.failed != nil:
		err = keptNot(e.failed)
	case e.saved != "" && s.Err == nil:
		if err = s.Session.Restore(ctx, filepath.Join(e.saved, checkpoint.Variables)); err != nil {
			err = fmt.Errorf("restoring the best state, of epoch %d: %w", e.bestEpoch, err)
		} else {
			s.run.restored = true
		}
	}
	if e.own {
		if left := e.disk.Remove(e.workspace()); left != nil && e.onError != Continue {
			err = errors.Join(err, left)
		}
	}
	if e.scratch != "" {
		_ = e.remove() // else the next run does
		e.scratch = ""
	}
	return err
}

type plateauOption func(*plateau)

func (o plateauOption) applyToPlateau(p *plateau) { o(p) }

// Factor is what the learning rate is multiplied by, above 0 and below 1; the
// default is 0.1.
func Factor(f float64) PlateauOption { return plateauOption(func(p *plateau) { p.factor = f }) }

// Cooldown is the number of epochs to wait after a reduction before counting
// again; the default is 0.
func Cooldown(epochs int) PlateauOption {
	return plateauOption(func(p *plateau) { p.cooldown = epochs })
}

// MinRate is the learning rate below which it is not reduced; the default is 0.
func MinRate(rate float64) PlateauOption { return plateauOption(func(p *plateau) { p.minRate = rate }) }

// ReduceOnPlateau is a hook that multiplies the learning rate by Factor when a
// metric, such as "val_loss", no longer improves. It decides as the Keras
// callback ReduceLROnPlateau does, and works on top of Loop.LearningRate, which
// has to be set. A reduction is the event "learning_rate" of its epoch.
func ReduceOnPlateau(metric string, options ...PlateauOption) Hook {
	p := &plateau{monitor: monitor{metric: metric, patience: 10, minDelta: 1e-4}, factor: 0.1}
	for _, o := range options {
		o.applyToPlateau(p)
	}
	return Hook{
		Name: "reduce_on_plateau(" + metric + ")",
		Load: p.load, Save: p.save, Start: p.start, Epoch: p.epoch,
	}
}

type plateau struct {
	monitor
	factor   float64
	cooldown int
	minRate  float64

	wait, cooling int
}

// plateauState is what ReduceOnPlateau remembers; the rate itself is the loop's.
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
	if loaded.Best != nil {
		p.set(float64(*loaded.Best))
	}
	p.wait, p.cooling = loaded.Wait, loaded.Cooling
	return nil
}

func (p *plateau) save(string) (json.RawMessage, error) {
	state := plateauState{Wait: p.wait, Cooling: p.cooling}
	if p.known {
		best := number(p.best)
		state.Best = &best
	}
	return json.Marshal(state)
}

func (p *plateau) start(_ context.Context, s *State) error {
	if err := p.check("ReduceOnPlateau", s); err != nil {
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
