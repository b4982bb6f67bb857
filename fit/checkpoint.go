package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/files"
	"steadyfit/internal/texts"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// Checkpoint writes checkpoints to folders Folder/ckpt-<step>, from which Loop.Resume resumes.
// It also writes one when a run ends, even if the run was cancelled, but not after an error of
// the session or of a hook. A checkpoint has the files of the model (variables.*), the history
// (history.jsonl), and state.json with the position of the training.
//
// The files are written while the next steps run, if the Session supports it (session.Session).
// Training waits for an unfinished checkpoint before the next one, after a failed step, and at its
// end. Training waits for every checkpoint if Foreground is set, if there are several ranks, or if
// two copies of the variables do not fit in memory.
//
// The folder belongs to one training. Checkpoint locks it during a run, and a second run gets an
// ErrLocked. A file system without locks causes a warning; NFS has locks unless it is mounted with
// nolock or local_lock.
//
// If a checkpoint cannot be written, the run ends with a *WriteError. The newest good checkpoint is
// never removed.
//
// When the run starts, Checkpoint reads the training and the validation data once to identify
// them; see session.ErrMismatch.
type Checkpoint struct {
	Folder string
	// EverySteps and EveryEpochs are the intervals between checkpoints, in train steps counted
	// from the beginning of the training, and in epochs. If both are 0, EveryEpochs is 1.
	EverySteps, EveryEpochs int
	// Keep is the number of newest checkpoints to keep, besides the best one; 0 means 3, and a
	// negative number keeps all.
	Keep int
	// Best is a metric, such as "val_loss". A checkpoint is also written after every epoch in
	// which it reaches a new best value; best.json names the best checkpoint, which is kept. BestMode is
	// "min" if low values are better, or "max"; by default, the name decides (EarlyStop.Mode).
	Best, BestMode string
	// MinDelta is the least change to a new best value (EarlyStop.MinDelta).
	MinDelta float64
	// RestoreBest restores the weights of the best checkpoint when a run ends without an error, and logs its
	// epoch. It needs Best.
	RestoreBest bool
	// Temporary means that the folder is removed after the run. No checkpoint is then written when the run ends, and
	// neither the history nor an error names one.
	Temporary bool
	// Foreground makes training wait for each checkpoint. No step then needs memory for a copy of the
	// variables, which would count towards a memory budget.
	Foreground bool
	disk       files.Disk
}

// ErrLocked means that another run uses the folder of checkpoints. Nothing was trained.
var ErrLocked = checkpoint.ErrLocked

// CheckpointInfo describes a checkpoint on disk. Variables is the prefix for Session.Restore. Err is nil if
// the checkpoint is intact; otherwise only Path and Step are set.
type CheckpointInfo = checkpoint.Info

// Checkpoints returns the checkpoints of a folder, newest first, and verifies their files. A folder
// that does not exist has no checkpoints. Checkpoints takes no lock, so a run may remove checkpoints
// meanwhile.
func Checkpoints(folder string) ([]CheckpointInfo, error) { return checkpoint.List(folder) }

// Hook returns the hook for Loop.Hook.
func (o Checkpoint) Hook() Hook {
	c := &checkpointer{Checkpoint: o, epochPeriod: o.EveryEpochs,
		monitor: monitor{metric: o.Best, mode: o.BestMode, minDelta: o.MinDelta}}
	if o.EverySteps == 0 && o.EveryEpochs == 0 {
		c.epochPeriod = 1
	}
	h := Hook{
		Name: "checkpoint", StepEvery: cmp.Or(o.EverySteps, AnyStep), Priority: priorityCheckpoint, local: true,
		Load: c.load, Save: c.save, Start: c.start, Step: c.step, Epoch: c.epoch, End: c.end,
	}
	if o.Best != "" {
		h.metric = c.finder("Checkpoint.Best")
	}
	return h
}

type checkpointer struct {
	Checkpoint
	monitor
	folder      *checkpoint.Folder
	bestOne     *checkpoint.Best
	epochPeriod int
	// lastStep and lastDone are the numbers of steps and epochs at the newest checkpoint, or at
	// the start of the run.
	lastStep int64
	lastDone int
	// beside is the checkpoint that is being written while steps run, or nil.
	beside *writing
	// failed is the error of the checkpoint of the last epoch.
	failed error
	// crowded is true once the run has logged that memory is too small to write checkpoints while
	// steps run.
	crowded bool
}

// writing is a checkpoint that is being written, or was written.
type writing struct {
	written
	epochs int
	err    error
	// done is closed when a checkpoint that is written while steps run is complete or has failed.
	done chan struct{}
}

func (c *checkpointer) load(state json.RawMessage) error {
	c.bestOne, c.monitor.Best = nil, nil
	if state == nil || c.metric == "" {
		return nil
	}
	var best checkpoint.Best
	if err := json.Unmarshal(state, &best); err != nil {
		return fmt.Errorf("reading the state of Best: %w", err)
	}
	if best.Metric == c.metric {
		c.monitor.set(float64(best.Value))
		c.bestOne = &best
	}
	return nil
}

func (c *checkpointer) save() (json.RawMessage, error) {
	if c.bestOne == nil {
		return nil, nil
	}
	return json.Marshal(c.bestOne)
}

func (c *checkpointer) start(ctx context.Context, s *State) error {
	if c.Folder == "" {
		return &option.Error{Option: "Checkpoint", Reason: "it has no folder",
			Fix: "name one that is for this training alone"}
	}
	for name, interval := range map[string]int{"EverySteps": c.EverySteps, "EveryEpochs": c.EveryEpochs} {
		if interval < 0 {
			return &option.Error{Option: name, Value: interval, Reason: "expected at least 0"}
		}
	}
	if c.metric != "" {
		if err := c.monitor.check("Checkpoint.Best"); err != nil {
			return err
		}
	} else if c.RestoreBest {
		return &option.Error{Option: "RestoreBest", Reason: "no metric says which checkpoint is best",
			Fix: "set {Checkpoint.Best} or {Loop.Validation}"}
	}
	if err := c.findBest(s); err != nil {
		return err
	}
	c.lastStep, c.lastDone, c.beside, c.failed, c.crowded = s.Step, s.EpochsDone, nil, nil, false
	var err error
	c.folder, err = checkpoint.Open(c.Folder, checkpoint.Options{
		Keep: max(cmp.Or(c.Keep, 3), 0), ResumedFrom: s.History.ResumedFrom, Step: s.Step,
		Lock: s.run.lock, Best: c.bestOne, Temporary: c.Temporary, Disk: c.disk, Log: s.Log,
	})
	if err != nil {
		return err
	}
	s.run.checkpoints = append(s.run.checkpoints, c)
	// The first call of Freeze takes longer than later calls, so it is made here.
	if frozen := c.freeze(s); frozen != nil {
		if err := frozen.Close(); err != nil {
			return err
		}
	}
	// identify reads all data, which takes as long as an epoch. It runs here so that its time
	// is not part of an epoch, and so that it does not delay the checkpoint after Ctrl-C.
	_, err = s.run.identify(ctx)
	return err
}

// findBest forgets a best checkpoint that was removed. RestoreBest needs one if earlier epochs have the metric.
func (c *checkpointer) findBest(s *State) error {
	if c.bestOne != nil && files.IsMissing(c.bestPath()) {
		s.Log.Warn("the best checkpoint is gone", "checkpoint", c.bestPath())
		c.bestOne, c.monitor.Best = nil, nil
	}
	if c.RestoreBest && c.bestOne == nil && slices.ContainsFunc(s.History.Records, func(r Record) bool {
		value, ok := r.Metrics.Get(c.metric)
		return ok && c.improves(value)
	}) {
		return &option.Error{Option: "RestoreBest",
			Reason: fmt.Sprintf("the resumed training has epochs with %s, but no best checkpoint of them", c.metric),
			Fix:    "start a new training, or leave this option out"}
	}
	return nil
}

func (c *checkpointer) bestPath() string { return filepath.Join(c.Folder, c.bestOne.Checkpoint) }

func (c *checkpointer) step(_ context.Context, s *State) error {
	if err := c.settle(s, false); err != nil {
		return err
	}
	// The checkpoint for the last step of an epoch is written by the method epoch.
	if c.EverySteps > 0 && s.Step%int64(c.EverySteps) == 0 && s.EpochStep < s.StepsPerEpoch {
		return c.write(s, false)
	}
	return nil
}

func (c *checkpointer) epoch(_ context.Context, s *State) error {
	if err := c.settle(s, false); err != nil {
		return err
	}
	due := (c.EverySteps > 0 && s.Step%int64(c.EverySteps) == 0) || (c.epochPeriod > 0 && s.Epoch%c.epochPeriod == 0)
	if value, ok := s.Record.Metrics.Get(c.metric); ok && c.improves(value) {
		c.monitor.set(value)
		c.bestOne = checkpoint.NewBest(s.Step, c.metric, value)
		due = true
	}
	if !due {
		return nil
	}
	err := c.write(s, false)
	if s.LastStep() {
		// An error of this function would hide that the training is complete.
		c.failed, err = err, nil
	}
	return err
}

// end does not unlock the folder, because other hooks may still write to it.
func (c *checkpointer) end(ctx context.Context, s *State) error {
	err := c.last(s)
	if s.Err != nil || !c.RestoreBest || c.bestOne == nil {
		return err
	}
	if c.bestOne.Step != s.Step { // otherwise the session has the weights, also if they could not be written
		if restored := s.Session.Restore(ctx, filepath.Join(c.bestPath(), checkpoint.Variables)); restored != nil {
			return join(err, fmt.Errorf("restoring the best weights, of %s: %w", c.bestPath(), restored))
		}
	}
	for _, r := range s.History.Records {
		if r.Step == c.bestOne.Step {
			s.History.Restored = r.Epoch
		}
	}
	s.Log.Info(fmt.Sprintf("restored the weights of epoch %d (%s %s)", s.History.Restored, c.metric,
		Metric{c.metric, float64(c.bestOne.Value)}.text()))
	return err
}

// last writes the last checkpoint of a run.
func (c *checkpointer) last(s *State) error {
	err := join(c.failed, c.settle(s, true))
	// After a return to a snapshot, the run may have fewer steps than the newest checkpoint.
	if err != nil || c.Temporary || !s.run.sound || s.Step < s.run.trained ||
		(s.Step <= c.lastStep && s.EpochsDone == c.lastDone) {
		return err
	}
	return c.write(s, true)
}

// write writes a checkpoint and removes old ones, while the next steps run if that is possible.
func (c *checkpointer) write(s *State, ending bool) error {
	if err := c.settle(s, true); err != nil {
		return err
	}
	began := time.Now()
	defer func() { s.run.tally.Pause += seconds(time.Since(began)) }()
	var frozen session.Frozen
	if !ending && !s.LastStep() {
		frozen = c.freeze(s)
	}
	c.folder.Best = c.bestOne
	w := &writing{written: written{step: s.Step}, epochs: s.EpochsDone}
	save := s.run.save(c.disk, frozen)
	write := func() {
		w.err = c.folder.Write(w.step, save)
		w.time, w.took = time.Now(), time.Since(began)
	}
	if frozen == nil {
		write()
		return c.finish(s, w)
	}
	w.done = make(chan struct{})
	c.beside = w
	go func() {
		defer close(w.done)
		write()
		w.err = join(w.err, frozen.Close())
	}()
	return nil
}

// freeze returns the state of the session for a checkpoint that is written while steps run; nil if
// training has to wait for the checkpoint.
func (c *checkpointer) freeze(s *State) session.Frozen {
	if c.Foreground {
		return nil
	}
	frozen, err := s.Session.Freeze(s.run.steady)
	if err != nil || frozen == nil {
		return nil // if the error lasts, Save returns it
	}
	// malloc may need more than the copy itself.
	size, left := frozen.Bytes(), cgroup.Available("self")
	if !left.Known() || left.Bytes >= 2*size {
		return frozen
	}
	if !c.crowded {
		c.crowded = true
		s.Log.Info("training waits for its checkpoints, because a copy of the variables may not fit in memory", "copy",
			memory.Bytes(size), "free", memory.Bytes(left.Bytes))
	}
	_ = frozen.Close() // frees memory, which does not fail
	return nil
}

func (c *checkpointer) await(s *State) {
	if c.beside == nil {
		return
	}
	began := time.Now()
	<-c.beside.done
	s.run.tally.Pause += seconds(time.Since(began))
}

// AwaitCheckpoint waits until no checkpoint is being written. The memory of its copy of the
// variables is then free.
func (s *State) AwaitCheckpoint() {
	for _, c := range s.run.checkpoints {
		c.await(s)
	}
}

// settle handles the result of a checkpoint that was written while steps ran. If wait is true, it
// first waits until the checkpoint is complete.
func (c *checkpointer) settle(s *State, wait bool) error {
	if wait {
		c.await(s)
	}
	w := c.beside
	if w == nil {
		return nil
	}
	select {
	case <-w.done:
		c.beside = nil
		return c.finish(s, w)
	default:
		return nil
	}
}

// finish handles the result of writing a checkpoint.
func (c *checkpointer) finish(s *State, w *writing) error {
	s.History.Checkpoint = c.folder.Newest
	if w.err == nil {
		s.run.written = w.written
		c.lastStep, c.lastDone = w.step, w.epochs
	}
	return w.err
}

// savedState is the content of state.json.
type savedState struct {
	checkpoint.Manifest
	Position
	Sums []metricSum `json:"epoch_sums"`
	tally
	Recovery json.RawMessage `json:"recovery,omitempty"`
	// Session is the state of the session other than variables.
	Session json.RawMessage `json:"session,omitempty"`
	// history is the content of the history file.
	history []byte
}

type metricSum struct {
	Name string      `json:"name"`
	Sum  texts.Float `json:"sum"`
}

// save captures the state of the run, and returns the function that writes the files of a checkpoint. If
// frozen is not nil, the function may be called while steps run.
func (r *run) save(d files.Disk, frozen session.Frozen) checkpoint.Save {
	state, failed := r.savedState()
	return func(dir string) (_ any, _ *checkpoint.Manifest, err error) {
		if failed != nil {
			return nil, nil, failed
		}
		if prefix := filepath.Join(dir, checkpoint.Variables); frozen != nil {
			err = frozen.Save(prefix)
		} else {
			err = r.state.Session.Save(r.steady, prefix)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("saving the model: %w", err)
		}
		return state, &state.Manifest, d.Write(filepath.Join(dir, checkpoint.History), state.history)
	}
}

func (r *run) savedState() (_ *savedState, err error) {
	s := &r.state
	saved := &savedState{Position: s.Position, tally: r.tally}
	saved.Events = slices.Clone(r.tally.Events)
	saved.Written = r.now().UTC().Format(time.RFC3339)
	saved.TrainTime = r.trainTime()
	if saved.Identity, err = r.identify(r.steady); err != nil {
		return nil, err
	}
	for i, name := range r.train.names {
		saved.Sums = append(saved.Sums, metricSum{name, texts.Float(s.sums[i])})
	}
	if o := r.loop.Recover; o != nil && o.Save != nil {
		if saved.Recovery, err = o.Save(); err != nil {
			return nil, fmt.Errorf("state of Loop.Recover: %w", err)
		}
	}
	if saved.Session, err = r.state.Session.State(); err != nil {
		return nil, fmt.Errorf("state of the session: %w", err)
	}
	if saved.history, err = historyLines(s.History.Records); err != nil {
		return nil, err
	}
	return saved, r.saveHooks(saved)
}

func (r *run) saveHooks(saved *savedState) error {
	saved.Hooks = map[string]json.RawMessage{}
	for i := range r.hooks {
		h := &r.hooks[i]
		if h.Save == nil {
			continue
		}
		state, err := h.Save()
		if err != nil {
			return fmt.Errorf("state of hook %s: %w", h.Name, err)
		}
		if state != nil {
			saved.Hooks[h.Name] = state
		}
	}
	return nil
}
