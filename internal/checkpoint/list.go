package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"steadyfit/internal/disk"
	"steadyfit/internal/files"
	"steadyfit/option"
)

// Info describes a checkpoint on disk.
type Info struct {
	Path      string
	Variables string
	Step      int64
	Epochs    int
	Written   time.Time
	Identity  map[string]string // the values that a run must match to resume
	Best      bool
	Err       error
}

// List returns the checkpoints of a folder, newest first, and verifies their files.
func List(dir string) ([]Info, error) {
	steps, err := listSteps(dir)
	if err != nil {
		return nil, err
	}
	var best Best
	// No checkpoint is the best without a valid best.json.
	if text, err := files.Read(filepath.Join(dir, bestFile), maxStateBytes); err != nil || json.Unmarshal(text, &best) != nil {
		best.Step = -1
	}
	var found []Info
	for _, step := range slices.Backward(steps) {
		info := Info{Path: filepath.Join(dir, name(step)), Step: step}
		if s, err := verify(info.Path); err != nil {
			info.Err = err
		} else {
			info.Variables, info.Epochs, info.Identity = filepath.Join(info.Path, Variables), s.Epochs, s.Identity
			info.Best = step == best.Step
			info.Written, _ = time.Parse(time.RFC3339, s.Written) // an invalid time becomes the zero time
		}
		found = append(found, info)
	}
	return found, nil
}

// entriesOf lists a folder. A folder that does not exist has no entries.
func entriesOf(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return nil, &option.Error{Option: "Checkpoint", Value: dir, Reason: "it is not a folder", Fix: "name a folder for checkpoints", Err: err}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	return entries, nil
}

func listSteps(dir string) ([]int64, error) {
	entries, err := entriesOf(dir)
	if err != nil {
		return nil, err
	}
	var steps []int64
	for _, e := range entries {
		step, err := strconv.ParseInt(strings.TrimPrefix(e.Name(), prefix), 10, 64)
		if err == nil && step >= 0 && name(step) == e.Name() && e.IsDir() {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// Newest returns the step of the newest checkpoint of a folder, which may be damaged.
func Newest(dir string) (step int64, found bool, err error) {
	steps, err := listSteps(dir)
	if err != nil || len(steps) == 0 {
		return 0, false, err
	}
	return steps[len(steps)-1], true, nil
}

// Adopt moves all checkpoints from one folder (the argument from) to another one on the same file
// system (dir). It removes the other checkpoints of dir, except those that are newer: these are
// renamed, with a warning.
func Adopt(dir, from string, log *slog.Logger) (err error) {
	lock, err := Acquire(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	var d disk.Disk
	old, err := listSteps(dir)
	steps, errFrom := listSteps(from)
	if err = errors.Join(err, errFrom); err != nil {
		return err
	}
	for _, step := range steps {
		path := filepath.Join(from, name(step))
		if _, err := syncTree(d, path); err != nil {
			return err
		}
		if err := publish(d, path, filepath.Join(dir, name(step))); err != nil {
			return err
		}
	}
	for _, step := range old {
		path := filepath.Join(dir, name(step))
		switch {
		case slices.Contains(steps, step):
		case len(steps) > 0 && step > slices.Max(steps):
			aside := filepath.Join(dir, newerPrefix+strconv.FormatInt(step, 10))
			if err = d.Remove(aside); err == nil {
				err = d.Rename(path, aside)
			}
			if err == nil {
				log.Warn("a checkpoint is newer than the one from which all ranks resume; it was renamed", "step", slices.Max(steps), "checkpoint", path, "now", aside)
			}
		default:
			err = discard(d, path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// HookState returns the state of a hook in the newest readable checkpoint of a folder; nil if
// the hook saved none. found is false if there is no checkpoint. HookState does not verify other
// files, and takes no lock.
func HookState(dir, hook string) (saved json.RawMessage, found bool, err error) {
	steps, err := listSteps(dir)
	if err != nil {
		return nil, false, err
	}
	for _, step := range slices.Backward(steps) {
		if s, err := readState(filepath.Join(dir, name(step))); err == nil {
			return s.Hooks[hook], true, nil
		}
	}
	return nil, false, nil
}

// CheckUnused returns the error that a new training in a folder would get: an *option.Error if
// the folder has checkpoints of an earlier training, or a *LockedError if another run uses it.
// A folder that does not exist or has no checkpoint is unused.
func CheckUnused(dir string) error {
	steps, err := listSteps(dir)
	if err != nil {
		return err
	}
	earlier := refuseEarlier(dir, steps)
	if earlier == nil {
		return nil
	}
	lock, err := Acquire(dir)
	if errors.Is(err, ErrLocked) {
		return err
	}
	return errors.Join(earlier, lock.Release())
}

// refuseEarlier returns the error of a new training in a folder with checkpoints of these
// steps, in ascending order; nil if all are foreign.
func refuseEarlier(dir string, steps []int64) error {
	for _, step := range slices.Backward(steps) {
		path := filepath.Join(dir, name(step))
		switch _, err := readState(path); {
		case errors.Is(err, ErrFuture):
			return ofFuture(path, err)
		case !errors.Is(err, ErrForeign):
			return &option.Error{Option: "Checkpoint", Value: dir, Reason: "it holds checkpoints of an earlier training (the newest is " + name(step) + ")", Fix: "continue it with {Loop.Resume}, or name another folder"}
		}
	}
	return nil
}

func ofFuture(path string, err error) error {
	return &option.Error{Option: "Checkpoint", Value: path, Reason: err.Error(), Fix: "name another folder, or use the program that wrote it"}
}

// Resumable is the state from which a run resumes.
type Resumable[State any] struct {
	// Path is the checkpoint, and State its state. Both are zero if the folder has no
	// checkpoint.
	Path  string
	State State
	// Skipped are the steps of newer checkpoints that cannot be used.
	Skipped []int64
	// Logs has the size of each log file when the training began, if there is no checkpoint.
	Logs map[string]int64

	lock *Lock
}

// Release unlocks the folder.
func (r *Resumable[State]) Release() error {
	if err := r.lock.Release(); err != nil {
		return fmt.Errorf("unlocking a folder of checkpoints: %w", err)
	}
	return nil
}

// Resume finds the newest intact checkpoint of a folder and locks the folder until Release. It
// skips torn and foreign checkpoints with a warning. If all checkpoints are torn, it returns an
// error, so that a bad disk does not silently restart a training. A newer checkpoint that
// another version wrote or that cannot be read is also an error, since an older one would undo
// its training.
func Resume[State any](dir string, log *slog.Logger) (_ *Resumable[State], err error) {
	r := &Resumable[State]{}
	defer func() {
		if err != nil {
			_ = r.lock.Release() // nothing was written
		}
	}()
	// A folder that does not exist or is read-only is not locked.
	if r.lock, err = Acquire(dir); errors.Is(err, ErrLocked) {
		return nil, err
	} else if err != nil {
		log.Debug("reading checkpoints without a lock", "folder", dir, "error", err)
	} else {
		r.lock.warn(log, dir)
		if err := tidy(disk.Disk{}, dir); err != nil {
			return nil, err
		}
	}
	steps, err := listSteps(dir)
	if err != nil {
		return nil, err
	}
	var torn []error
	for _, step := range slices.Backward(steps) {
		path := filepath.Join(dir, name(step))
		s, err := verify(path)
		if err == nil {
			var state State // a new variable, since a failed decoding leaves fields behind
			if err = json.Unmarshal(s.raw, &state); err == nil {
				r.Path, r.State = path, state
				return r, nil
			}
			err = fmt.Errorf("%w: %s: %w", ErrTorn, stateFile, err)
		}
		switch {
		case errors.Is(err, ErrFuture):
			return nil, fmt.Errorf("cannot resume from %s: %w; resume with the program that wrote it, or move it out of %s to resume from the checkpoint before it", path, err, dir)
		case errors.Is(err, ErrTorn):
			torn = append(torn, fmt.Errorf("%s: %w", path, err))
		case !errors.Is(err, ErrForeign):
			return nil, fmt.Errorf("cannot resume from %s: %w; it may be intact, so no older one is used; %s and resume again, or move it out of %s to resume from the checkpoint before it", path, err, remedyUnread(err), dir)
		}
		log.Warn("skipping a checkpoint that cannot be used", "checkpoint", path, "error", err)
		r.Skipped = append(r.Skipped, step)
	}
	if len(torn) > 0 {
		return nil, fmt.Errorf("nothing to resume from: every checkpoint is damaged; remove them to start a new training: %w", errors.Join(torn...))
	}
	r.Logs, err = readBegun(dir)
	return r, err
}

// begun is the content of begunFile.
type begun struct {
	// Logs has the size of each log file when the training began, by hook.
	Logs map[string]int64 `json:"logs"`
}

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
		return nil, fmt.Errorf("reading the sizes of log files at the beginning of the training from %s: %w; remove it to leave log files unchanged", path, err)
	}
	return b.Logs, nil
}
