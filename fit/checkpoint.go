package fit

import (
	"bytes"
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
	"slices"
	"strconv"
	"strings"
	"time"
)

// The files of a folder of checkpoints. Names that begin with a dot are of work
// in progress; what a crash leaves of it is tidied up by the next run.
const (
	checkpointPrefix = "ckpt-"
	divergedPrefix   = "diverged-"
	temporarySuffix  = ".tmp"
	trashSuffix      = ".trash"
	// replacedSuffix is for a checkpoint that one of the same step replaces.
	replacedSuffix = ".old"
	bestFile       = "best.json"

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

// stateEnvelope is state.json.
type stateEnvelope struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// CRC is the checksum of State as compact JSON.
	CRC   string          `json:"crc32c"`
	State json.RawMessage `json:"state"`
}

// checkpointState is what a run needs to continue, apart from the model and the
// history.
type checkpointState struct {
	Written string `json:"written"`
	Step    int64  `json:"step"`
	// Epoch is the number of epochs done.
	Epoch int `json:"epoch"`
	// EpochStep is the number of steps done in the epoch in progress.
	EpochStep int `json:"epoch_step"`
	// Pass and PassBatch are the position in the data.
	Pass         int                        `json:"pass"`
	PassBatch    int                        `json:"pass_batch"`
	Samples      int64                      `json:"epoch_samples"`
	Sums         []metricSum                `json:"epoch_sums"`
	Events       []string                   `json:"epoch_events,omitempty"`
	TrainSeconds float64                    `json:"epoch_train_seconds"`
	RateScale    float64                    `json:"learning_rate_scale"`
	Proven       bool                       `json:"finite_loss_seen"`
	Identity     map[string]string          `json:"identity"`
	Hooks        map[string]json.RawMessage `json:"hooks,omitempty"`
	Files        []fileSum                  `json:"files"`
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
type CheckpointOption func(*checkpointer)

// Keep is the number of newest checkpoints to keep; 0 keeps all. The default is
// 3. The best one is kept in addition, if Best is given. So is, for Keep(1), the
// one before the newest until a finite loss shows that the newest is good.
func Keep(n int) CheckpointOption { return func(c *checkpointer) { c.keep = n } }

// EverySteps writes a checkpoint after every n train steps, counted from the
// beginning of training.
func EverySteps(n int) CheckpointOption { return func(c *checkpointer) { c.everySteps = &n } }

// EveryEpochs writes a checkpoint after every n epochs. That, with 1, is the
// default if EverySteps is not given.
func EveryEpochs(n int) CheckpointOption { return func(c *checkpointer) { c.everyEpochs = &n } }

// Best also writes a checkpoint after every epoch in which the metric, such as
// "val_loss", is better than ever, and keeps the best one. best.json in the
// folder says which one that is. Give a Direction if the name of the metric
// does not tell.
func Best(metric string, direction ...Direction) CheckpointOption {
	return func(c *checkpointer) {
		c.best = &monitor{metric: metric, direction: Auto}
		if len(direction) > 0 {
			c.best.direction = direction[0]
		}
	}
}

// withDisk makes a Checkpoint that tests can crash.
func withDisk(d disk) CheckpointOption { return func(c *checkpointer) { c.disk = d } }

// Checkpoint is a hook that writes checkpoints to folders dir/ckpt-<step>, from
// which Loop.Resume continues: after every epoch, or as the options say, and at
// the end of a run, cancelled ones included. The folder is for one training
// alone: a run that begins anew in a folder that has checkpoints is refused.
//
// A checkpoint is written to a temporary name, synced file by file, and renamed;
// only then are older ones removed. So a crash at any moment, of the process or
// of the machine, leaves the checkpoints that were there or those and the new
// one. A failure to write one ends the run.
//
// So that a checkpoint is not resumed with other data, the training and the
// validation data are read once through when the run starts; see MismatchError.
//
// A run that ends with an error of the session or of a hook, or with a
// DivergedError, writes no checkpoint at its end.
func Checkpoint(dir string, options ...CheckpointOption) Hook {
	c := &checkpointer{dir: dir, keep: 3}
	for _, o := range options {
		o(c)
	}
	return Hook{
		Name: "checkpoint", Priority: PriorityCheckpoint,
		Load: c.load, Save: c.save, Start: c.start, Step: c.step, Epoch: c.epoch, End: c.end,
	}
}

type checkpointer struct {
	dir                     string
	keep                    int
	everySteps, everyEpochs *int
	best                    *monitor
	disk                    disk

	stepPeriod  int64
	epochPeriod int
	bestStep    int64
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
}

// bestState is what the hook remembers, and the content of best.json.
type bestState struct {
	Checkpoint string `json:"checkpoint"`
	Step       int64  `json:"step"`
	Metric     string `json:"metric"`
	Value      number `json:"value"`
}

func (c *checkpointer) load(_ string, state json.RawMessage) error {
	c.kept, c.bestStep = nil, -1
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
		return &OptionError{"Checkpoint", "it has no folder", "name one that is for this training alone"}
	}
	if c.keep < 0 {
		return &OptionError{"Keep", fmt.Sprintf("it is %d, but has to be at least 0", c.keep), "0 keeps all"}
	}
	c.stepPeriod, c.epochPeriod = 0, 0
	if c.everySteps != nil {
		if *c.everySteps < 1 {
			return &OptionError{"EverySteps", fmt.Sprintf("it is %d, but has to be at least 1", *c.everySteps), "leave it out to write one per epoch"}
		}
		c.stepPeriod = int64(*c.everySteps)
	}
	if c.everyEpochs != nil {
		if *c.everyEpochs < 1 {
			return &OptionError{"EveryEpochs", fmt.Sprintf("it is %d, but has to be at least 1", *c.everyEpochs), "leave it out to write one per epoch"}
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
	if err := c.disk.makeDir(c.dir); err != nil {
		return err
	}
	if err := c.disk.tidy(c.dir); err != nil {
		return err
	}
	found, err := listCheckpoints(c.dir)
	if err != nil {
		return err
	}
	resumed := s.History.ResumedFrom != "" && sameDir(filepath.Dir(s.History.ResumedFrom), c.dir)
	for _, step := range found {
		state, err := readState(filepath.Join(c.dir, checkpointName(step)))
		switch {
		case errors.Is(err, ErrForeign):
		case !resumed:
			return &OptionError{"Checkpoint", fmt.Sprintf("%s holds checkpoints of an earlier training (%s)", c.dir, checkpointName(step)), "continue it with Loop.Resume, or name another folder"}
		case err == nil && step <= s.Step:
			// Finite losses came after all but the one that the run resumes from,
			// or there would not be later ones.
			c.kept = append(c.kept, keptCheckpoint{step, state.Proven || step < s.Step})
		}
	}
	c.lastStep, c.lastDone = s.Step, s.run.done
	if c.bestStep >= 0 && missing(filepath.Join(c.dir, checkpointName(c.bestStep))) {
		s.run.log.Warn("the best checkpoint is gone", "checkpoint", filepath.Join(c.dir, checkpointName(c.bestStep)))
		c.bestStep = -1
	}
	if err := c.pointToBest(); err != nil {
		return err
	}
	// A crash may have come before the last removals.
	if err := c.prune(); err != nil {
		return err
	}
	// Checkpoints need it. Computed here, a long pass over the data does not fall
	// into an epoch, nor between Ctrl-C and the last checkpoint.
	_, err = s.run.identify(ctx)
	return err
}

func (c *checkpointer) step(_ context.Context, s *State) error {
	if n := len(c.kept); n > 0 && !c.kept[n-1].proven && c.kept[n-1].step < s.Step {
		c.kept[n-1].proven = true
		if err := c.prune(); err != nil {
			return err
		}
	}
	// The last step of an epoch gets its checkpoint when the epoch is complete.
	if c.stepPeriod > 0 && s.Step%c.stepPeriod == 0 && s.EpochStep < s.StepsPerEpoch {
		return c.write(s)
	}
	return nil
}

func (c *checkpointer) epoch(_ context.Context, s *State) error {
	due := (c.stepPeriod > 0 && s.Step%c.stepPeriod == 0) || (c.epochPeriod > 0 && s.Epoch%c.epochPeriod == 0)
	if c.best != nil {
		if value, ok := s.Record.Metrics.Get(c.best.metric); ok && c.best.improves(value) {
			c.best.set(value)
			c.bestStep = s.Step
			due = true
		}
	}
	if !due {
		return nil
	}
	return c.write(s)
}

func (c *checkpointer) end(_ context.Context, s *State) error {
	var diverged *DivergedError
	if errors.As(s.Err, &diverged) {
		return c.putAside(s)
	}
	if !s.run.sound || (s.Step == c.lastStep && s.run.done == c.lastDone) {
		return nil
	}
	return c.write(s)
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
// not be kept any longer.
func (c *checkpointer) write(s *State) error {
	path := filepath.Join(c.dir, checkpointName(s.Step))
	temporary := hidden(path, temporarySuffix)
	if err := s.run.writeCheckpoint(c.disk, temporary); err != nil {
		// What cannot be removed now is removed when the next run begins.
		_ = c.disk.remove(temporary)
		return fmt.Errorf("writing checkpoint %s: %w", path, err)
	}
	if err := c.disk.publish(temporary, path); err != nil {
		return fmt.Errorf("writing checkpoint %s: %w", path, err)
	}
	s.History.Checkpoint = path
	c.lastStep, c.lastDone = s.Step, s.run.done
	if n := len(c.kept); n > 0 && c.kept[n-1].step == s.Step {
		c.kept = c.kept[:n-1]
	}
	c.kept = append(c.kept, keptCheckpoint{s.Step, s.run.proven})
	if c.bestStep == s.Step {
		if err := c.pointToBest(); err != nil {
			return err
		}
	}
	return c.prune()
}

// pointToBest writes best.json, or removes one that a later state left.
func (c *checkpointer) pointToBest() error {
	path := filepath.Join(c.dir, bestFile)
	if c.bestStep < 0 {
		if missing(path) {
			return nil
		}
		return c.disk.remove(path)
	}
	content, err := json.Marshal(c.bestState())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return c.disk.replace(path, append(content, '\n'))
}

// prune removes all checkpoints but the newest ones, the best one, and the
// newest that is proven.
func (c *checkpointer) prune() error {
	if c.keep == 0 {
		return nil
	}
	oldest := max(len(c.kept)-c.keep, 0)
	spare := -1
	if !slices.ContainsFunc(c.kept[oldest:], func(k keptCheckpoint) bool { return k.proven }) {
		for i := oldest - 1; i >= 0 && spare < 0; i-- {
			if c.kept[i].proven {
				spare = i
			}
		}
	}
	var kept []keptCheckpoint
	for i, k := range c.kept {
		if i >= oldest || i == spare || k.step == c.bestStep {
			kept = append(kept, k)
			continue
		}
		if err := c.disk.discard(filepath.Join(c.dir, checkpointName(k.step))); err != nil {
			return fmt.Errorf("removing an old checkpoint: %w", err)
		}
	}
	c.kept = kept
	return nil
}

// writeCheckpoint writes a complete checkpoint to a folder and syncs it.
func (r *run) writeCheckpoint(d disk, dir string) error {
	s := &r.state
	identity, err := r.identify(r.steady)
	if err != nil {
		return err
	}
	if err := d.remove(dir); err != nil {
		return err
	}
	if err := d.makeDir(dir); err != nil {
		return err
	}
	if err := s.Session.Save(r.steady, filepath.Join(dir, variables)); err != nil {
		return fmt.Errorf("saving the model: %w", err)
	}
	state := checkpointState{
		Written: r.now().UTC().Format(time.RFC3339),
		Step:    s.Step, Epoch: r.done, EpochStep: s.EpochStep, Pass: r.pass, PassBatch: r.passBatch,
		Samples: r.samples, Events: r.events, TrainSeconds: r.trainTime().Seconds(),
		RateScale: r.scale, Proven: r.proven, Identity: identity,
	}
	for i, name := range r.trainNames {
		state.Sums = append(state.Sums, metricSum{name, number(r.sums[i])})
	}
	if state.Hooks, err = r.saveHooks(d, dir); err != nil {
		return err
	}
	var history bytes.Buffer
	for _, record := range s.History.Records {
		line, err := json.Marshal(record)
		if err != nil {
			return fmt.Errorf("history of epoch %d: %w", record.Epoch, err)
		}
		history.Write(append(line, '\n'))
	}
	if err := d.write(filepath.Join(dir, historyFile), history.Bytes()); err != nil {
		return err
	}
	if state.Files, err = d.syncTree(dir); err != nil {
		return err
	}
	if !slices.ContainsFunc(state.Files, func(f fileSum) bool { return strings.HasPrefix(f.Name, variables) }) {
		return fmt.Errorf("saving the model: the session wrote no file %s*", variables)
	}
	content, err := encodeState(state)
	if err != nil {
		return err
	}
	if err := d.write(filepath.Join(dir, stateFile), content); err != nil {
		return err
	}
	return d.sync(dir)
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
			return nil, fmt.Errorf("state of hook %s: %w", h.Name, err)
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
	content, err := json.MarshalIndent(stateEnvelope{
		Format: stateFormat, Version: stateVersion,
		CRC: checksum(crc32.Checksum(inner, castagnoli)), State: inner,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	return append(content, '\n'), nil
}

// publish gives a complete folder its name. A folder that has the name already
// is of the same step; it keeps another name until the new one is in place, and
// tidy gives it back should there be no new one.
func (d disk) publish(temporary, path string) error {
	old := hidden(path, replacedSuffix)
	replaces := !missing(path)
	if replaces {
		if err := d.rename(path, old); err != nil {
			return err
		}
	}
	if err := d.rename(temporary, path); err != nil {
		return err
	}
	if err := d.sync(filepath.Dir(path)); err != nil {
		return err
	}
	if replaces {
		return d.remove(old)
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
