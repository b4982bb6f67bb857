package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"steadyfit/internal/disk"
	"steadyfit/internal/files"
	"steadyfit/internal/jsonfloat"
	"steadyfit/memory"
	"steadyfit/option"
)

// The names in a folder of checkpoints. A name that begins with a dot marks unfinished work.
const (
	prefix          = "ckpt-"
	divergedPrefix  = "diverged-"
	newerPrefix     = "newer-"
	foreignPrefix   = "foreign-" // a folder that is not a checkpoint but had its name
	temporarySuffix = ".tmp"
	trashSuffix     = ".trash"
	replacedSuffix  = ".old" // a checkpoint that is being replaced by one of the same step
	bestFile        = "best.json"
	begunFile       = "begun.json" // the file exists until the training has a checkpoint
)

func name(step int64) string { return prefix + strconv.FormatInt(step, 10) }

// hidden returns the path of unfinished work on a path.
func hidden(path, suffix string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+suffix)
}

func exists(path string) bool { return !disk.Missing(path) }

// Best is the content of best.json: the checkpoint with the best value of a metric.
type Best struct {
	Checkpoint string          `json:"checkpoint"`
	Step       int64           `json:"step"`
	Metric     string          `json:"metric"`
	Value      jsonfloat.Float `json:"value"`
}

// NewBest returns the Best for the checkpoint of a step.
func NewBest(step int64, metric string, value float64) *Best {
	return &Best{name(step), step, metric, jsonfloat.Float(value)}
}

// Options configure a Folder.
type Options struct {
	// Keep is the number of newest checkpoints to keep; 0 keeps all.
	Keep int
	// Tolerate logs errors that leave all good checkpoints intact, instead of returning them.
	// If the folder of a resumed training is not writable, Open then sets Folder.Unwritable.
	Tolerate bool
	// ResumedFrom is the checkpoint from which the training resumed, and Step is its step.
	ResumedFrom string
	Step        int64
	// Skipped are the steps of checkpoints that Resume could not use.
	Skipped []int64
	// Logs has the size of each log file when the training began, by hook.
	Logs map[string]int64
	// Best is the best checkpoint so far, or nil.
	Best *Best
	Disk disk.Disk
	Log  *slog.Logger
}

// Folder is the folder of a training's checkpoints. It is locked until Release.
type Folder struct {
	Options
	*Lock
	// Newest is the newest good checkpoint; empty if there is none.
	Newest string
	// Unwritable is true if the folder was not writable when it was opened.
	Unwritable bool

	dir string
	// pointed is the step of the checkpoint that best.json names, or -1.
	pointed int64
	// begun is true if begunFile exists.
	begun bool
	// saved are the checkpoints of this training, oldest first.
	saved []saved
}

type saved struct {
	step int64
	// proven is true if the weights of the checkpoint have given a finite loss.
	proven bool
	// whole is true if this run wrote or verified the checkpoint.
	whole bool
	bytes int64
}

// Open locks a folder, removes the remains of a crash, finds the checkpoints of the training,
// and checks that the folder can be written. For a new training, a folder with checkpoints is
// an error.
func Open(dir string, o Options) (_ *Folder, err error) {
	f := &Folder{Options: o, dir: dir, Newest: o.ResumedFrom, pointed: -1}
	if err := f.Disk.MakeDir(dir); err != nil {
		return nil, f.failure(dir, err)
	}
	if f.Lock, err = Acquire(dir); errors.Is(err, ErrLocked) {
		return nil, err
	} else if err != nil {
		return nil, f.failure(dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Release())
		}
	}()
	f.Lock.warn(f.Log, dir)
	if err := tidy(f.Disk, dir); err != nil {
		return nil, f.failure(dir, err)
	}
	if err := f.Disk.Probe(dir); err != nil {
		if !f.resumed() || !f.Tolerate {
			return nil, f.failure(dir, err)
		}
		f.Unwritable = true
		f.Log.Warn("training continues, although checkpoints cannot be written now", "error", f.failure(dir, err))
	}
	if err := f.find(); err != nil {
		return nil, err
	}
	if err := f.begin(); err != nil {
		return nil, f.failure(dir, err)
	}
	if f.Best != nil && !exists(f.path(f.Best.Step)) {
		f.Log.Warn("the best checkpoint is gone", "checkpoint", f.path(f.Best.Step))
		f.Best = nil
	}
	if n := len(f.saved); n > 0 {
		if free, ok := files.FreeSpace(dir); ok && free < f.saved[n-1].bytes {
			f.Log.Warn("there is no space for another checkpoint", "folder", dir,
				"free", memory.Bytes(free).String(), "needed", memory.Bytes(f.saved[n-1].bytes).String(), "remedy", remedyFull)
		}
	}
	// A crash may have prevented removals.
	if err = f.order(); err != nil && f.resumed() {
		err = f.tolerate(err)
	}
	return f, err
}

func (f *Folder) path(step int64) string { return filepath.Join(f.dir, name(step)) }

// resumed reports whether the training resumed from a checkpoint in this folder.
func (f *Folder) resumed() bool {
	return f.ResumedFrom != "" && files.Same(filepath.Dir(f.ResumedFrom), f.dir)
}

func (f *Folder) failure(path string, err error) *Error {
	return &Error{Path: path, Good: f.Newest, Remedy: remedyFor(err), Err: err}
}

// tolerate logs an error if Tolerate is set; otherwise it returns the error.
func (f *Folder) tolerate(err error) error {
	if err == nil {
		return nil
	}
	failure := f.failure(f.dir, err)
	if !f.Tolerate {
		return failure
	}
	f.Log.Warn("the folder of checkpoints could not be tidied", "error", failure)
	return nil
}

func (f *Folder) begin() error {
	path := filepath.Join(f.dir, begunFile)
	if f.resumed() {
		f.begun = exists(path)
		return nil
	}
	if f.begun = len(f.Logs) > 0; !f.begun {
		return f.Disk.Remove(path)
	}
	return f.replaceJSON(begunFile, begun{f.Logs})
}

func (f *Folder) replaceJSON(file string, content any) error {
	path := filepath.Join(f.dir, file)
	text, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return f.Disk.Replace(path, append(text, '\n'))
}

func (f *Folder) find() error {
	steps, err := listSteps(f.dir)
	if err != nil {
		return err
	}
	if !f.resumed() {
		return refuseEarlier(f.dir, steps)
	}
	for _, step := range steps {
		if slices.Contains(f.Skipped, step) {
			continue
		}
		path := f.path(step)
		s, err := readState(path)
		switch {
		case errors.Is(err, ErrFuture) && step >= f.Step:
			return ofFuture(path, err)
		case errors.Is(err, ErrForeign):
		case err != nil && !errors.Is(err, ErrTorn):
			f.Log.Warn("a checkpoint cannot be read and is ignored", "path", path, "error", err)
		case err == nil && step <= f.Step:
			// The checkpoint that the run resumed from was verified. The others have later
			// checkpoints, so a finite loss was computed from them.
			f.saved = append(f.saved, saved{step, s.FiniteLoss || step < f.Step, step == f.Step, s.bytes()})
		case err == nil:
			// Another run may have written it between Resume and Open.
			if _, err := verify(path); err == nil {
				return &option.Error{Option: "Checkpoint", Reason: fmt.Sprintf("%s was written by another run after this one had resumed from %s", path, f.ResumedFrom), Fix: "resume again"}
			}
		}
	}
	return nil
}

// Prove records that the loss after step was finite. It removes checkpoints that are no longer
// needed.
func (f *Folder) Prove(step int64) error {
	n := len(f.saved)
	if n == 0 || f.saved[n-1].proven || f.saved[n-1].step >= step {
		return nil
	}
	f.saved[n-1].proven = true
	return f.tolerate(f.prune())
}

// PutAside renames the newest checkpoint if it is that of this step and has given no finite
// loss. A run that resumed from it would diverge again.
func (f *Folder) PutAside(step int64) error {
	n := len(f.saved)
	if n == 0 || f.saved[n-1].proven || f.saved[n-1].step != step {
		return nil
	}
	from, aside := f.path(step), filepath.Join(f.dir, divergedPrefix+strconv.FormatInt(step, 10))
	err := f.Disk.Remove(aside)
	if err == nil {
		err = f.Disk.Rename(from, aside)
	}
	if err == nil {
		err = f.Disk.Sync(f.dir)
	}
	if err != nil {
		return err
	}
	f.Log.Warn("the loss after a checkpoint is not finite; the checkpoint was renamed", "checkpoint", from, "now", aside)
	f.saved, f.Newest = f.saved[:n-1], ""
	if n > 1 {
		f.Newest = f.path(f.saved[n-2].step)
	}
	return nil
}

// Save writes the files of a checkpoint to dir, and returns the content of state.json, of which
// the manifest is a part.
type Save func(dir string) (state any, m *Manifest, err error)

// Write writes the checkpoint of a step. proven is true if the weights have given a finite
// loss. If the disk is full, Write removes old checkpoints and tries again, provided that a
// good one remains. Its errors are an *Error. The caller calls Tidy afterwards.
func (f *Folder) Write(step int64, proven bool, save Save) error {
	path := f.path(step)
	bytes, err := f.tryWrite(path, save)
	full := f.full(err)
	if full {
		if room := f.makeRoom(step, proven); room != nil {
			err = fmt.Errorf("%w (freeing space: %w)", err, room)
		} else {
			bytes, err = f.tryWrite(path, save)
		}
	}
	if err != nil {
		failure := f.failure(path, err)
		if full {
			failure.Remedy = remedyFull
		}
		return failure
	}
	f.Newest = path
	f.saved = append(f.others(step), saved{step, proven, true, bytes})
	return nil
}

// Tidy writes best.json and removes checkpoints that are no longer needed.
func (f *Folder) Tidy() error {
	var err error
	if f.pointed != f.bestStep() {
		err = f.order()
	} else {
		err = f.prune()
	}
	if err == nil && f.begun {
		err = f.Disk.Remove(filepath.Join(f.dir, begunFile))
		f.begun = err != nil
	}
	return f.tolerate(err)
}

// tryWrite writes a checkpoint. After an error, the path has its previous content.
func (f *Folder) tryWrite(path string, save Save) (bytes int64, err error) {
	temporary := hidden(path, temporarySuffix)
	if bytes, err = f.write(temporary, save); err == nil {
		if err = f.setAside(path); err == nil {
			err = publish(f.Disk, temporary, path)
		}
	}
	if err != nil {
		// An incomplete checkpoint takes space. If this removal fails, tidy repeats it.
		_ = f.Disk.Remove(temporary)
		return 0, err
	}
	return bytes, nil
}

func (f *Folder) write(dir string, save Save) (bytes int64, err error) {
	if err := f.Disk.Remove(dir); err != nil {
		return 0, err
	}
	if err := f.Disk.MakeDir(dir); err != nil {
		return 0, err
	}
	state, m, err := save(dir)
	if err != nil {
		return 0, err
	}
	if m.Files, err = syncTree(f.Disk, dir); err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(m.Files, func(f File) bool { return strings.HasPrefix(f.Name, Variables) }) {
		return 0, &Permanent{fmt.Errorf("saving the model: the session wrote no file %s*", Variables)}
	}
	content, err := Encode(state)
	if err != nil {
		return 0, &Permanent{err}
	}
	if err := f.Disk.Write(filepath.Join(dir, stateFile), content); err != nil {
		return 0, err
	}
	return m.bytes() + int64(len(content)), f.Disk.Sync(dir)
}

// setAside renames a folder at the path that is not a checkpoint.
func (f *Folder) setAside(path string) error {
	if _, err := readState(path); !exists(path) || !errors.Is(err, ErrForeign) {
		return nil
	}
	first := filepath.Join(f.dir, foreignPrefix+strings.TrimPrefix(filepath.Base(path), prefix))
	aside := first
	for n := 2; exists(aside); n++ {
		aside = fmt.Sprintf("%s-%d", first, n)
	}
	if err := f.Disk.Rename(path, aside); err != nil {
		return err
	}
	f.Log.Warn("a folder that is not a checkpoint had the name of one; it was renamed", "was", path, "now", aside)
	return nil
}

// full reports whether an error comes from a full disk. Sessions do not always report that
// error, so full also compares the free space with the size of the last checkpoint.
func (f *Folder) full(err error) bool {
	n := len(f.saved)
	switch {
	case err == nil:
		return false
	case files.Full(err):
		return true
	case n == 0, errors.As(err, new(*Permanent)), errors.As(err, new(syscall.Errno)):
		return false
	}
	free, ok := files.FreeSpace(f.dir)
	return ok && free < f.saved[n-1].bytes
}

// makeRoom removes the checkpoints that the new one would replace, if a good one remains.
func (f *Folder) makeRoom(step int64, proven bool) error {
	stay, spare := f.divide(append(f.others(step), saved{step: step, proven: proven}))
	stay = stay[:len(stay)-1]
	if len(spare) == 0 || !slices.ContainsFunc(stay, f.good) {
		return errNoRoom
	}
	for _, s := range spare {
		if err := f.discard(s.step); err != nil {
			return err
		}
		f.saved = f.others(s.step)
		f.Log.Warn("the disk is full; an old checkpoint was removed to write a new one", "checkpoint", f.path(s.step))
	}
	return nil
}

func (f *Folder) others(step int64) []saved {
	return slices.DeleteFunc(slices.Clone(f.saved), func(s saved) bool { return s.step == step })
}

// good reports whether a run can resume from a checkpoint: its weights have given a finite loss, and
// its files are intact.
func (f *Folder) good(s saved) bool {
	if !s.proven || s.whole {
		return s.proven
	}
	_, err := verify(f.path(s.step))
	return err == nil
}

func (f *Folder) bestStep() int64 {
	if f.Best == nil {
		return -1
	}
	return f.Best.Step
}

// order updates or removes best.json, and prunes.
func (f *Folder) order() (err error) {
	if f.Best != nil {
		err = f.replaceJSON(bestFile, f.Best)
	} else if path := filepath.Join(f.dir, bestFile); exists(path) {
		err = f.Disk.Remove(path)
	}
	if err != nil {
		return err
	}
	f.pointed = f.bestStep()
	return f.prune()
}

// prune removes the checkpoints that are not needed. It continues after a failed removal.
func (f *Folder) prune() error {
	stay, spare := f.divide(f.saved)
	var errs []error
	for _, s := range spare {
		if err := f.discard(s.step); err != nil {
			errs = append(errs, fmt.Errorf("removing an old checkpoint: %w", err))
			if exists(f.path(s.step)) {
				stay = append(stay, s)
			}
		}
	}
	slices.SortFunc(stay, func(a, b saved) int { return cmp.Compare(a.step, b.step) })
	f.saved = stay
	return errors.Join(errs...)
}

// divide separates the checkpoints that stay from those that can be removed. The newest Keep
// checkpoints stay, as do the best one, the one that best.json names, and the newest good one.
func (f *Folder) divide(all []saved) (stay, spare []saved) {
	if f.Keep == 0 {
		return slices.Clone(all), nil
	}
	oldest := max(len(all)-f.Keep, 0)
	reserve := int64(-1)
	if oldest > 0 && !slices.ContainsFunc(all[oldest:], f.good) {
		for _, s := range slices.Backward(all[:oldest]) {
			if f.good(s) {
				reserve = s.step
				break
			}
		}
	}
	for i, s := range all {
		if i >= oldest || s.step == reserve || s.step == f.bestStep() || s.step == f.pointed {
			stay = append(stay, s)
		} else {
			spare = append(spare, s)
		}
	}
	return stay, spare
}

func (f *Folder) discard(step int64) error { return discard(f.Disk, f.path(step)) }

// discard removes a folder, if it exists. It renames the folder first, so that other processes
// never see a part of it.
func discard(d disk.Disk, path string) error {
	trash := hidden(path, trashSuffix)
	if err := d.Remove(trash); err != nil || !exists(path) {
		return err
	}
	if err := d.Rename(path, trash); err != nil {
		return err
	}
	return d.Remove(trash)
}

// publish gives a complete folder its final name. An older folder of that name is hidden
// meanwhile, and restored by publish or tidy if publish fails.
func publish(d disk.Disk, temporary, path string) error {
	old := hidden(path, replacedSuffix)
	replaces := exists(path)
	if replaces {
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
	case err != nil && replaces:
		return errors.Join(err, d.Rename(old, path))
	case replaces:
		_ = d.Remove(old) // after an error, the next publish or tidy removes it
	}
	return err
}

func tidy(d disk.Disk, dir string) error {
	entries, err := entriesOf(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		hidden, ofCheckpoint := strings.CutPrefix(e.Name(), "."+prefix)
		original, replaced := strings.CutSuffix(prefix+hidden, replacedSuffix)
		original = filepath.Join(dir, original)
		switch {
		case ofCheckpoint && replaced && !exists(original):
			err = d.Rename(path, original)
		case ofCheckpoint && (replaced || strings.HasSuffix(hidden, temporarySuffix) || strings.HasSuffix(hidden, trashSuffix)),
			strings.HasPrefix(e.Name(), files.ProbePrefix):
			err = d.Remove(path)
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("tidying up after a crash: %w", err)
		}
	}
	return nil
}

func syncTree(d disk.Disk, dir string) ([]File, error) {
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
