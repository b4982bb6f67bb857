package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/files"
	"steadyfit/internal/texts"
)

// The names in a folder of checkpoints. A name that begins with a dot marks unfinished work.
const (
	prefix          = "ckpt-"
	temporarySuffix = ".tmp"
	trashSuffix     = ".trash"
	replacedSuffix  = ".old" // a checkpoint that is being replaced by one of the same step
	bestFile        = "best.json"
)

func name(step int64) string { return prefix + strconv.FormatInt(step, 10) }

// hidden returns the path of unfinished work on a path.
func hidden(path, suffix string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+suffix)
}

func exists(path string) bool { return !files.IsMissing(path) }

// Best is the content of best.json: the checkpoint with the best value of a metric.
type Best struct {
	Checkpoint string      `json:"checkpoint"`
	Step       int64       `json:"step"`
	Metric     string      `json:"metric"`
	Value      texts.Float `json:"value"`
}

// NewBest returns the Best for the checkpoint of a step.
func NewBest(step int64, metric string, value float64) *Best {
	return &Best{name(step), step, metric, texts.Float(value)}
}

// Options configure a Folder.
type Options struct {
	// Keep is the number of newest checkpoints to keep; 0 keeps all.
	Keep int
	// ResumedFrom is the checkpoint from which the training resumed, and Step is its step.
	ResumedFrom string
	Step        int64
	// Lock is the lock that Resume returned. If it is for another folder, Open takes a lock of its
	// own.
	Lock *Lock
	// Best is the best checkpoint so far, or nil.
	Best *Best
	// Temporary means that no result or error names a checkpoint of the folder.
	Temporary bool
	Disk      files.Disk
	Log       *slog.Logger
}

// Folder is the folder of a training's checkpoints. It is locked until Release.
type Folder struct {
	Options
	// Newest is the newest good checkpoint; empty if there is none or the folder is temporary.
	Newest string

	dir string
	// saved are the steps of the checkpoints of this training, oldest first.
	saved []int64
}

// Open locks a folder, removes the remains of a crash, finds the checkpoints of the training,
// and checks that the folder can be written. For a new training, a folder with checkpoints is
// an error.
func Open(dir string, o Options) (_ *Folder, err error) {
	f := &Folder{Options: o, dir: dir, Newest: o.ResumedFrom}
	if err := f.Disk.MakeDir(dir); err != nil {
		return nil, f.failure(dir, err)
	}
	if !f.Lock.of(dir) {
		if f.Lock, err = Acquire(dir, f.Log); errors.Is(err, ErrLocked) {
			return nil, err
		} else if err != nil {
			return nil, f.failure(dir, err)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Lock.Release())
		}
	}()
	if err := clean(f.Disk, dir); err != nil {
		return nil, f.failure(dir, err)
	}
	if err := f.Disk.Probe(dir); err != nil {
		return nil, f.failure(dir, err)
	}
	if err := f.find(); err != nil {
		return nil, err
	}
	return f, f.tidy() // a crash may have prevented removals
}

func (f *Folder) path(step int64) string { return filepath.Join(f.dir, name(step)) }

func (f *Folder) failure(path string, err error) error {
	return &Error{Path: path, Good: f.Newest, Err: err}
}

// find finds the checkpoints of a training that resumed from a checkpoint in this folder.
func (f *Folder) find() error {
	steps, err := listSteps(f.dir)
	if err != nil {
		return err
	}
	if f.ResumedFrom == "" || !files.Same(filepath.Dir(f.ResumedFrom), f.dir) {
		return usedError(f.dir, steps)
	}
	for _, step := range steps {
		if step > f.Step {
			break // Resume has skipped it
		}
		if _, err := readState(f.path(step)); err != nil {
			f.Log.Warn("a checkpoint that cannot be used is ignored", "checkpoint", f.path(step), "error", err)
			continue
		}
		f.saved = append(f.saved, step)
	}
	return nil
}

// Save writes the files of a checkpoint to dir, and returns the content of state.json, of which
// the manifest is a part.
type Save func(dir string) (state any, m *Manifest, err error)

// Write writes the checkpoint of a step and removes checkpoints that are no longer needed. The error is an
// *Error.
func (f *Folder) Write(step int64, save Save) error {
	path := f.path(step)
	temporary := hidden(path, temporarySuffix)
	err := f.write(temporary, save)
	if err == nil {
		err = publish(f.Disk, temporary, path)
	}
	if err != nil {
		// An incomplete checkpoint takes space. If this removal fails, clean repeats it.
		_ = f.Disk.Remove(temporary)
		return f.failure(path, err)
	}
	if !f.Temporary {
		f.Newest = path
	}
	others := slices.DeleteFunc(f.saved, func(s int64) bool { return s == step })
	f.saved = append(others, step)
	return f.tidy()
}

func (f *Folder) write(dir string, save Save) error {
	if err := f.Disk.Remove(dir); err != nil {
		return err
	}
	if err := f.Disk.MakeDir(dir); err != nil {
		return err
	}
	state, m, err := save(dir)
	if err != nil {
		return err
	}
	if m.Files, err = syncTree(f.Disk, dir); err != nil {
		return err
	}
	if !slices.ContainsFunc(m.Files, func(f File) bool { return strings.HasPrefix(f.Name, Variables) }) {
		return fmt.Errorf("saving the model: the session wrote no file %s*", Variables)
	}
	content, err := Encode(state)
	if err != nil {
		return err
	}
	if err := f.Disk.Write(filepath.Join(dir, stateFile), content); err != nil {
		return err
	}
	return f.Disk.Sync(dir)
}

// tidy updates best.json, and removes the checkpoints that are not needed. The newest Keep checkpoints stay,
// as does the best one.
func (f *Folder) tidy() error {
	if err := f.point(); err != nil {
		return f.failure(filepath.Join(f.dir, bestFile), err)
	}
	if f.Keep == 0 || len(f.saved) <= f.Keep {
		return nil
	}
	oldest := len(f.saved) - f.Keep
	var stay []int64
	for i, step := range f.saved {
		if i >= oldest || f.Best != nil && step == f.Best.Step {
			stay = append(stay, step)
		} else if err := discard(f.Disk, f.path(step)); err != nil {
			return f.failure(f.path(step), fmt.Errorf("removing an old checkpoint: %w", err))
		}
	}
	f.saved = stay
	return nil
}

// point writes or removes best.json, if its content changes.
func (f *Folder) point() error {
	path := filepath.Join(f.dir, bestFile)
	if f.Best == nil {
		if !exists(path) {
			return nil
		}
		return f.Disk.Remove(path)
	}
	content, err := json.Marshal(f.Best)
	if err != nil {
		return err
	}
	content = append(content, '\n')
	if old, err := files.Read(path, maxStateBytes); err == nil && string(old) == string(content) {
		return nil
	}
	return f.Disk.Replace(path, content)
}

// discard removes a folder, if it exists. It renames the folder first, so that other processes
// never see a part of it.
func discard(d files.Disk, path string) error {
	trash := hidden(path, trashSuffix)
	if err := d.Remove(trash); err != nil || !exists(path) {
		return err
	}
	if err := d.Rename(path, trash); err != nil {
		return err
	}
	return d.Remove(trash)
}

// publish gives a complete folder its final name. An older checkpoint of that name is hidden meanwhile. After an error,
// it gets its name back; clean gives it back if the process ends before the new one has the name.
func publish(d files.Disk, temporary, path string) error {
	old := hidden(path, replacedSuffix)
	if exists(path) { // otherwise old may be the only copy, because it could not be renamed after an error
		if !exists(filepath.Join(path, stateFile)) && !exists(filepath.Join(path, History)) {
			return errors.New("a folder that is not a checkpoint has this name; move it away")
		}
		if err := d.Remove(old); err != nil {
			return err
		}
		if err := d.Rename(path, old); err != nil {
			return err
		}
	}
	err := d.Rename(temporary, path)
	if err == nil {
		if err = d.Sync(filepath.Dir(path)); err != nil {
			err = errors.Join(err, d.Rename(path, temporary))
		}
	}
	switch {
	case err == nil:
		_ = d.Remove(old) // after an error, the next publish or clean removes it
	case exists(old):
		err = errors.Join(err, d.Rename(old, path))
	}
	return err
}

// clean removes the remains of a crash.
func clean(d files.Disk, dir string) error {
	entries, err := entriesOf(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		hidden, ofCheckpoint := strings.CutPrefix(e.Name(), "."+prefix)
		original, replaced := strings.CutSuffix(filepath.Join(dir, prefix+hidden), replacedSuffix)
		switch suffix := filepath.Ext(hidden); {
		case ofCheckpoint && replaced && !exists(original):
			err = d.Rename(path, original)
		case ofCheckpoint && slices.Contains([]string{temporarySuffix, trashSuffix, replacedSuffix}, suffix),
			strings.HasPrefix(e.Name(), files.ProbePrefix):
			err = d.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("tidying up after a crash: %w", err)
		}
	}
	return nil
}

// syncTree syncs a folder and its files, and returns the names, sizes and checksums of the files.
func syncTree(d files.Disk, dir string) ([]File, error) {
	var sums []File
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := d.Sync(path); err != nil || entry.IsDir() {
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
