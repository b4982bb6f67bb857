package fit

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"steadyfit/memory"
)

// Observer receives the figures of a training, for example to show them on another machine. Package
// observe has observers for TensorBoard and Prometheus.
type Observer interface {
	// Observe receives one observation. It must not change it, and must return when ctx ends: the
	// training waits for it. Observations of a run arrive in order, the first one AtStart and the last
	// one AtEnd. An error is logged; it does not affect the training.
	Observe(ctx context.Context, o *Observation) error
}

// Moment is the time of an Observation in a run.
type Moment int

// The moments of observations.
const (
	AtStart Moment = iota // before the first train step
	AtStep                // after a train step
	AtEpoch               // after an epoch and its validation
	AtEnd                 // after the last train step
)

// Observation has the figures of a training at one moment.
type Observation struct {
	Moment Moment
	Time   time.Time

	// Step, EpochsDone and EpochStep have the same meaning as in State. Epochs and StepsPerEpoch
	// are the totals.
	Step                  int64
	EpochsDone, EpochStep int
	Epochs, StepsPerEpoch int
	// Steps and Samples count the train steps and samples of this run, without those before a resume.
	Steps, Samples int64
	// Metrics are the means of the current epoch so far, or with AtEpoch the metrics of Record.
	Metrics Metrics
	// LearningRate is the rate of the last step; nil if Loop.LearningRate is nil.
	LearningRate *float64
	// StepTime is the mean time of the train steps of the epoch so far; 0 if unknown.
	StepTime time.Duration

	// Memory and GPU are the memory of this process. They are read at most once a second within an
	// epoch, and unknown in observations without a reading.
	Memory memory.Usage
	GPU    memory.Reading
	// Budget, BudgetLayer and Restarts are copied from Observers.
	Budget      memory.Bytes
	BudgetLayer memory.Layer
	Restarts    int
	// CheckpointStep is the train step of the newest checkpoint, and CheckpointTime the time at which it
	// was written; zero if there is none. CheckpointTook is the duration of writing, including steps
	// that ran meanwhile; 0 if an earlier process wrote it. Record.CheckpointPause has the time without
	// steps.
	CheckpointStep int64
	CheckpointTime time.Time
	CheckpointTook time.Duration

	// Record describes the epoch AtEpoch, and is nil at other moments.
	Record *Record
	// Resumed reports whether the run resumed from a checkpoint. Earlier has the records of the epochs
	// before it, with AtStart.
	Resumed bool
	Earlier []Record
	// Done reports, AtEnd, whether the training is complete (History.Done).
	Done bool
}

// written describes a checkpoint that was written.
type written struct {
	step int64
	time time.Time
	took time.Duration
}

// Observers is a hook that passes the figures of a training to observers, one after the other. The next step
// waits for them, at most 5 seconds for each. An observer that takes longer gets only the observation AtEnd.
//
// There is an observation at the start, after each epoch, at the end, and after the first train step
// in each second. With several ranks, only the first one is observed.
type Observers struct {
	List []Observer
	// Budget is the limit of memory of the layer BudgetLayer; 0 means none. Restarts is the number of
	// restarts of the process.
	Budget      memory.Bytes
	BudgetLayer memory.Layer
	Restarts    int
}

const (
	observeEvery = time.Second
	observeMost  = 5 * time.Second
)

// Hook returns the hook for Loop.Hook.
func (o Observers) Hook() Hook {
	w := &observing{Observers: o}
	return Hook{
		Name: "observers", Priority: priorityReport, StepEvery: AnyStep, local: true,
		Start: w.start, Step: w.step, Epoch: w.epoch, End: w.end,
	}
}

type observing struct {
	Observers
	// failing and slow report, by observer, whether its last call failed, and whether one took too long.
	failing, slow []bool
	// counted is the position up to which steps and samples are counted.
	counted        Position
	steps, samples int64
	// last is the time of the last observation. read is the time of the last reading of
	// memory.
	last, read time.Time
}

func (w *observing) start(ctx context.Context, s *State) error {
	*w = observing{Observers: w.Observers, counted: s.Position, failing: make([]bool, len(w.List)),
		slow: make([]bool, len(w.List))}
	o := w.observe(s, AtStart, s.run.now())
	o.Earlier = s.History.Records[:len(s.History.Records):len(s.History.Records)]
	w.send(ctx, s, o)
	return nil
}

func (w *observing) step(ctx context.Context, s *State) error {
	w.count(s)
	now := s.run.now()
	if now.Sub(w.last) >= observeEvery {
		w.send(ctx, s, w.observe(s, AtStep, now))
	}
	return nil
}

func (w *observing) epoch(ctx context.Context, s *State) error {
	w.send(ctx, s, w.observe(s, AtEpoch, s.run.now()))
	return nil
}

func (w *observing) end(ctx context.Context, s *State) error {
	o := w.observe(s, AtEnd, s.run.now())
	o.Done = s.Err == nil && s.run.over()
	w.send(ctx, s, o)
	return nil
}

// count counts the steps and samples since the last call. The numbers of an epoch begin at 0, and a
// return to a snapshot lowers them.
func (w *observing) count(s *State) {
	before := w.counted
	if s.EpochsDone != before.EpochsDone {
		before.EpochSamples, before.UncountedSamples = 0, 0
	}
	w.steps += max(s.Step-before.Step, 0)
	w.samples += max(s.EpochSamples+s.UncountedSamples-before.EpochSamples-before.UncountedSamples, 0)
	w.counted = s.Position
}

func (w *observing) observe(s *State, moment Moment, now time.Time) *Observation {
	w.last = now
	o := &Observation{
		Moment: moment, Time: now,
		Step: s.Step, EpochsDone: s.EpochsDone, EpochStep: s.EpochStep, Epochs: s.Epochs, StepsPerEpoch: s.StepsPerEpoch,
		Steps: w.steps, Samples: w.samples,
		Budget: w.Budget, BudgetLayer: w.BudgetLayer, Restarts: w.Restarts,
		CheckpointStep: s.run.written.step, CheckpointTime: s.run.written.time, CheckpointTook: s.run.written.took,
		Resumed: s.History.ResumedFrom != "",
	}
	if rate, ok := s.LearningRate(); ok {
		o.LearningRate = &rate
	}
	if moment == AtEpoch {
		record := *s.Record
		record.Events = slices.Clone(record.Events) // later hooks change them
		o.Record, o.Metrics, o.Memory, o.GPU = &record, record.Metrics, record.Memory, record.GPU
		if record.StepsPerSecond > 0 {
			o.StepTime = time.Duration(float64(time.Second) / record.StepsPerSecond)
		}
		return o
	}
	if s.EpochStep > 0 {
		o.Metrics = s.Running()
		o.StepTime = time.Duration(s.run.trainTime()) / time.Duration(s.EpochStep)
	}
	if now.Sub(w.read) >= observeEvery {
		w.read = now
		o.Memory, _ = memory.Read() // unknown without /proc
		_, o.GPU = s.Session.Usage()
	}
	return o
}

func (w *observing) send(ctx context.Context, s *State, o *Observation) {
	for i, observer := range w.List {
		if w.slow[i] && o.Moment != AtEnd {
			continue
		}
		// The end of ctx ends the training, which is observed, too.
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), observeMost)
		err := observer.Observe(limited, o)
		late := limited.Err()
		cancel()
		switch {
		case late != nil && !w.slow[i]:
			s.Log.Warn("an observer of the training is too slow, and gets only the last observation; training continues",
				"limit", observeMost, "error", cmp.Or(err, late))
		case err != nil && !w.failing[i]:
			s.Log.Warn("an observer of the training failed; training continues", "error", err)
		}
		w.failing[i], w.slow[i] = err != nil, late != nil
	}
}

// Scalar is a figure as TensorBoard shows it.
type Scalar struct {
	// Run is "train" or "validation".
	Run  string
	Name string
	Step int64
	// Value is the value of the metric; it may be NaN or infinite.
	Value float64
}

// Scalars returns the figures of an epoch with the names that Keras's callback TensorBoard gives them
// (keras/src/callbacks/tensorboard.py, Keras 3.15): epoch_NAME, whose step is the number of the epoch
// from 0, and for a validation evaluation_NAME_vs_iterations, whose step is the train step. Times,
// shares and memory in bytes have the names time/NAME and memory/NAME, at the train step.
func (r *Record) Scalars() (list []Scalar) {
	epoch := int64(r.Epoch) - 1
	add := func(name string, step int64, value float64) {
		list = append(list, Scalar{Run: "train", Name: name, Step: step, Value: value})
	}
	for _, m := range r.Metrics {
		if name, validates := strings.CutPrefix(m.Name, validationPrefix); validates {
			list = append(list, Scalar{Run: "validation", Name: "epoch_" + name, Step: epoch, Value: m.Value},
				Scalar{Run: "validation", Name: "evaluation_" + name + "_vs_iterations", Step: r.Step, Value: m.Value})
		} else {
			add("epoch_"+m.Name, epoch, m.Value)
		}
	}
	if r.LearningRate != nil {
		add("epoch_learning_rate", epoch, *r.LearningRate)
	}
	if r.StepsPerSecond > 0 {
		add("epoch_steps_per_second", epoch, r.StepsPerSecond)
		add("time/step_seconds", r.Step, 1/r.StepsPerSecond)
	}
	if r.DataWait != nil {
		add("time/data_wait", r.Step, *r.DataWait)
	}
	for _, layer := range []struct {
		name string
		memory.Reading
	}{{"rss", r.Memory.RSS}, {"anon", r.Memory.Anon}, {"file", r.Memory.File}, {"peak", r.Memory.Peak}, {"gpu", r.GPU}} {
		if layer.OK {
			add("memory/"+layer.name, r.Step, float64(layer.Bytes))
		}
	}
	return list
}
