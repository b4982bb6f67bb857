package fit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// The files of a folder of checkpoints. Names that begin with a dot are of work
// in progress; what a crash leaves of it is tidied up by the next run.
const (
	checkpointPrefix = "ckpt-"
	divergedPrefix   = "diverged-"
	temporarySuffix  = ".tmp"
	trashSuffix      = ".trash"
	// foreignPrefix is for what had the name of a checkpoint but is none.
	foreignPrefix = "foreign-"
	// replacedSuffix is for a checkpoint that one of the same step replaces.
	replacedSuffix = ".old"
	bestFile       = "best.json"
	// begunFile says where a training began, until it has a checkpoint.
	begunFile = "begun.json"

	// The files of a checkpoint.
	stateFile     = "state.json"
	historyFile   = "history.jsonl"
	variables     = "variables"
	hookDirPrefix = "hook-"

	stateFormat  = "steadyfit checkpoint"
	stateVersion = 1
)

// castagnoli is the polynomial that processors have an instruction for:
// checking a checkpoint costs little more than reading it.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stateEnvelope is state.json. All but State is the same in all versions.
type stateEnvelope struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Writer is the program that wrote it.
	Writer string `json:"writer"`
	// CRC is the checksum of State as compact JSON.
	CRC string `json:"crc32c"`
	// Header is that of what comes before it; the first ones written had none.
	Header string          `json:"header_crc32c"`
	State  json.RawMessage `json:"state"`
}

func (e *stateEnvelope) headerSum() string {
	return checksum(crc32.Checksum(fmt.Appendf(nil, "%q %d %q %q", e.Format, e.Version, e.Writer, e.CRC), castagnoli))
}

// program names this program and its version.
var program = sync.OnceValue(func() string {
	const name = "steadyfit"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
			if m.Path == name && m.Version != "" {
				return name + " " + m.Version
			}
		}
	}
	return name + " of an unknown version"
})

// checkpointState is what a run needs to continue, apart from the model and the
// history.
type checkpointState struct {
	Written string `json:"written"`
	Position
	Sums []metricSum `json:"epoch_sums"`
	tally
	// Trained is the last step that hooks have seen, and Rescaled what they then did to
	// RateScale, if the run had gone back.
	Trained  int64       `json:"trained,omitempty"`
	Rescaled []rescaling `json:"rescaled,omitempty"`
	// Logs are the sizes that log files had when the training began, by hook.
	Logs map[string]int64 `json:"logs,omitempty"`
	// Passed is a reset that the next process does.
	Passed   *passedOn       `json:"reset_process,omitempty"`
	Recovery json.RawMessage `json:"recovery,omitempty"`
	// Session is what the session has beside its variables; see Stateful.
	Session json.RawMessage `json:"session,omitempty"`

	Identity map[string]string          `json:"identity"`
	Hooks    map[string]json.RawMessage `json:"hooks,omitempty"`
	Files    []fileSum                  `json:"files"`
}

type metricSum struct {
	Name string `json:"name"`
	Sum  number `json:"sum"`
}

// fileSum is how a torn file of a checkpoint is told.
type fileSum struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	CRC   string `json:"crc32c"`
}

// CheckpointOption is an option of Checkpoint.
type CheckpointOption interface{ applyToCheckpoint(*checkpointer) }

// LogOption is an option of HistoryFile and of CSVLog.
type LogOption interface{ applyToLog(*lineFile) }

// WriteOption is an option of every hook that writes files during a run.
type WriteOption func(*writing)

func (o WriteOption) applyToCheckpoint(c *checkpointer) { o(&c.writing) }
func (o WriteOption) applyToLog(l *lineFile)            { o(&l.writing) }
func (o WriteOption) applyToEarlyStop(e *earlyStop)     { o(&e.writing) }

// writing is how a hook writes files.
type writing struct {
	onError ErrorPolicy
	disk    disk
}

func (w *writing) check() error {
	if w.onError != Stop && w.onError != Continue {
		return &option.Error{Option: "OnError", Value: w.onError, Reason: "expected fit.Stop or fit.Continue"}
	}
	return nil
}

type checkpointOption func(*checkpointer)

func (o checkpointOption) applyToCheckpoint(c *checkpointer) { o(c) }

// Keep is the number of newest checkpoints to keep; 0 keeps all. The default is
// 3. The best one is kept in addition, if Best is given. So is, for Keep(1), the
// one before the newest until a finite loss shows that the newest is good.
func Keep(n int) CheckpointOption { return checkpointOption(func(c *checkpointer) { c.keep = n }) }

// EverySteps writes a checkpoint after every n train steps, counted from the
// beginning of training.
func EverySteps(n int) CheckpointOption {
	return checkpointOption(func(c *checkpointer) { c.everySteps = &n })
}

// EveryEpochs writes a checkpoint after every n epochs. That, with 1, is the
// default if EverySteps is not given.
func EveryEpochs(n int) CheckpointOption {
	return checkpointOption(func(c *checkpointer) { c.everyEpochs = &n })
}

// Best also writes a checkpoint after every epoch in which the metric, such as
// "val_loss", is better than ever, and keeps the best one. best.json in the
// folder says which one that is. Give a Direction if the name of the metric
// does not tell.
func Best(metric string, direction ...Direction) CheckpointOption {
	return checkpointOption(func(c *checkpointer) {
		c.best = &monitor{metric: metric, direction: Auto}
		if len(direction) > 0 {
			c.best.direction = direction[0]
		}
	})
}

// ErrorPolicy says what happens when a file cannot be written.
type ErrorPolicy int

const (
	// Stop ends the run.
	Stop ErrorPolicy = iota
	// Continue trains on without it.
	Continue
)

// OnError says what happens when a checkpoint, a line of a HistoryFile or CSVLog, or
// the best state of RestoreBest cannot be written, as on a full disk; the default is
// Stop. A folder that cannot be written when a training begins ends it in any case:
// nothing is lost yet. When it is resumed, that is as at any other time.
//
// With Continue, there is a warning that says what to do. The lines of a file
// are kept and written when there is room again. For a checkpoint, the event
// "checkpoint_failed" is in the record of the epoch that trains on without it. It
// is tried again when the next one is due, and at the latest after the next
// epoch. The best state stays that of an earlier epoch, with the event
// "best_not_kept". What is still not written at the end of the run is no exception to be
// warned of: Run returns a CheckpointError, since nothing on disk has the result
// then, or a LogError.
//
// With Stop, a checkpoint that cannot be written ends the run at once. A line or
// a best state ends it after the epoch, which the other hooks see to its end,
// Checkpoint included.
//
// What would fail again for ever, such as a session that saves nothing, ends the
// run in any case.
func OnError(policy ErrorPolicy) WriteOption {
	return func(w *writing) { w.onError = policy }
}

// withDisk makes a hook that tests can crash.
func withDisk(d disk) WriteOption { return func(w *writing) { w.disk = d } }

// Checkpoint is a hook that writes checkpoints to folders dir/ckpt-<step>, from
// which Loop.Resume continues: after every epoch, or as the options say, and at
// the end of a run, cancelled ones included. The folder is for one training
// alone: a run that begins anew in a folder that has checkpoints is refused.
//
// A checkpoint is written to a temporary name, synced file by file, and renamed;
// only then are older ones removed. So a crash at any moment, of the process or
// of the machine, leaves the checkpoints that were there or those and the new
// one. A failure to write one is a CheckpointError, and ends the run unless
// OnError says otherwise; what was written of it is removed at once. If the disk
// is full, those that the new one would replace are removed before it, and it is
// tried once more, but only if a checkpoint stays that is whole and from which a
// finite loss was computed.
//
// A run locks the folder from its start to its end; another one gets a
// LockedError. The lock is gone when the process is, however it ended, so a
// process that is restarted can go on. It is a lock of the file system: between
// hosts it holds on those that carry locks, which NFS does unless it is mounted
// with nolock or local_lock, and where there are none, a warning says so.
//
// What has the name of a checkpoint but was not written by this program is never
// removed; when its name is needed, it is renamed to foreign-<step>.
//
// So that a checkpoint is not resumed with other data, the training and the
// validation data are read once through when the run starts; see MismatchError.
//
// A run that ends with an error of the session or of a hook, or with a
// DivergedError, writes no checkpoint at its end; nor does one that a Recovery has
// taken back to before the newest checkpoint.
//
// Until the first checkpoint, begun.json in the folder says where the log files
// began. A run that resumes from the folder, because the one before it died that
// early, takes the lines of that one out of them.
func Checkpoint(dir string, options ...CheckpointOption) Hook {
	c := &checkpointer{dir: dir, keep: 3}
	for _, o := range options {
		o.applyToCheckpoint(c)
	}
	every := AnyStep
	if c.everySteps != nil && *c.everySteps > 0 {
		every = *c.everySteps
	}
	return Hook{
		Name: "checkpoint", StepEvery: every, Priority: PriorityCheckpoint,
		Load: c.load, Save: c.save, Start: c.start, Step: c.step, Epoch: c.epoch, End: c.end,
	}
}

type checkpointer struct {
	writing
	dir                     string
	keep                    int
	everySteps, everyEpochs *int
	best                    *monitor
	lock                    *folderLock

	stepPeriod  int64
	epochPeriod int
	bestStep    int64
	// pointed is the step that best.json names, or -1.
	pointed int64
	// begun is true while there is a begunFile.
	begun bool
	// owed is true while the last checkpoint that was due could not be written.
	owed bool
	// kept are the checkpoints of this training, oldest first.
	kept []keptCheckpoint
	// lastStep and lastDone are the position of the newest checkpoint, or where
	// the run began.
	lastStep int64
	lastDone int
}

type keptCheckpoint struct {
	step int64
	// proven is true if a finite loss was computed from it.
	proven bool
	// whole is true if this run wrote it or has checked its sums.
	whole bool
	bytes int64
}

// bestState is what the hook remembers, and the content of best.json.
type bestState struct {
	Checkpoint string `json:"checkpoint"`
	Step       int64  `json:"step"`
	Metric     string `json:"metric"`
	Value      number `json:"value"`
}

func (c *checkpointer) load(_ string, state json.RawMessage) error {
	c.kept, c.bestStep, c.pointed, c.owed = nil, -1, -1, false
	if c.best != nil {
		c.best.reset()
	}
	if state == nil || c.best == nil {
		return nil
	}
	var b bestState
	if err := json.Unmarshal(state, &b); err != nil {
		return fmt.Errorf("reading the state of Best: %w", err)
	}
	if b.Metric == c.best.metric {
		c.best.set(float64(b.Value))
		c.bestStep = b.Step
	}
	return nil
}

func (c *checkpointer) save(string) (json.RawMessage, error) {
	if c.bestStep < 0 {
		return nil, nil
	}
	return json.Marshal(c.bestState())
}

func (c *checkpointer) bestState() bestState {
	return bestState{Checkpoint: checkpointName(c.bestStep), Step: c.bestStep, Metric: c.best.metric, Value: number(c.best.best)}
}

func (c *checkpointer) start(ctx context.Context, s *State) error {
	if c.dir == "" {
		return &option.Error{Option: "Checkpoint", Reason: "it has no folder", Fix: "name one that is for this training alone"}
	}
	if c.keep < 0 {
		return &option.Error{Option: "Keep", Value: c.keep, Reason: "expected at least 0, which keeps all"}
	}
	c.stepPeriod, c.epochPeriod = 0, 0
	if c.everySteps != nil {
		if *c.everySteps < 1 {
			return &option.Error{Option: "EverySteps", Value: *c.everySteps, Reason: "expected at least 1", Fix: "leave it out to write one per epoch"}
		}
		c.stepPeriod = int64(*c.everySteps)
	}
	if c.everyEpochs != nil {
		if *c.everyEpochs < 1 {
			return &option.Error{Option: "EveryEpochs", Value: *c.everyEpochs, Reason: "expected at least 1", Fix: "leave it out to write one per epoch"}
		}
		c.epochPeriod = *c.everyEpochs
	} else if c.stepPeriod == 0 {
		c.epochPeriod = 1
	}
	if c.best != nil {
		if err := c.best.check("Best", s); err != nil {
			return err
		}
	}
	if err := c.check(); err != nil {
		return err
	}
	c.lastStep, c.lastDone = s.Step, s.EpochsDone
	if err := c.open(s); err != nil {
		return errors.Join(err, c.lock.release())
	}
	// Checkpoints need it. Computed here, a long pass over the data does not fall
	// into an epoch, nor between Ctrl-C and the last checkpoint.
	if _, err := s.run.identify(ctx); err != nil {
		return errors.Join(err, c.lock.release())
	}
	return nil
}

// open locks the folder, finds out what is in it and whether it can be written.
func (c *checkpointer) open(s *State) error {
	unusable := func(err error) error {
		return &CheckpointError{Path: c.dir, Good: s.History.ResumedFrom, Remedy: remedyFor(err), Err: err}
	}
	if err := c.disk.makeDir(c.dir); err != nil {
		return unusable(err)
	}
	lock, err := lockFolder(c.dir)
	if errors.Is(err, ErrLocked) {
		return err
	}
	if err != nil {
		return unusable(err)
	}
	c.lock = lock
	s.run.locks = append(s.run.locks, lock)
	lock.warn(s.run.log, c.dir)
	if err := c.disk.tidy(c.dir); err != nil {
		return unusable(err)
	}
	if err := c.disk.probe(c.dir); err != nil {
		if !c.resumed(s) || c.onError != Continue {
			return unusable(err)
		}
		s.run.log.Warn("training continues, although checkpoints cannot be written now", "error", unusable(err))
		c.owed = true
	}
	if err := c.find(s); err != nil {
		return err
	}
	if err := c.begin(s); err != nil {
		return unusable(err)
	}
	if c.bestStep >= 0 && missing(filepath.Join(c.dir, checkpointName(c.bestStep))) {
		s.run.log.Warn("the best checkpoint is gone", "checkpoint", filepath.Join(c.dir, checkpointName(c.bestStep)))
		c.bestStep = -1
	}
	if n := len(c.kept); n > 0 {
		if free, ok := files.FreeSpace(c.dir); ok && free < c.kept[n-1].bytes {
			s.run.log.Warn("there is no room for another checkpoint", "folder", c.dir,
				"free", memory.Bytes(free).String(), "needed", memory.Bytes(c.kept[n-1].bytes).String(), "remedy", remedyFull)
		}
	}
	err = c.pointToBest()
	if err == nil {
		// A crash may have come before the last removals.
		err = c.prune()
	}
	if err != nil && c.resumed(s) {
		return c.tidied(s, err)
	}
	return err
}

// resumed reports whether the run goes on from a checkpoint in the folder.
func (c *checkpointer) resumed(s *State) bool {
	return s.History.ResumedFrom != "" && files.Same(filepath.Dir(s.History.ResumedFrom), c.dir)
}

// begun is the content of begunFile.
type begun struct {
	// Logs are the sizes that log files had when the training began, by hook.
	Logs map[string]int64 `json:"logs"`
}

// begin writes down where the training begins, for as long as no checkpoint says so.
func (c *checkpointer) begin(s *State) error {
	path := filepath.Join(c.dir, begunFile)
	c.begun = c.resumed(s) && !missing(path)
	if c.resumed(s) {
		return nil
	}
	if len(s.run.logs) == 0 {
		return c.disk.remove(path)
	}
	content, err := json.Marshal(begun{s.run.logs})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	c.begun = true
	return c.disk.replace(path, append(content, '\n'))
}

// readBegun returns where a training without a checkpoint has begun; nil if the
// folder does not say.
func readBegun(dir string) (map[string]int64, error) {
	path := filepath.Join(dir, begunFile)
	text, err := files.Read(path, maxStateBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var b begun
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil {
		return nil, fmt.Errorf("where the training began: %s: %w; remove it to leave log files as they are", path, err)
	}
	return b.Logs, nil
}

// find looks for the checkpoints of this training.
func (c *checkpointer) find(s *State) error {
	found, err := listCheckpoints(c.dir)
	if err != nil {
		return err
	}
	if !c.resumed(s) {
		return refuseEarlier(c.dir, found)
	}
	for _, step := range found {
		path := filepath.Join(c.dir, checkpointName(step))
		state, err := readState(path)
		switch {
		case errors.Is(err, ErrFuture) && step >= s.Step:
			return ofFuture(path, err)
		case errors.Is(err, ErrForeign):
		case err != nil && !errors.Is(err, ErrTorn):
			s.run.log.Warn("a checkpoint cannot be read, and is left alone", "path", path, "error", err)
		case err == nil && step <= s.Step:
			// Finite losses came after all but the one that the run resumes from,
			// or there would not be later ones. That one was checked.
			c.kept = append(c.kept, keptCheckpoint{step, state.FiniteLoss || step < s.Step, step == s.Step, state.bytes()})
		case err == nil:
			// Between reading the folder and locking it, another run may have used it.
			if _, err := verify(path); err == nil {
				return &option.Error{Option: "Checkpoint", Reason: fmt.Sprintf("%s was written by another run after this one had resumed from %s", path, s.History.ResumedFrom), Fix: "resume again"}
			}
		}
	}
	return nil
}

// refuseEarlier is the error of a run that begins anew on a folder with checkpoints of these
// steps, ascending; nil if they are all of other programs.
func refuseEarlier(dir string, steps []int64) error {
	for _, step := range slices.Backward(steps) {
		path := filepath.Join(dir, checkpointName(step))
		switch _, err := readState(path); {
		case errors.Is(err, ErrFuture):
			return ofFuture(path, err)
		case !errors.Is(err, ErrForeign):
			return &option.Error{Option: "Checkpoint", Value: dir, Reason: "it holds checkpoints of an earlier training (the newest is " + checkpointName(step) + ")", Fix: "continue it with {Loop.Resume}, or name another folder"}
		}
	}
	return nil
}

func ofFuture(path string, err error) error {
	return &option.Error{Option: "Checkpoint", Value: path, Reason: err.Error(), Fix: "name another folder, or use the program that wrote it"}
}

// CheckFolder reports early, before a model is opened, what the Checkpoint hook of a run
// that begins anew would refuse: an *option.Error where the folder holds checkpoints of an
// earlier training, or a *LockedError if another run is at it then, for which the folder is
// locked for a moment. A folder that does not exist, or has no checkpoint, is good.
func CheckFolder(dir string) error {
	steps, err := listCheckpoints(dir)
	if err != nil {
		return err
	}
	earlier := refuseEarlier(dir, steps)
	if earlier == nil {
		return nil
	}
	lock, err := lockFolder(dir)
	if errors.Is(err, ErrLocked) {
		return err
	}
	return errors.Join(earlier, lock.release())
}

func (c *checkpointer) step(_ context.Context, s *State) error {
	if n := len(c.kept); n > 0 && !c.kept[n-1].proven && c.kept[n-1].step < s.Step {
		c.kept[n-1].proven = true
		if err := c.tidied(s, c.prune()); err != nil {
			return err
		}
	}
	// The last step of an epoch gets its checkpoint when the epoch is complete.
	if c.stepPeriod > 0 && s.Step%c.stepPeriod == 0 && s.EpochStep < s.StepsPerEpoch {
		return c.write(s, false)
	}
	return nil
}

func (c *checkpointer) epoch(_ context.Context, s *State) error {
	due := c.owed || (c.stepPeriod > 0 && s.Step%c.stepPeriod == 0) || (c.epochPeriod > 0 && s.Epoch%c.epochPeriod == 0)
	improved := false
	var before monitor
	beforeStep := c.bestStep
	if c.best != nil {
		before = *c.best
		if value, ok := s.Record.Metrics.Get(c.best.metric); ok && c.best.improves(value) {
			c.best.set(value)
			c.bestStep = s.Step
			due, improved = true, true
		}
	}
	if !due {
		return nil
	}
	err := c.write(s, false)
	if improved && c.owed {
		// The best one is the best of those that there are.
		*c.best, c.bestStep = before, beforeStep
	}
	return err
}

// end leaves the folder locked: others may still have to do with it at the end.
func (c *checkpointer) end(_ context.Context, s *State) error {
	var diverged *DivergedError
	if errors.As(s.Err, &diverged) {
		return c.putAside(s)
	}
	// An older step is one that is trained again: the checkpoint has what comes after.
	if !s.run.sound || (s.Step <= c.lastStep && s.EpochsDone == c.lastDone) {
		return nil
	}
	return c.write(s, true)
}

// putAside renames the newest checkpoint if the first loss after it was not
// finite: resuming from it would only repeat that.
func (c *checkpointer) putAside(s *State) error {
	n := len(c.kept)
	if n == 0 || c.kept[n-1].proven || c.kept[n-1].step != s.Step {
		return nil
	}
	aside := filepath.Join(c.dir, divergedPrefix+strconv.FormatInt(s.Step, 10))
	if err := c.disk.remove(aside); err != nil {
		return err
	}
	from := filepath.Join(c.dir, checkpointName(s.Step))
	if err := c.disk.rename(from, aside); err != nil {
		return err
	}
	if err := c.disk.sync(c.dir); err != nil {
		return err
	}
	s.run.log.Warn("the loss after a checkpoint is not finite; the checkpoint is put aside", "checkpoint", from, "now", aside)
	c.kept = c.kept[:n-1]
	s.History.Checkpoint = ""
	if n > 1 {
		s.History.Checkpoint = filepath.Join(c.dir, checkpointName(c.kept[n-2].step))
	}
	return nil
}

// write writes a checkpoint of the present state, and removes those that need
// not be kept any longer. It sets owed if that failed and the run goes on.
func (c *checkpointer) write(s *State, ending bool) error {
	path := filepath.Join(c.dir, checkpointName(s.Step))
	bytes, err := c.tryWrite(s, path)
	full := c.full(err)
	if full {
		if room := c.makeRoom(s); room != nil {
			err = fmt.Errorf("%w (making room: %w)", err, room)
		} else {
			bytes, err = c.tryWrite(s, path)
		}
	}
	if err != nil {
		failure := c.failure(s, path, err)
		if full {
			failure.Remedy = remedyFull
		}
		failure.Final = ending && s.Err == nil && s.run.over()
		if c.onError != Continue || ending || errors.As(err, new(*lastingError)) {
			return failure
		}
		c.owed = true
		s.run.log.Warn("training continues without a checkpoint", "step", s.Step, "error", failure)
		// The record of an epoch that has just ended is in the files of the history
		// already, without it.
		if !slices.Contains(s.run.tally.Events, failedEvent) {
			s.run.tally.Events = append(s.run.tally.Events, failedEvent)
		}
		return nil
	}
	c.owed = false
	s.History.Checkpoint = path
	c.lastStep, c.lastDone = s.Step, s.EpochsDone
	c.kept = append(c.others(s.Step), keptCheckpoint{s.Step, s.FiniteLoss, true, bytes})
	err = nil
	if c.pointed != c.bestStep {
		err = c.pointToBest()
	}
	if err == nil {
		err = c.prune()
	}
	if err == nil && c.begun {
		err = c.disk.remove(filepath.Join(c.dir, begunFile))
		c.begun = err != nil
	}
	err = c.tidied(s, err)
	var failure *CheckpointError
	if errors.As(err, &failure) {
		failure.Final = ending && s.Err == nil && s.run.over()
	}
	return err
}

// failedEvent says in the history that a checkpoint could not be written.
const failedEvent = "checkpoint_failed"

// lastingError is one that another try would not get over.
type lastingError struct{ err error }

func (e *lastingError) Error() string { return e.err.Error() }
func (e *lastingError) Unwrap() error { return e.err }

// failure is an error with what there is to fall back on, and what to do.
func (c *checkpointer) failure(s *State, path string, err error) *CheckpointError {
	return &CheckpointError{Path: path, Good: s.History.Checkpoint, Remedy: remedyFor(err), Err: err}
}

// tidied is for errors after which all checkpoints that matter are there.
func (c *checkpointer) tidied(s *State, err error) error {
	if err == nil {
		return nil
	}
	failure := c.failure(s, c.dir, err)
	if c.onError != Continue {
		return failure
	}
	s.run.log.Warn("the folder of checkpoints could not be put in order", "error", failure)
	return nil
}

// tryWrite leaves either a checkpoint at the path, or what was there before and
// nothing else.
func (c *checkpointer) tryWrite(s *State, path string) (bytes int64, err error) {
	temporary := hidden(path, temporarySuffix)
	bytes, err = s.run.writeCheckpoint(c.disk, temporary)
	if err == nil {
		err = c.setAside(s, path)
	}
	if err == nil {
		err = c.disk.publish(temporary, path)
	}
	if err != nil {
		// Half of a checkpoint would keep the disk full. What cannot be removed now
		// is removed when the next run begins.
		_ = c.disk.remove(temporary)
		return 0, err
	}
	return bytes, nil
}

// setAside renames what has the name of a checkpoint and is none.
func (c *checkpointer) setAside(s *State, path string) error {
	if _, err := readState(path); missing(path) || !errors.Is(err, ErrForeign) {
		return nil
	}
	step := strings.TrimPrefix(filepath.Base(path), checkpointPrefix)
	aside := filepath.Join(c.dir, foreignPrefix+step)
	for n := 2; !missing(aside); n++ {
		aside = filepath.Join(c.dir, fmt.Sprintf("%s%s-%d", foreignPrefix, step, n))
	}
	if err := c.disk.rename(path, aside); err != nil {
		return err
	}
	s.run.log.Warn("something that is not a checkpoint had the name of one; it is put aside", "was", path, "now", aside)
	return nil
}

// full reports whether an error is that of a full disk. Sessions do not always
// say; then it is full if another checkpoint like the last would not fit.
func (c *checkpointer) full(err error) bool {
	if err == nil {
		return false
	}
	if files.Full(err) {
		return true
	}
	n := len(c.kept)
	if n == 0 || errors.As(err, new(*lastingError)) || errors.As(err, new(syscall.Errno)) {
		return false
	}
	free, ok := files.FreeSpace(c.dir)
	return ok && free < c.kept[n-1].bytes
}

// errNoRoom is why makeRoom removes nothing.
var errNoRoom = errors.New("no checkpoint can be spared")

// makeRoom removes the checkpoints that the one to be written would replace, if
// a good one stays.
func (c *checkpointer) makeRoom(s *State) error {
	stay, spare := c.divide(append(c.others(s.Step), keptCheckpoint{step: s.Step, proven: s.FiniteLoss}))
	stay = stay[:len(stay)-1]
	if len(spare) == 0 || !slices.ContainsFunc(stay, c.good) {
		return errNoRoom
	}
	for _, k := range spare {
		path := filepath.Join(c.dir, checkpointName(k.step))
		if err := c.disk.discard(path); err != nil {
			return err
		}
		c.kept = slices.DeleteFunc(c.kept, func(other keptCheckpoint) bool { return other.step == k.step })
		s.run.log.Warn("the disk is full; an old checkpoint is removed before there is a new one", "checkpoint", path)
	}
	return nil
}

// others are the kept checkpoints of other steps.
func (c *checkpointer) others(step int64) []keptCheckpoint {
	return slices.DeleteFunc(slices.Clone(c.kept), func(k keptCheckpoint) bool { return k.step == step })
}

// good reports whether a run could go on from a checkpoint, without diverging at
// once.
func (c *checkpointer) good(k keptCheckpoint) bool {
	if !k.proven || k.whole {
		return k.proven
	}
	_, err := verify(filepath.Join(c.dir, checkpointName(k.step)))
	return err == nil
}

// pointToBest writes best.json, or removes one that a later state left.
func (c *checkpointer) pointToBest() error {
	path := filepath.Join(c.dir, bestFile)
	if c.bestStep < 0 {
		if !missing(path) {
			if err := c.disk.remove(path); err != nil {
				return err
			}
		}
		c.pointed = -1
		return nil
	}
	content, err := json.Marshal(c.bestState())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := c.disk.replace(path, append(content, '\n')); err != nil {
		return err
	}
	c.pointed = c.bestStep
	return nil
}

// prune removes the checkpoints that need not be kept. One that cannot be removed
// does not keep the others.
func (c *checkpointer) prune() error {
	stay, spare := c.divide(c.kept)
	var errs []error
	for _, k := range spare {
		path := filepath.Join(c.dir, checkpointName(k.step))
		if err := c.disk.discard(path); err != nil {
			errs = append(errs, fmt.Errorf("removing an old checkpoint: %w", err))
			if !missing(path) {
				stay = append(stay, k)
			}
		}
	}
	slices.SortFunc(stay, func(a, b keptCheckpoint) int { return cmp.Compare(a.step, b.step) })
	c.kept = stay
	return errors.Join(errs...)
}

// divide tells the checkpoints that are to stay from those that can be spared:
// all but the newest ones, the best one, the one that best.json names, and the
// newest that is good.
func (c *checkpointer) divide(all []keptCheckpoint) (stay, spare []keptCheckpoint) {
	if c.keep == 0 {
		return slices.Clone(all), nil
	}
	oldest := max(len(all)-c.keep, 0)
	reserve := int64(-1)
	if oldest > 0 && !slices.ContainsFunc(all[oldest:], c.good) {
		for _, k := range slices.Backward(all[:oldest]) {
			if c.good(k) {
				reserve = k.step
				break
			}
		}
	}
	for i, k := range all {
		if i >= oldest || k.step == reserve || k.step == c.bestStep || k.step == c.pointed {
			stay = append(stay, k)
		} else {
			spare = append(spare, k)
		}
	}
	return stay, spare
}

// writeCheckpoint writes a complete checkpoint to a folder and syncs it.
func (r *run) writeCheckpoint(d disk, dir string) (bytes int64, err error) {
	identity, err := r.identify(r.steady)
	if err != nil {
		return 0, &lastingError{err}
	}
	if err := d.remove(dir); err != nil {
		return 0, err
	}
	if err := d.makeDir(dir); err != nil {
		return 0, err
	}
	if err := r.state.Session.Save(r.steady, filepath.Join(dir, variables)); err != nil {
		var refused *session.SaveError
		if errors.As(err, &refused) {
			bare := *refused
			bare.Remedy = "" // a CheckpointError has its own
			err = &bare
		}
		return 0, fmt.Errorf("saving the model: %w", err)
	}
	state, err := r.checkpointState(d, dir)
	if err != nil {
		return 0, err
	}
	state.Identity = identity
	history, err := r.historyLines()
	if err != nil {
		return 0, &lastingError{err}
	}
	if err := d.write(filepath.Join(dir, historyFile), history); err != nil {
		return 0, err
	}
	if state.Files, err = d.syncTree(dir); err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(state.Files, func(f fileSum) bool { return strings.HasPrefix(f.Name, variables) }) {
		return 0, &lastingError{fmt.Errorf("saving the model: the session wrote no file %s*", variables)}
	}
	content, err := encodeState(state)
	if err != nil {
		return 0, &lastingError{err}
	}
	if err := d.write(filepath.Join(dir, stateFile), content); err != nil {
		return 0, err
	}
	return state.bytes() + int64(len(content)), d.sync(dir)
}

// bytes is the size of a checkpoint's files, without state.json.
func (s *checkpointState) bytes() int64 {
	var sum int64
	for _, f := range s.Files {
		sum += f.Bytes
	}
	return sum
}

// checkpointState is the position of the run, and what its hooks remember.
func (r *run) checkpointState(d disk, dir string) (checkpointState, error) {
	s := &r.state
	state := checkpointState{Written: r.now().UTC().Format(time.RFC3339), Position: s.Position, tally: r.tally}
	state.TrainTime = r.trainTime()
	for i, name := range r.train.names {
		state.Sums = append(state.Sums, metricSum{name, number(s.sums[i])})
	}
	if s.Step < r.trained {
		state.Trained, state.Rescaled = r.trained, r.replaying()
	}
	state.Logs, state.Passed = r.logs, r.passed
	var err error
	if o := r.loop.Recover; o != nil && o.Save != nil {
		if state.Recovery, err = o.Save(); err != nil {
			return state, lasting(fmt.Errorf("state of Loop.Recover: %w", err))
		}
	}
	if stateful, ok := s.Session.(Stateful); ok {
		if state.Session, err = stateful.State(); err != nil {
			return state, lasting(fmt.Errorf("state of the session: %w", err))
		}
	}
	state.Hooks, err = r.saveHooks(d, dir)
	return state, err
}

// lasting marks an error that is not one of the system.
func lasting(err error) error {
	if errors.As(err, new(syscall.Errno)) {
		return err
	}
	return &lastingError{err}
}

// historyLines is the content of history.jsonl, until the next call. The lines of all
// records but the last, which may still change, are kept: to write them all anew for
// every checkpoint would take longer with each epoch.
func (r *run) historyLines() ([]byte, error) {
	r.lines = r.lines[:r.linesKept]
	for i := r.linesOf; i < len(r.state.History.Records); i++ {
		r.linesOf, r.linesKept = i, len(r.lines)
		record := r.state.History.Records[i]
		line, err := json.Marshal(record)
		if err != nil {
			return nil, fmt.Errorf("history of epoch %d: %w", record.Epoch, err)
		}
		r.lines = append(append(r.lines, line...), '\n')
	}
	return r.lines, nil
}

// saveHooks asks the hooks for what they remember.
func (r *run) saveHooks(d disk, dir string) (map[string]json.RawMessage, error) {
	states := make(map[string]json.RawMessage)
	for i := range r.hooks {
		h := &r.hooks[i]
		if h.Save == nil {
			continue
		}
		own := filepath.Join(dir, hookDir(h.Name))
		if err := d.makeDir(own); err != nil {
			return nil, err
		}
		state, err := h.Save(own)
		if err != nil {
			return nil, lasting(fmt.Errorf("state of hook %s: %w", h.Name, err))
		}
		entries, err := os.ReadDir(own)
		if err != nil {
			return nil, fmt.Errorf("state of hook %s: %w", h.Name, err)
		}
		if len(entries) == 0 {
			if err := d.remove(own); err != nil {
				return nil, err
			}
		}
		if state != nil {
			states[h.Name] = state
		}
	}
	return states, nil
}

// syncTree syncs the files of a folder, and its sub-folders, and computes their
// sums.
func (d disk) syncTree(dir string) ([]fileSum, error) {
	var sums []fileSum
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := d.sync(path); err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		sum, err := sumFile(path)
		sum.Name = filepath.ToSlash(relative)
		sums = append(sums, sum)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("syncing %s: %w", dir, err)
	}
	return sums, nil
}

// sumFile reads a file for its size and checksum.
func sumFile(path string) (fileSum, error) {
	f, err := os.Open(path)
	if err != nil {
		return fileSum{}, err
	}
	defer f.Close()
	hash := crc32.New(castagnoli)
	n, err := io.Copy(hash, f)
	if err != nil {
		return fileSum{}, fmt.Errorf("reading %s: %w", path, err)
	}
	return fileSum{Bytes: n, CRC: checksum(hash.Sum32())}, nil
}

func checksum(sum uint32) string { return fmt.Sprintf("%08x", sum) }

// encodeState is the content of state.json.
func encodeState(state checkpointState) ([]byte, error) {
	inner, err := json.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	envelope := stateEnvelope{
		Format: stateFormat, Version: stateVersion, Writer: program(),
		CRC: checksum(crc32.Checksum(inner, castagnoli)), State: inner,
	}
	envelope.Header = envelope.headerSum()
	content, err := json.MarshalIndent(envelope, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	return append(content, '\n'), nil
}

// publish gives a complete folder its name. A folder that has the name already
// is of the same step; it keeps another name until the new one is in place, and
// gets it back should there be no new one, here or from tidy. If it cannot be
// made sure that the name outlasts a crash, the folder loses it again.
func (d disk) publish(temporary, path string) error {
	old := hidden(path, replacedSuffix)
	replaces := !missing(path)
	if replaces {
		if err := d.remove(old); err != nil {
			return err
		}
		if err := d.rename(path, old); err != nil {
			return err
		}
	}
	err := d.rename(temporary, path)
	if err == nil {
		if err = d.sync(filepath.Dir(path)); err != nil {
			err = errors.Join(err, d.rename(path, temporary))
		}
	}
	if err != nil {
		if replaces {
			err = errors.Join(err, d.rename(old, path))
		}
		return err
	}
	if replaces {
		// What is left of it is removed by the next that replaces one, or by tidy.
		_ = d.remove(old)
	}
	return nil
}

// tidy removes what a crash left in a folder of checkpoints.
func (d disk) tidy(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checkpoints: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		path := filepath.Join(dir, name)
		switch {
		case strings.HasPrefix(name, files.ProbePrefix):
			err = d.remove(path)
		case !strings.HasPrefix(name, "."+checkpointPrefix):
			continue
		case strings.HasSuffix(name, replacedSuffix):
			original := filepath.Join(dir, strings.TrimSuffix(name[1:], replacedSuffix))
			if missing(original) {
				err = d.rename(path, original)
			} else {
				err = d.remove(path)
			}
		case strings.HasSuffix(name, temporarySuffix), strings.HasSuffix(name, trashSuffix):
			err = d.remove(path)
		}
		if err != nil {
			return fmt.Errorf("tidying up after a crash: %w", err)
		}
	}
	return nil
}

func checkpointName(step int64) string {
	return checkpointPrefix + strconv.FormatInt(step, 10)
}

// hidden is the name of work in progress on a path.
func hidden(path, suffix string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+suffix)
}

// hookDir is the folder of a hook's files in a checkpoint.
func hookDir(name string) string { return hookDirPrefix + url.PathEscape(name) }
