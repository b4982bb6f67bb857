package fit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"steadyfit/internal/capability"
	"steadyfit/internal/cgroup"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/disk"
	"steadyfit/internal/jsonfloat"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// Checkpoint writes checkpoints to folders Folder/ckpt-<step>, from which Loop.Resume resumes.
// It also writes one when a run ends, even if the run was cancelled, but not after an error of
// the session or of a hook. Package checkpoint describes the format.
//
// The files are written while the next steps run, if the Session supports it (session.Session).
// Training waits for an unfinished checkpoint before the next one, after a failed step, and at its
// end. It waits for each checkpoint with several ranks, if a hook saves files (Hook.NoFiles), if two
// copies of the variables do not fit in memory, and with Foreground.
//
// The folder belongs to one training. Checkpoint locks it during a run, and a second run gets a
// checkpoint.ErrLocked. A file system without locks causes a warning; NFS has locks unless
// it is mounted with nolock or local_lock.
//
// If a checkpoint cannot be written, the run ends with a *checkpoint.Error, unless ContinueOnError is
// set. When the disk is full, Checkpoint removes old checkpoints before it writes the new
// one, provided that a good checkpoint remains.
//
// When the run starts, Checkpoint reads the training and the validation data once to identify
// them; see session.ErrMismatch.
type Checkpoint struct {
	Folder string
	// EverySteps and EveryEpochs are the intervals between checkpoints, in train steps counted
	// from the beginning of the training, and in epochs. If both are 0, EveryEpochs is 1.
	EverySteps, EveryEpochs int
	// Keep is the number of newest checkpoints to keep, besides the best one; 0 means 3, and a
	// negative number keeps all. If Keep is 1, the previous checkpoint is kept until a finite loss
	// shows that the newest one is good.
	Keep int
	// Best is a metric, such as "val_loss". A checkpoint is also written after every epoch in
	// which it reaches a new best value; best.json names the best checkpoint, which is kept.
	Best string
	// BestMode is "min" or "max"; see EarlyStop.Mode.
	BestMode string
	// ContinueOnError continues the training with a warning if a checkpoint cannot be written after
	// the beginning of a new training. The next attempt is made when the next checkpoint is due, at
	// the latest after the next epoch; the epoch has the event "checkpoint_failed". When the run
	// ends, it returns the error of a checkpoint that is still not written.
	ContinueOnError bool
	// EveryRank makes a rank other than the first write checkpoints, too, to a Folder of its own.
	// If the first rank has no checkpoint, Loop.Resume resumes all ranks from the newest checkpoint
	// of another rank.
	EveryRank bool
	// Foreground makes training wait for each checkpoint. No step then needs memory for a copy of the
	// variables, which would count towards a budget (package budget).
	Foreground bool
	disk       disk.Disk
}

// Hook returns the hook for Loop.Hook.
func (o Checkpoint) Hook() Hook {
	c := &checkpointer{Checkpoint: o, monitor: monitor{metric: o.Best, mode: o.BestMode}, epochPeriod: o.EveryEpochs}
	every := AnyStep
	if o.EverySteps > 0 {
		every = o.EverySteps
	} else if o.EveryEpochs == 0 {
		c.epochPeriod = 1
	}
	h := Hook{
		Name: "checkpoint", StepEvery: every, Priority: priorityCheckpoint,
		Load: c.load, Save: c.save, NoFiles: true, Start: c.start, Step: c.step, Epoch: c.epoch, End: c.end, metric: c.finder("Best"), local: !o.EveryRank,
	}
	if o.EveryRank {
		h.copies = o.Folder
	}
	return h
}

type checkpointer struct {
	Checkpoint
	monitor
	folder      *checkpoint.Folder
	bestOne     *checkpoint.Best
	epochPeriod int
	// owed is true if the last checkpoint that was due could not be written.
	owed bool
	// lastStep and lastDone are the numbers of steps and epochs at the newest checkpoint, or at
	// the start of the run.
	lastStep int64
	lastDone int
	// beside is the checkpoint that is being written while steps run, or nil.
	beside *writing
	// crowded is true once the run has logged that memory is too small to write checkpoints while
	// steps run.
	crowded bool
}

// writing is a checkpoint that is being written, or was written.
type writing struct {
	written
	epochs int
	// err is the error of writing, and tidy is the error of removing old checkpoints.
	err, tidy error
	// undo, if not nil, takes back the choice of the checkpoint as the best one.
	undo func()
	// done is closed when a checkpoint that is written while steps run is complete or has failed.
	done chan struct{}
}

func (c *checkpointer) load(_ string, state json.RawMessage) error {
	c.bestOne, c.owed = nil, false
	c.monitor.reset()
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

func (c *checkpointer) save(string) (json.RawMessage, error) {
	if c.bestOne == nil {
		return nil, nil
	}
	return json.Marshal(c.bestOne)
}

func (c *checkpointer) start(ctx context.Context, s *State) error {
	if c.Folder == "" {
		return &option.Error{Option: "Checkpoint", Reason: "it has no folder", Fix: "name one that is for this training alone"}
	}
	for name, interval := range map[string]int{"EverySteps": c.EverySteps, "EveryEpochs": c.EveryEpochs} {
		if interval < 0 {
			return &option.Error{Option: name, Value: interval, Reason: "expected at least 0"}
		}
	}
	if c.metric != "" {
		if err := c.monitor.check("Best", s); err != nil {
			return err
		}
	}
	c.lastStep, c.lastDone, c.beside, c.crowded = s.Step, s.EpochsDone, nil, false
	var err error
	c.folder, err = checkpoint.Open(c.Folder, checkpoint.Options{
		Keep: max(cmp.Or(c.Keep, 3), 0), Tolerate: c.ContinueOnError, ResumedFrom: s.History.ResumedFrom, Step: s.Step, Skipped: s.run.skipped,
		Logs: s.run.logs, Best: c.bestOne, Disk: c.disk, Log: s.Log,
	})
	if err != nil {
		return err
	}
	c.bestOne, c.owed = c.folder.Best, c.folder.Unwritable
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

func (c *checkpointer) step(_ context.Context, s *State) error {
	if err := c.settle(s, false); err != nil {
		return err
	}
	// The checkpoint for the last step of an epoch is written by the method epoch.
	if c.EverySteps > 0 && s.Step%int64(c.EverySteps) == 0 && s.EpochStep < s.StepsPerEpoch {
		return c.write(s, false, nil)
	}
	return nil
}

func (c *checkpointer) epoch(_ context.Context, s *State) error {
	// The best value so far depends on a best checkpoint that is being written.
	if err := c.settle(s, c.beside != nil && c.beside.undo != nil); err != nil {
		return err
	}
	due := c.owed || (c.EverySteps > 0 && s.Step%int64(c.EverySteps) == 0) || (c.epochPeriod > 0 && s.Epoch%c.epochPeriod == 0)
	var undo func()
	if value, ok := s.Record.Metrics.Get(c.metric); ok && c.improves(value) {
		before, monitored := c.bestOne, c.monitor
		undo = func() { c.bestOne, c.folder.Best, c.monitor = before, before, monitored }
		c.monitor.set(value)
		c.bestOne = checkpoint.NewBest(s.Step, c.metric, value)
		due = true
	}
	if !due {
		return nil
	}
	return c.write(s, false, undo)
}

// end does not unlock the folder, because other hooks may still write to it.
func (c *checkpointer) end(_ context.Context, s *State) error {
	beside := c.settle(s, true)
	var diverged *divergedError
	if errors.As(s.Err, &diverged) {
		err := c.folder.PutAside(s.Step)
		s.History.Checkpoint = c.folder.Newest
		return join(beside, err)
	}
	// After a return to a snapshot, the run may have fewer steps than the newest checkpoint.
	if !s.run.sound || (s.Step <= c.lastStep && s.EpochsDone == c.lastDone) {
		return beside
	}
	return join(beside, c.write(s, true, nil))
}

// write writes a checkpoint and removes old ones, while the next steps run if that is possible.
func (c *checkpointer) write(s *State, ending bool, undo func()) error {
	if err := c.settle(s, true); err != nil {
		return err
	}
	began := time.Now()
	defer func() { s.run.tally.Pause += seconds(time.Since(began)) }()
	var frozen capability.Frozen
	if !ending && !s.LastStep() {
		frozen = c.freeze(s)
	}
	c.folder.Best = c.bestOne
	w := &writing{written: written{step: s.Step}, epochs: s.EpochsDone, undo: undo}
	proven, save := s.FiniteLoss, s.run.save(c.disk, frozen)
	write := func() {
		if w.err = c.folder.Write(w.step, proven, save); w.err == nil {
			w.time, w.took = time.Now(), time.Since(began)
			w.tidy = c.folder.Tidy()
		}
	}
	if frozen == nil {
		write()
		return c.finish(s, w, ending)
	}
	w.done = make(chan struct{})
	c.beside = w
	go func() {
		defer close(w.done)
		write()
		w.tidy = errors.Join(w.tidy, frozen.Close())
	}()
	return nil
}

// freeze returns the state of the session for a checkpoint that is written while steps run; nil if
// training has to wait for the checkpoint.
func (c *checkpointer) freeze(s *State) capability.Frozen {
	files := func(h Hook) bool { return h.Save != nil && !h.NoFiles }
	if c.Foreground || slices.ContainsFunc(s.run.hooks, files) {
		return nil
	}
	frozen, err := s.run.can.Freeze(s.run.steady)
	if err != nil || frozen == nil {
		return nil // if the error lasts, Save returns it
	}
	// malloc may need more than the copy itself.
	size, left := frozen.Bytes(), cgroup.Available()
	if !left.Known() || left.Bytes >= 2*size {
		return frozen
	}
	if !c.crowded {
		c.crowded = true
		s.Log.Info("training waits for its checkpoints, because a copy of the variables may not fit in memory", "copy", memory.Bytes(size), "free", memory.Bytes(left.Bytes))
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
	if w := c.beside; w != nil {
		select {
		case <-w.done:
		default:
			return nil
		}
		c.beside = nil
		if err := c.finish(s, w, false); err != nil {
			return err
		}
	}
	return c.folder.Prove(s.Step)
}

const failedEvent = "checkpoint_failed"

// finish handles the result of writing a checkpoint. If the checkpoint was not written and
// ContinueOnError is set, finish sets owed and returns nil.
func (c *checkpointer) finish(s *State, w *writing, ending bool) error {
	err := w.err
	if err == nil {
		s.run.written = w.written
		c.owed, c.lastStep, c.lastDone = false, w.step, w.epochs
		s.History.Checkpoint = c.folder.Newest
		err = w.tidy
	} else if c.ContinueOnError && !ending && !errors.As(err, new(*checkpoint.Permanent)) {
		c.owed = true
		if w.undo != nil {
			w.undo() // Best refers to a checkpoint on disk
		}
		s.Log.Warn("training continues without a checkpoint", "step", w.step, "error", err)
		// The event goes to the epoch in progress, since log files already contain the last
		// one.
		if t := &s.run.tally; !slices.Contains(t.Events, failedEvent) {
			t.Events = append(t.Events, failedEvent)
		}
		return nil
	}
	var failure *checkpoint.Error
	if errors.As(err, &failure) {
		failure.Final = ending && s.Err == nil && s.run.over()
	}
	return err
}

// savedState is the content of state.json.
type savedState struct {
	checkpoint.Manifest
	Position
	Sums []metricSum `json:"epoch_sums"`
	tally
	// If the run returned to an earlier step, Trained is the last step for which hooks were called,
	// and Rescaled has the changes of RateScale between the two steps.
	Trained  int64       `json:"trained,omitempty"`
	Rescaled []rescaling `json:"rescaled,omitempty"`
	// Logs has the size of each log file when the training began, by hook.
	Logs map[string]int64 `json:"logs,omitempty"`
	// Passed describes a reset by process restart that the next process records.
	Passed   *passedOn       `json:"reset_process,omitempty"`
	Recovery json.RawMessage `json:"recovery,omitempty"`
	// Session is the state of the session other than variables.
	Session json.RawMessage `json:"session,omitempty"`
	// history is the content of the history file. files has, by the name of a hook, the folder whose
	// files belong to the hook's state.
	history []byte
	files   map[string]string
}

type metricSum struct {
	Name string          `json:"name"`
	Sum  jsonfloat.Float `json:"sum"`
}

// save returns the function that writes the files of a checkpoint. If frozen is not nil, the state of
// the run is captured now, and the function may be called while steps run.
func (r *run) save(d disk.Disk, frozen capability.Frozen) checkpoint.Save {
	variables := func(prefix string) error { return r.state.Session.Save(r.steady, prefix) }
	capture := func(dir string) (*savedState, error) { return r.capture(d, dir) }
	if frozen != nil {
		state, err := r.capture(d, "")
		variables = frozen.Save
		capture = func(string) (*savedState, error) { return state, err }
	}
	return func(dir string) (any, *checkpoint.Manifest, error) {
		if err := variables(filepath.Join(dir, checkpoint.Variables)); err != nil {
			var refused *session.SaveError
			if errors.As(err, &refused) {
				bare := *refused
				bare.Remedy = "" // the checkpoint.Error has a remedy
				err = &bare
			}
			return nil, nil, fmt.Errorf("saving the model: %w", err)
		}
		state, err := capture(dir)
		if err != nil {
			return nil, nil, err
		}
		for hook, from := range state.files {
			to := filepath.Join(dir, hookDir(hook))
			if err = d.MakeDir(to); err == nil {
				err = d.CopyFiles(from, to)
			}
			if err != nil {
				return nil, nil, permanent(fmt.Errorf("state of hook %s: %w", hook, err))
			}
		}
		return state, &state.Manifest, d.Write(filepath.Join(dir, checkpoint.History), state.history)
	}
}

// capture returns the state of the run without variables. Hooks write files to dir.
func (r *run) capture(d disk.Disk, dir string) (*savedState, error) {
	saved, err := r.savedState()
	if err == nil {
		err = r.saveHooks(d, dir, saved)
	}
	if err != nil {
		return nil, err
	}
	lines, err := r.historyLines()
	if err != nil {
		return nil, &checkpoint.Permanent{Err: err}
	}
	saved.history = bytes.Clone(lines)
	return saved, nil
}

func (r *run) savedState() (_ *savedState, err error) {
	s := &r.state
	saved := &savedState{Position: s.Position, tally: r.tally, Logs: r.logs, Passed: r.passed}
	saved.Events = slices.Clone(r.tally.Events) // CountEvent changes them
	saved.Written = r.now().UTC().Format(time.RFC3339)
	saved.TrainTime = r.trainTime()
	if saved.Identity, err = r.identify(r.steady); err != nil {
		return nil, &checkpoint.Permanent{Err: err}
	}
	for i, name := range r.train.names {
		saved.Sums = append(saved.Sums, metricSum{name, jsonfloat.Float(s.sums[i])})
	}
	if s.Step < r.replay.trained {
		saved.Trained, saved.Rescaled = r.replay.trained, r.toRescale()
	}
	if o := r.loop.Recover; o != nil && o.Save != nil {
		if saved.Recovery, err = o.Save(); err != nil {
			return nil, permanent(fmt.Errorf("state of Loop.Recover: %w", err))
		}
	}
	if saved.Session, err = r.can.State(); err != nil {
		return nil, permanent(fmt.Errorf("state of the session: %w", err))
	}
	return saved, nil
}

func permanent(err error) error {
	if errors.As(err, new(syscall.Errno)) {
		return err
	}
	return &checkpoint.Permanent{Err: err}
}

// historyLines returns the content of the history file. The slice is valid until the next call.
// It keeps the encoded lines of all records except the last, which may still change.
func (r *run) historyLines() ([]byte, error) {
	lines, records := r.lines, r.state.History.Records
	for i := r.linesOf; i < len(records); i++ {
		r.lines, r.linesOf = lines, i
		line, err := json.Marshal(records[i])
		if err != nil {
			return nil, fmt.Errorf("history of epoch %d: %w", records[i].Epoch, err)
		}
		lines = append(append(lines, line...), '\n')
	}
	return lines, nil
}

func (r *run) saveHooks(d disk.Disk, dir string, saved *savedState) error {
	saved.Hooks, saved.files = map[string]json.RawMessage{}, map[string]string{}
	for i := range r.hooks {
		h := &r.hooks[i]
		if h.Save == nil {
			continue
		}
		own := filepath.Join(dir, hookDir(h.Name))
		if !h.NoFiles {
			if err := d.MakeDir(own); err != nil {
				return err
			}
		}
		state, err := h.Save(own)
		if err != nil {
			return permanent(fmt.Errorf("state of hook %s: %w", h.Name, err))
		}
		if state != nil {
			saved.Hooks[h.Name] = state
		}
		if h.files != nil {
			if from := h.files(); from != "" {
				saved.files[h.Name] = from
			}
		}
		if h.NoFiles {
			continue
		}
		entries, err := os.ReadDir(own)
		if err == nil && len(entries) == 0 {
			err = d.Remove(own)
		}
		if err != nil {
			return fmt.Errorf("state of hook %s: %w", h.Name, err)
		}
	}
	return nil
}

func hookDir(name string) string { return "hook-" + url.PathEscape(name) }
