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

	"steadyfit/internal/files"
	"steadyfit/option"
)

// Info describes a checkpoint on disk. Package fit exports it.
type Info struct {
	Path string
	// Variables is the prefix for Session.Restore.
	Variables string
	Step      int64
	// Epochs is the number of complete epochs.
	Epochs int
	// Identity has the values that a run must match to resume.
	Identity map[string]string
	// Best reports whether best.json names the checkpoint.
	Best bool
	// Err is nil if the checkpoint is intact. Otherwise only Path and Step are set.
	Err error
}

// List returns the checkpoints of a folder, newest first, and verifies their files.
func List(dir string) ([]Info, error) {
	steps, err := listSteps(dir)
	if err != nil {
		return nil, err
	}
	var best Best
	// No checkpoint is the best without a valid best.json.
	if text, err := files.Read(filepath.Join(dir, bestFile), maxStateBytes); err != nil ||
		json.Unmarshal(text, &best) != nil {
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
		return nil, &option.Error{Option: "Checkpoint", Value: dir, Reason: "it is not a folder",
			Fix: "name a folder for checkpoints", Err: err}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("checkpoints: %w", err)
	}
	return entries, nil
}

// listSteps returns the steps of all checkpoints of a folder in ascending order.
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
// the folder has checkpoints of an earlier training, or ErrLocked if another run uses it.
// A folder that does not exist or has no checkpoint is unused.
func CheckUnused(dir string) error {
	steps, err := listSteps(dir)
	if err != nil || len(steps) == 0 {
		return err
	}
	lock, err := Acquire(dir, slog.New(slog.DiscardHandler))
	if errors.Is(err, ErrLocked) {
		return err
	}
	return errors.Join(usedError(dir, steps), lock.Release())
}

// usedError returns the error of a new training in a folder with checkpoints of these steps; nil if there
// are none.
func usedError(dir string, steps []int64) error {
	if len(steps) == 0 {
		return nil
	}
	return &option.Error{
		Option: "Checkpoint", Value: dir,
		Reason: "it holds checkpoints of an earlier training (the newest is " + name(slices.Max(steps)) + ")",
		Fix:    "continue it with {Loop.Resume}, or name another folder",
	}
}

// Resumable is the state from which a run resumes.
type Resumable[State any] struct {
	// Path is the checkpoint, and State its state. Both are zero if the folder has no
	// checkpoint.
	Path  string
	State State
	// Lock is the lock on the folder; nil for a folder that does not exist or is read-only.
	Lock *Lock
}

// Resume locks a folder and finds its newest intact checkpoint. It skips torn checkpoints with a warning.
// If all checkpoints are torn, it returns an error, so that a bad disk does not silently restart a
// training. A newer checkpoint that cannot be read is also an error, since an older one would undo its
// training.
func Resume[State any](dir string, log *slog.Logger) (r *Resumable[State], err error) {
	r = &Resumable[State]{}
	if r.Lock, err = Acquire(dir, log); errors.Is(err, ErrLocked) {
		return r, err
	} else if err != nil {
		log.Debug("reading checkpoints without a lock", "folder", dir, "error", err)
	} else if err := clean(files.Disk{}, dir); err != nil {
		return r, err
	}
	steps, err := listSteps(dir)
	if err != nil {
		return r, err
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
		if !errors.Is(err, ErrTorn) {
			return r, fmt.Errorf("cannot resume from %s: %w; it may be intact, so no older one is used; make its "+
				"files readable and resume again, or move it out of %s to resume from the checkpoint before it", path, err, dir)
		}
		log.Warn("skipping a checkpoint that cannot be used", "checkpoint", path, "error", err)
		torn = append(torn, fmt.Errorf("%s: %w", path, err))
	}
	if len(torn) > 0 {
		return r, fmt.Errorf("nothing to resume from: every checkpoint is damaged; remove them to start a new training: %w",
			errors.Join(torn...))
	}
	return r, nil
}
