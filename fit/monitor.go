package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"steadyfit/option"
)

// Words in the names of metrics for which low or high values are better.
var (
	lowWords = []string{"loss", "error", "mae", "mse", "rmse", "mape", "msle", "perplexity", "crossentropy", "entropy",
		"divergence", "hinge"}
	highWords = []string{"accuracy", "acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "dice", "r2",
		"specificity", "sensitivity"}
)

// guessMode returns "min" or "max", or "" for an unknown name.
func guessMode(metric string) string {
	words := strings.FieldsFunc(strings.ToLower(metric), func(r rune) bool { return strings.ContainsRune("_ -()", r) })
	for _, word := range slices.Backward(words) {
		switch {
		case slices.Contains(highWords, word):
			return "max"
		case slices.Contains(lowWords, word):
			return "min"
		}
	}
	return ""
}

// monitor compares the values of a metric. Its exported fields are the state of a hook in checkpoints.
type monitor struct {
	metric   string
	mode     string
	patience int
	minDelta float64

	// Best is nil if there is no best value yet.
	Best *number `json:"best,omitempty"`
	// Wait is the number of epochs without improvement.
	Wait int `json:"wait"`
	// Stopped is the epoch after which EarlyStop stopped the run, or 0.
	Stopped int `json:"stopped,omitempty"`
	// Cooling is the number of epochs that ReduceOnPlateau still ignores.
	Cooling int `json:"cooldown,omitempty"`
}

func (m *monitor) set(value float64) { m.Best = (*number)(&value) }

func (m *monitor) load(state json.RawMessage) error {
	m.Best, m.Wait, m.Stopped, m.Cooling = nil, 0, 0, 0
	if state == nil {
		return nil
	}
	if err := json.Unmarshal(state, m); err != nil {
		return fmt.Errorf("reading its state: %w", err)
	}
	return nil
}

func (m *monitor) save() (json.RawMessage, error) { return json.Marshal(m) }

func (m *monitor) improves(value float64) bool {
	return m.Best == nil && !math.IsNaN(value) || m.Best != nil && m.beats(value, float64(*m.Best))
}

// beats reports whether value is better than other by more than minDelta. NaN is never better.
func (m *monitor) beats(value, other float64) bool {
	delta := math.Abs(m.minDelta)
	if m.mode == "max" {
		return value-delta > other
	}
	return value+delta < other
}

// finder returns the function Hook.metric for the option with a name.
func (m *monitor) finder(name string) func([]string, bool) error {
	return func(available []string, validates bool) error {
		if slices.Contains(available, m.metric) {
			return nil
		}
		remedy := "use one of " + strings.Join(available, ", ")
		if strings.HasPrefix(m.metric, validationPrefix) && !validates {
			remedy += ", or set {Loop.Validation} to have validation metrics"
		}
		return &option.Error{Option: name, Value: m.metric, Reason: "there is no such metric", Fix: remedy}
	}
}

// check checks the options of the hook, and sets the mode if it is empty.
func (m *monitor) check(name string) error {
	if m.patience < 0 {
		return &option.Error{Option: name, Value: m.metric,
			Reason: fmt.Sprintf("the patience is %d, expected at least 0", m.patience)}
	}
	switch m.mode = cmp.Or(m.mode, guessMode(m.metric)); m.mode {
	case "min", "max":
	case "":
		return &option.Error{Option: name, Value: m.metric, Reason: "the name does not say whether low or high is better",
			Fix: "give the mode, min or max"}
	default:
		return &option.Error{Option: name, Value: m.metric,
			Reason: fmt.Sprintf("the mode is %q, expected min or max", m.mode)}
	}
	return nil
}

// EarlyStop stops training when a metric, such as "val_loss", no longer improves. It decides
// like the Keras callback EarlyStopping, except that a metric that the run lacks is an error at
// the start, and that NaN is never an improvement. It ignores epochs without validation.
//
// If EarlyStop stopped a run, a resumed run stops at once unless Patience is higher.
type EarlyStop struct {
	Metric string
	// Mode is "min" if low values are better, or "max". By default, the metric's name decides: low
	// for losses and errors, high for accuracies, areas and scores. If the name does not decide,
	// the error is an *option.Error.
	Mode string
	// Patience is the number of epochs without improvement after which the training stops.
	Patience int
	// MinDelta is the smallest improvement that counts.
	MinDelta float64
	// Baseline is a value that the metric must beat. An epoch whose metric does not beat Baseline
	// counts as one without improvement. The default is none.
	Baseline *float64
	// StartFrom is the number of epochs at the beginning that are ignored.
	StartFrom int
}

// Hook returns the hook for Loop.Hook.
func (o EarlyStop) Hook() Hook {
	e := &earlyStop{EarlyStop: o, monitor: monitor{metric: o.Metric, mode: o.Mode, patience: o.Patience,
		minDelta: o.MinDelta}}
	return Hook{
		Name: "early_stop(" + o.Metric + ")",
		Load: e.load, Save: e.save, Start: e.start, Epoch: e.epoch, metric: e.finder("EarlyStop"),
		settings: o,
	}
}

type earlyStop struct {
	EarlyStop
	monitor
}

func (e *earlyStop) start(_ context.Context, s *State) error {
	if err := e.monitor.check("EarlyStop"); err != nil {
		return err
	}
	if e.Stopped > 0 {
		if e.Wait >= e.patience {
			s.Finish(e.reason())
		} else {
			e.Stopped = 0
		}
	}
	return nil
}

func (e *earlyStop) reason() string {
	return fmt.Sprintf("early stop after epoch %d: %s has not improved for %d epochs", e.Stopped, e.metric, e.Wait)
}

func (e *earlyStop) epoch(_ context.Context, s *State) error {
	value, ok := s.Record.Metrics.Get(e.metric)
	if !ok || s.Epoch <= e.StartFrom {
		return nil
	}
	e.Wait++
	if e.improves(value) {
		e.set(value)
		if e.Baseline == nil || e.beats(value, *e.Baseline) {
			e.Wait = 0
		}
		return nil
	}
	if e.Wait >= e.patience && s.Epoch > 1 {
		e.Stopped = s.Epoch
		s.Finish(e.reason())
	}
	return nil
}

// ReduceOnPlateau multiplies the learning rate by Factor when a metric, such as "val_loss", no
// longer improves. It decides like the Keras callback ReduceLROnPlateau. It needs
// Loop.LearningRate. The epoch of a reduction has the event "learning_rate".
type ReduceOnPlateau struct {
	Metric string
	// Mode is "min" or "max"; see EarlyStop.Mode.
	Mode string
	// Factor is above 0 and below 1. 0 means 0.1.
	Factor float64
	// Patience is the number of epochs without improvement after which the rate is reduced. 0
	// means 10.
	Patience int
	// MinDelta is the smallest improvement that counts. 0 means 0.0001.
	MinDelta float64
	// Cooldown is the number of epochs after a reduction that do not count.
	Cooldown int
	// MinRate is the lowest learning rate.
	MinRate float64
}

// Hook returns the hook for Loop.Hook.
func (o ReduceOnPlateau) Hook() Hook {
	o.Factor = cmp.Or(o.Factor, 0.1)
	p := &plateau{ReduceOnPlateau: o, monitor: monitor{metric: o.Metric, mode: o.Mode, patience: cmp.Or(o.Patience, 10),
		minDelta: cmp.Or(o.MinDelta, 1e-4)}}
	return Hook{
		Name: "reduce_on_plateau(" + o.Metric + ")",
		Load: p.load, Save: p.save, Start: p.start, Epoch: p.epoch, metric: p.finder("ReduceOnPlateau"),
		settings: o,
	}
}

type plateau struct {
	ReduceOnPlateau
	monitor
}

func (p *plateau) start(_ context.Context, s *State) error {
	if err := p.monitor.check("ReduceOnPlateau"); err != nil {
		return err
	}
	if _, ok := s.LearningRate(); !ok {
		return &option.Error{Option: "ReduceOnPlateau", Reason: "the learning rate is not known",
			Fix: "set {Loop.LearningRate}"}
	}
	if !(p.Factor > 0 && p.Factor < 1) {
		return &option.Error{Option: "Factor", Value: p.Factor, Reason: "expected a number above 0 and below 1, as in 0.1"}
	}
	if p.Cooldown < 0 || !validRate(p.MinRate) {
		return &option.Error{Option: "ReduceOnPlateau", Reason: fmt.Sprintf("Cooldown is %d and MinRate %v, expected at "+
			"least 0", p.Cooldown, p.MinRate)}
	}
	return nil
}

func (p *plateau) epoch(_ context.Context, s *State) error {
	value, ok := s.Record.Metrics.Get(p.metric)
	if !ok {
		return nil
	}
	if p.Cooling > 0 {
		p.Cooling--
		p.Wait = 0
	}
	if p.improves(value) {
		p.set(value)
		p.Wait = 0
		return nil
	}
	if p.Cooling > 0 {
		return nil
	}
	p.Wait++
	rate, _ := s.LearningRate()
	if p.Wait < p.patience || rate <= p.MinRate {
		return nil
	}
	s.RateScale *= max(p.Factor, p.MinRate/rate) // of all later epochs
	s.Event("learning_rate")
	p.Cooling, p.Wait = p.Cooldown, 0
	return nil
}
