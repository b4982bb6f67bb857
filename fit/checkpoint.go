package fit

import (
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

	"steadyfit/fit/internal/checkpoint"
	"steadyfit/fit/internal/disk"
	"steadyfit/fit/internal/jsonfloat"
	"steadyfit/option"
	"steadyfit/session"
)

// Checkpoint writes checkpoints to folders Folder/ckpt-<step>, from which Loop.Resume resumes.
// It also writes one when a run ends, even if the run was cancelled, but not after an error of
// the session or of a hook. Package checkpoint describes the format.
//
// The folder belongs to one training. Checkpoint locks it during a run, and a second run gets a
// *checkpoint.LockedError. A file system without locks causes a warning; NFS has locks unless
// it is mounted with nolock or local_lock.
//
// If a checkpoint cannot be written, the run ends with a *checkpoint.Error, unless OnError says
// otherwise. When the disk is full, Checkpoint removes old checkpoints before it writes the new
// one, provided that a good checkpoint remains.
//
// When the run starts, Checkpoint reads the training and the validation data once to identify
// them; see MismatchError.
type Checkpoint struct {
	Folder string
	// EverySteps and EveryEpochs are the intervals between checkpoints, in train steps counted
	// from the beginning of the training, and in epochs. If both are 0, EveryEpochs is 1.
	EverySteps, EveryEpochs int
	// Keep is the number of newest checkpoints to keep, besides the best one; 0 means 3, and a
	// negative number keeps all. With 1, the previous one is kept until a finite loss shows
	// that the newest is good.
	Keep int
	// Best is a metric, such as "val_loss". A checkpoint is also written after every epoch in
	// which it reaches a new best value; best.json names the best checkpoint, which is kept.
	Best string
	// BestMode is "min" or "max"; see EarlyStop.Mode.
	BestMode string
	OnError  ErrorPolicy
	// EveryRank makes a rank other than the first write checkpoints, too, to a Folder of its own.
	// If the first rank has none, Loop.Resume resumes all ranks from the newest of the others.
	EveryRank bool
	disk      disk.Disk
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
		Load: c.load, Save: c.save, Start: c.start, Step: c.step, Epoch: c.epoch, End: c.end, metric: c.finder("Best"), local: !o.EveryRank,
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
	if err := c.OnError.check(); err != nil {
		return err
	}
	c.lastStep, c.lastDone = s.Step, s.EpochsDone
	var err error
	c.folder, err = checkpoint.Open(c.Folder, checkpoint.Options{
		Keep: max(cmp.Or(c.Keep, 3), 0), Tolerate: c.OnError == Continue, ResumedFrom: s.History.ResumedFrom, Step: s.Step, Skipped: s.run.skipped,
		Logs: s.run.logs, Best: c.bestOne, Disk: c.disk, Log: s.Log,
	})
	if err != nil {
		return err
	}
	c.bestOne, c.owed = c.folder.Best, c.folder.Unwritable
	s.run.folders = append(s.run.folders, c.folder)
	// identify reads all data, which takes as long as an epoch. It runs here so that its time
	// is not part of an epoch, and so that it does not delay the checkpoint after Ctrl-C.
	_, err = s.run.identify(ctx)
	return err
}

func (c *checkpointer) step(_ context.Context, s *State) error {
	if err := c.folder.Prove(s.Step); err != nil {
		return err
	}
	// The checkpoint for the last step of an epoch is written by the method epoch.
	if c.EverySteps > 0 && s.Step%int64(c.EverySteps) == 0 && s.EpochStep < s.StepsPerEpoch {
		return c.write(s, false)
	}
	return nil
}

func (c *checkpointer) epoch(_ context.Context, s *State) error {
	due := c.owed || (c.EverySteps > 0 && s.Step%int64(c.EverySteps) == 0) || (c.epochPeriod > 0 && s.Epoch%c.epochPeriod == 0)
	improved, before, monitored := false, c.bestOne, c.monitor
	if value, ok := s.Record.Metrics.Get(c.metric); ok && c.improves(value) {
		c.monitor.set(value)
		c.bestOne = checkpoint.NewBest(s.Step, c.metric, value)
		due, improved = true, true
	}
	if !due {
		return nil
	}
	err := c.write(s, false)
	if improved && c.owed {
		// Best refers to a checkpoint on disk, and this one was not written.
		c.bestOne, c.folder.Best, c.monitor = before, before, monitored
	}
	return err
}

// end does not unlock the folder, because other hooks may still write to it.
func (c *checkpointer) end(_ context.Context, s *State) error {
	var diverged *divergedError
	if errors.As(s.Err, &diverged) {
		err := c.folder.PutAside(s.Step)
		s.History.Checkpoint = c.folder.Newest
		return err
	}
	// After a return to a snapshot, the run may have fewer steps than the newest checkpoint.
	if !s.run.sound || (s.Step <= c.lastStep && s.EpochsDone == c.lastDone) {
		return nil
	}
	return c.write(s, true)
}

const failedEvent = "checkpoint_failed"

// write writes a checkpoint and removes old ones. If the checkpoint cannot be written and
// OnError allows it, write sets owed and returns nil.
func (c *checkpointer) write(s *State, ending bool) error {
	c.folder.Best = c.bestOne
	began := time.Now()
	err := c.folder.Write(s.Step, s.FiniteLoss, s.run.save(c.disk))
	if err == nil {
		s.run.written = Written{Step: s.Step, Time: time.Now(), Took: time.Since(began)}
		c.owed, c.lastStep, c.lastDone = false, s.Step, s.EpochsDone
		s.History.Checkpoint = c.folder.Newest
		err = c.folder.Tidy()
	} else if c.OnError == Continue && !ending && !errors.As(err, new(*checkpoint.Permanent)) {
		c.owed = true
		s.Log.Warn("training continues without a checkpoint", "step", s.Step, "error", err)
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
	// Trained is the last step for which hooks were called, if the run returned to an earlier
	// step. Rescaled are the changes of RateScale between the two.
	Trained  int64       `json:"trained,omitempty"`
	Rescaled []rescaling `json:"rescaled,omitempty"`
	// Logs has the size of each log file when the training began, by hook.
	Logs map[string]int64 `json:"logs,omitempty"`
	// Passed describes a reset by process restart that the next process records.
	Passed   *passedOn       `json:"reset_process,omitempty"`
	Recovery json.RawMessage `json:"recovery,omitempty"`
	// Session is the state of the session other than variables.
	Session json.RawMessage `json:"session,omitempty"`
}

type metricSum struct {
	Name string          `json:"name"`
	Sum  jsonfloat.Float `json:"sum"`
}

func (r *run) save(d disk.Disk) checkpoint.Save {
	return func(dir string) (any, *checkpoint.Manifest, error) {
		identity, err := r.identify(r.steady)
		if err != nil {
			return nil, nil, &checkpoint.Permanent{Err: err}
		}
		if err := r.state.Session.Save(r.steady, filepath.Join(dir, checkpoint.Variables)); err != nil {
			var refused *session.SaveError
			if errors.As(err, &refused) {
				bare := *refused
				bare.Remedy = "" // the checkpoint.Error has a remedy
				err = &bare
			}
			return nil, nil, fmt.Errorf("saving the model: %w", err)
		}
		state, err := r.savedState(d, dir)
		if err != nil {
			return nil, nil, err
		}
		state.Identity = identity
		history, err := r.historyLines()
		if err != nil {
			return nil, nil, &checkpoint.Permanent{Err: err}
		}
		return state, &state.Manifest, d.Write(filepath.Join(dir, checkpoint.History), history)
	}
}

func (r *run) savedState(d disk.Disk, dir string) (_ *savedState, err error) {
	s := &r.state
	saved := &savedState{Position: s.Position, tally: r.tally, Logs: r.logs, Passed: r.passed}
	saved.Written = r.now().UTC().Format(time.RFC3339)
	saved.TrainTime = r.trainTime()
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
	if stateful, ok := s.Session.(stateful); ok {
		if saved.Session, err = stateful.State(); err != nil {
			return nil, permanent(fmt.Errorf("state of the session: %w", err))
		}
	}
	saved.Hooks, err = r.saveHooks(d, dir)
	return saved, err
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

func (r *run) saveHooks(d disk.Disk, dir string) (map[string]json.RawMessage, error) {
	states := make(map[string]json.RawMessage)
	for i := range r.hooks {
		h := &r.hooks[i]
		if h.Save == nil {
			continue
		}
		own := filepath.Join(dir, hookDir(h.Name))
		if err := d.MakeDir(own); err != nil {
			return nil, err
		}
		state, err := h.Save(own)
		if err != nil {
			return nil, permanent(fmt.Errorf("state of hook %s: %w", h.Name, err))
		}
		if state != nil {
			states[h.Name] = state
		}
		entries, err := os.ReadDir(own)
		if err == nil && len(entries) == 0 {
			err = d.Remove(own)
		}
		if err != nil {
			return nil, fmt.Errorf("state of hook %s: %w", h.Name, err)
		}
	}
	return states, nil
}

func hookDir(name string) string { return "hook-" + url.PathEscape(name) }
