package fit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"steadyfit/internal/files"
)

// CheckpointInfo is a checkpoint on disk.
type CheckpointInfo struct {
	// Path is its folder. Session.Restore reads the model from Variables.
	Path      string
	Variables string
	// Step and Epochs are the train steps and the epochs done.
	Step   int64
	Epochs int
	// Written is when it was written.
	Written time.Time
	// Identity is what a run has to agree with to resume from it.
	Identity map[string]string
	// Best is true if a Checkpoint hook with the option Best regards it as the
	// best.
	Best bool
	// Err is nil if the checkpoint is whole; else it is ErrTorn, ErrForeign or
	// ErrFuture, with the reason, or the error of a file that could not be read, which
	// says nothing about the checkpoint; and only Path and Step are set.
	Err error
}

// Checkpoints lists the checkpoints of a folder, newest first, and checks the
// sums of their files. A folder that does not exist has none. It needs no lock: a
// run that uses the folder is not disturbed, and may remove what was listed.
func Checkpoints(dir string) ([]CheckpointInfo, error) {
	steps, err := listCheckpoints(dir)
	if err != nil {
		return nil, err
	}
	var best bestState
	// A missing or damaged pointer leaves no checkpoint marked.
	if text, err := files.Read(filepath.Join(dir, bestFile), maxStateBytes); err != nil || json.Unmarshal(text, &best) != nil {
		best.Step = -1
	}
	var found []CheckpointInfo
	for _, step := range slices.Backward(steps) {
		info := CheckpointInfo{Path: filepath.Join(dir, checkpointName(step)), Step: step}
		state, err := verify(info.Path)
		if err != nil {
			info.Err = err
		} else {
			info.Variables = filepath.Join(info.Path, variables)
			info.Epochs = state.EpochsDone
			info.Identity = state.Identity
			info.Best = step == best.Step
			// The time is for people; one that cannot be read is the zero time.
			info.Written, _ = time.Parse(time.RFC3339, state.Written)
		}
		found = append(found, info)
	}
	return found, nil
}

// HookState is what the hook of a name saved in the newest checkpoint of a folder whose
// state can be read, for what has to be known before a session is opened: nil if it saved
// nothing. found is false if there is no such checkpoint. It checks no other files, and
// needs no lock: which checkpoint a run resumes from, Loop.Run decides.
func HookState(dir, hook string) (state json.RawMessage, found bool, err error) {
	steps, err := listCheckpoints(dir)
	if err != nil {
		return nil, false, err
	}
	for _, step := range slices.Backward(steps) {
		saved, err := readState(filepath.Join(dir, checkpointName(step)))
		if err == nil {
			return saved.Hooks[hook], true, nil
		}
	}
	return nil, false, nil
}

// listCheckpoints returns the steps of the folders ckpt-<step>, ascending.
func listCheckpoints(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	var steps []int64
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), checkpointPrefix)
		step, err := strconv.ParseInt(number, 10, 64)
		if ok && err == nil && step >= 0 && checkpointName(step) == e.Name() && e.IsDir() {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// The most bytes of state.json and other small files of a checkpoint, and of a history.
const (
	maxStateBytes   = 64 << 20
	maxHistoryBytes = 1 << 30
)

// readState reads state.json and checks its own sum.
func readState(path string) (checkpointState, error) {
	var state checkpointState
	text, err := files.Read(filepath.Join(path, stateFile), maxStateBytes)
	if errors.Is(err, fs.ErrNotExist) {
		kind := ErrForeign
		if !missing(filepath.Join(path, historyFile)) {
			kind = ErrTorn
		}
		return state, fmt.Errorf("%w: there is no %s", kind, stateFile)
	}
	if err != nil {
		return state, readError(err)
	}
	return parseState(text)
}

func parseState(text []byte) (state checkpointState, err error) {
	var envelope stateEnvelope
	if err := json.Unmarshal(text, &envelope); err != nil {
		return state, fmt.Errorf("%w: %s: %w", ErrTorn, stateFile, err)
	}
	// A flipped bit must not make a damaged checkpoint look like one of another
	// program or version.
	if sum := envelope.headerSum(); envelope.Header != "" && sum != envelope.Header {
		return state, fmt.Errorf("%w: the header of %s has the sum %s, expected %s", ErrTorn, stateFile, sum, envelope.Header)
	}
	if envelope.Format != stateFormat {
		return state, fmt.Errorf("%w: %s is of format %q, expected %q", ErrForeign, stateFile, envelope.Format, stateFormat)
	}
	if envelope.Version != stateVersion {
		kind := ErrForeign
		if envelope.Version > stateVersion {
			kind = ErrFuture
		}
		return state, fmt.Errorf("%w: %s is of version %d, written by %s; this is %s, which reads version %d",
			kind, stateFile, envelope.Version, cmp.Or(envelope.Writer, "a program that it does not name"), program(), stateVersion)
	}
	var inner bytes.Buffer
	if err := json.Compact(&inner, envelope.State); err != nil {
		return state, fmt.Errorf("%w: %s: %w", ErrTorn, stateFile, err)
	}
	if sum := checksum(crc32.Checksum(inner.Bytes(), castagnoli)); sum != envelope.CRC {
		return state, fmt.Errorf("%w: %s has the sum %s, expected %s", ErrTorn, stateFile, sum, envelope.CRC)
	}
	if err := json.Unmarshal(inner.Bytes(), &state); err != nil {
		return state, fmt.Errorf("%w: %s: %w", ErrTorn, stateFile, err)
	}
	return state, nil
}

// readError is the error of a file of a checkpoint that was not read: ErrTorn if that is
// not there, or is no file. Anything else, such as a right that is missing, a disk or a
// mount that fails or a limit of open files, says nothing about the checkpoint.
func readError(err error) error {
	for _, gone := range []error{fs.ErrNotExist, syscall.ENOTDIR, syscall.EISDIR, files.ErrTooLarge} {
		if errors.Is(err, gone) {
			return fmt.Errorf("%w: %w", ErrTorn, err)
		}
	}
	return err
}

// remedyUnread says what to do about a checkpoint that could not be read.
func remedyUnread(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "give this user the right to read it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.EIO):
		return remedyFor(err)
	}
	return "see to it that its files can be read"
}

// verify reads state.json and checks every file that it lists.
func verify(path string) (checkpointState, error) {
	state, err := readState(path)
	if err != nil {
		return state, err
	}
	for _, want := range state.Files {
		if !filepath.IsLocal(filepath.FromSlash(want.Name)) {
			return state, fmt.Errorf("%w: %s lists %q, which is outside of the checkpoint", ErrForeign, stateFile, want.Name)
		}
		got, err := sumFile(filepath.Join(path, filepath.FromSlash(want.Name)))
		if err != nil {
			return state, readError(err)
		}
		if got.Bytes != want.Bytes || got.CRC != want.CRC {
			return state, fmt.Errorf("%w: %s has %d bytes with the sum %s, expected %d bytes with %s",
				ErrTorn, want.Name, got.Bytes, got.CRC, want.Bytes, want.CRC)
		}
	}
	return state, nil
}

// newestCheckpoint finds the newest checkpoint that is whole. Others are
// skipped with a warning. If there are only damaged ones, that is an error: a
// training of days must not begin anew because of a bad disk, unnoticed. So is
// one of a newer version, or one that could not be read, which may be whole: going on
// from an older one would undo its training.
func (r *run) newestCheckpoint(dir string) (path string, state checkpointState, err error) {
	steps, err := listCheckpoints(dir)
	if err != nil {
		return "", state, err
	}
	var torn []error
	for _, step := range slices.Backward(steps) {
		path := filepath.Join(dir, checkpointName(step))
		state, err := verify(path)
		if err == nil {
			return path, state, nil
		}
		if errors.Is(err, ErrFuture) {
			return "", state, fmt.Errorf("cannot resume from %s: %w; resume with the program that wrote it, or move it out of %s to go back to the checkpoint before it", path, err, dir)
		}
		if !errors.Is(err, ErrTorn) && !errors.Is(err, ErrForeign) {
			return "", state, fmt.Errorf("cannot resume from %s: %w; it may be whole, so no older one is taken: %s, and resume again, or move it out of %s to go back to the checkpoint before it", path, err, remedyUnread(err), dir)
		}
		r.log.Warn("skipping a checkpoint that cannot be used", "checkpoint", path, "error", err)
		if errors.Is(err, ErrTorn) {
			torn = append(torn, fmt.Errorf("%s: %w", path, err))
		}
	}
	if len(torn) > 0 {
		return "", state, fmt.Errorf("nothing to resume from: every checkpoint is damaged; remove them to begin anew: %w", errors.Join(torn...))
	}
	return "", state, nil
}

// resume brings the session, the run and the hooks to where a checkpoint left
// them, or the hooks to their beginning.
func (r *run) resume(ctx context.Context) (err error) {
	if err := r.interrupted(ctx); err != nil {
		return err
	}
	dir := r.loop.Resume
	var path string
	var state checkpointState
	if dir != "" {
		var lock *folderLock
		if lock, err = r.lockToRead(dir); err != nil {
			return err
		}
		// The Checkpoint hook takes it again, and looks whether anything changed.
		defer func() {
			if released := lock.release(); err == nil && released != nil {
				err = fmt.Errorf("unlocking %s: %w", dir, released)
			}
		}()
		if path, state, err = r.newestCheckpoint(dir); err != nil {
			return err
		}
	}
	if path != "" {
		if err := r.restore(ctx, path, state); err != nil {
			return err
		}
	} else if dir != "" {
		if r.logs, err = readBegun(dir); err != nil {
			return err
		}
	}
	if o := r.loop.Recover; o != nil && o.Load != nil && state.Recovery != nil {
		if err := o.Load(state.Recovery); err != nil {
			return fmt.Errorf("resuming from %s: state of Loop.Recover: %w", path, err)
		}
	}
	for i := range r.hooks {
		h := &r.hooks[i]
		if h.Load == nil {
			continue
		}
		var own string
		saved, ok := state.Hooks[h.Name]
		if ok {
			own = filepath.Join(path, hookDir(h.Name))
		}
		if err := h.Load(own, saved); err != nil {
			return &HookError{Hook: h.Name, Phase: "load", Err: err}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(state.Hooks)) {
		if !slices.ContainsFunc(r.hooks, func(h Hook) bool { return h.Name == name }) {
			r.log.Warn("the checkpoint has the state of a hook that this run lacks", "checkpoint", path, "hook", name)
		}
	}
	return nil
}

// lockToRead locks a folder of checkpoints while a run reads from it, and tidies
// it up. A folder that is not there, or that cannot be changed, is not locked.
func (r *run) lockToRead(dir string) (*folderLock, error) {
	lock, err := lockFolder(dir)
	var locked *LockedError
	if errors.As(err, &locked) {
		return nil, err
	}
	if err != nil {
		r.log.Debug("reading checkpoints without a lock", "folder", dir, "error", err)
		return nil, nil
	}
	lock.warn(r.log, dir)
	if err := (disk{}).tidy(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("%w", err), lock.release())
	}
	return lock, nil
}

// VariableChecker is a Session that can tell whether a checkpoint of another
// model has exactly the variables of its own: names, types and shapes;
// *session.Session is one. Without it, Loop.ResumeAnyway does not resume with another model, since a restored
// variable of another shape may go unnoticed until a step fails, or longer.
type VariableChecker interface {
	// CheckVariables returns what does not fit, or nil. It changes nothing. prefix
	// is as in Save.
	CheckVariables(ctx context.Context, prefix string) error
}

// accept decides whether the run resumes in spite of differences, and warns of
// each if it does.
func (r *run) accept(path string, state checkpointState, found []Difference) error {
	mismatch := &MismatchError{Checkpoint: path, Differences: found}
	for _, d := range found {
		if why := r.fixed(path, state, d.Key); why != "" {
			if mismatch.Fixed == nil {
				mismatch.Fixed = make(map[string]string)
			}
			mismatch.Fixed[d.Key] = why
		}
	}
	if !r.loop.ResumeAnyway || len(mismatch.Fixed) > 0 {
		return mismatch
	}
	for _, d := range found {
		r.log.Warn("resuming in spite of a difference", "difference", d.Key,
			"in_checkpoint", orAbsent(d.Checkpoint), "now", orAbsent(d.Run), "checkpoint", path)
	}
	return nil
}

// fixed says why a run cannot resume in spite of a difference; it returns
// nothing if it can.
func (r *run) fixed(path string, state checkpointState, key string) string {
	switch key {
	case modelKey:
		checker, ok := r.state.Session.(VariableChecker)
		if !ok {
			return "the variables of another model may not fit, and the session cannot tell"
		}
		if err := checker.CheckVariables(r.steady, filepath.Join(path, variables)); err != nil {
			return "the variables do not fit: " + err.Error()
		}
	case metricsKey:
		if state.EpochStep > 0 {
			return "the checkpoint is from the middle of an epoch, whose means cannot be continued"
		}
	}
	return ""
}

// restore applies a checkpoint, which is whole, to the session and the run.
func (r *run) restore(ctx context.Context, path string, state checkpointState) error {
	identity, err := r.identify(ctx)
	if err != nil {
		return fmt.Errorf("resuming from %s: %w", path, err)
	}
	found := differences(state.Identity, identity)
	var metrics []string
	for _, sum := range state.Sums {
		metrics = append(metrics, sum.Name)
	}
	if !slices.Equal(metrics, r.train.names) {
		found = append(found, Difference{metricsKey, strings.Join(metrics, ", "), strings.Join(r.train.names, ", ")})
	}
	if len(found) > 0 {
		slices.SortFunc(found, func(a, b Difference) int { return cmp.Compare(a.Key, b.Key) })
		if err := r.accept(path, state, found); err != nil {
			return err
		}
		state = forced(state, found)
	}
	records, err := readHistory(filepath.Join(path, historyFile))
	if err != nil {
		return fmt.Errorf("resuming from %s: %w", path, err)
	}
	if err := r.state.Session.Restore(r.steady, filepath.Join(path, variables)); err != nil {
		return fmt.Errorf("resuming from %s: restoring the model: %w", path, err)
	}
	if stateful, ok := r.state.Session.(Stateful); ok {
		if err := stateful.SetState(state.Session); err != nil {
			return fmt.Errorf("resuming from %s: state of the session: %w", path, err)
		}
	}
	s := &r.state
	s.History.Records, s.History.ResumedFrom, s.History.Checkpoint = records, path, path
	state.sums = make([]float64, len(r.train.names))
	if state.EpochStep > 0 {
		for i, sum := range state.Sums {
			state.sums[i] = float64(sum.Sum)
		}
	}
	s.Position, r.tally = state.Position, state.tally
	r.trained, r.rescaled = state.Trained, state.Rescaled
	r.logs, r.passed = state.Logs, state.Passed
	s.Epoch = min(s.EpochsDone+1, max(r.loop.Epochs, s.EpochsDone))
	r.log.Info("resuming", "checkpoint", path, "epochs_done", s.EpochsDone, "step", s.Step)
	if s.EpochsDone >= r.loop.Epochs {
		r.stop = fmt.Sprintf("already complete: %s has %d of %d epochs; a larger number of epochs trains more", path, s.EpochsDone, r.loop.Epochs)
		r.log.Info("nothing to train", "reason", r.stop)
	}
	return nil
}

// forcedEvent says in the history that an epoch began in spite of differences.
const forcedEvent = "resumed_anyway"

// forced is the state to continue from in spite of differences. If those make
// the position in the data mean nothing, the pass in progress is given up.
func forced(state checkpointState, found []Difference) checkpointState {
	state.Events = append(slices.Clip(state.Events), forcedEvent)
	moved := slices.ContainsFunc(found, func(d Difference) bool { return slices.Contains(positionKeys, d.Key) })
	if moved && state.PassBatch > 0 {
		state.Pass, state.PassBatch = state.Pass+1, 0
	}
	return state
}

// differences lists what two identities disagree on.
func differences(checkpoint, run map[string]string) []Difference {
	keys := maps.Clone(checkpoint)
	if keys == nil {
		keys = make(map[string]string)
	}
	maps.Copy(keys, run)
	var found []Difference
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if slices.Contains(laterKeys, key) && (checkpoint[key] == "" || run[key] == "") {
			continue
		}
		if checkpoint[key] != run[key] {
			found = append(found, Difference{Key: key, Checkpoint: checkpoint[key], Run: run[key]})
		}
	}
	return found
}

// readHistory reads the history of a checkpoint.
func readHistory(path string) ([]Record, error) {
	text, err := files.Read(path, maxHistoryBytes)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return parseHistory(text)
}

func parseHistory(text []byte) ([]Record, error) {
	var records []Record
	for line := range bytes.Lines(text) {
		var record Record
		if err := json.Unmarshal(line, &record); err != nil {
			return nil, fmt.Errorf("history: %w", err)
		}
		records = append(records, record)
	}
	return records, nil
}
