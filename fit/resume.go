package fit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"steadyfit/internal/checkpoint"
	"steadyfit/internal/files"
)

// resume continues from the newest checkpoint of dir. If dir is empty, training starts at the
// beginning.
func (r *run) resume(ctx context.Context, dir string) (err error) {
	if err := r.interrupted(ctx); err != nil {
		return err
	}
	from := &checkpoint.Resumable[savedState]{}
	if dir != "" {
		from, err = checkpoint.Resume[savedState](dir, r.state.Log)
		r.lock = from.Lock // released by end
		if err != nil {
			return err
		}
	}
	state := &from.State
	if from.Path != "" {
		if err := r.restore(ctx, from.Path, state); err != nil {
			return err
		}
	}
	if o := r.loop.Recover; o != nil && o.Load != nil && state.Recovery != nil {
		if err := o.Load(state.Recovery); err != nil {
			return fmt.Errorf("resuming from %s: state of Loop.Recover: %w", from.Path, err)
		}
	}
	for i := range r.hooks {
		h := &r.hooks[i]
		if h.Load == nil {
			continue
		}
		if err := h.Load(state.Hooks[h.Name]); err != nil {
			return &HookError{Hook: h.Name, Phase: "load", Err: err}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(state.Hooks)) {
		if !r.follows() && !slices.ContainsFunc(r.hooks, func(h Hook) bool { return h.Name == name }) {
			r.state.Log.Warn("the checkpoint contains the state of a hook that this run does not have", "checkpoint", from.Path,
				"hook", name)
		}
	}
	return nil
}

// accept returns an error if the run cannot resume despite the differences.
func (r *run) accept(path string, found []difference) error {
	if !r.loop.ResumeAnyway || r.follows() {
		return &mismatchError{checkpoint: path, differences: found}
	}
	for _, d := range found {
		if d.key == modelKey {
			if err := r.state.Session.CheckVariables(filepath.Join(path, checkpoint.Variables)); err != nil {
				return fmt.Errorf("cannot resume from %s, also despite differences: %w", path, err)
			}
		}
		r.state.Log.Warn("resuming despite a difference", "difference", d.key,
			"in_checkpoint", orAbsent(d.checkpoint), "now", orAbsent(d.run), "checkpoint", path)
	}
	return nil
}

func (r *run) restore(ctx context.Context, path string, state *savedState) error {
	identity, err := r.identify(ctx)
	if err != nil {
		return fmt.Errorf("resuming from %s: %w", path, err)
	}
	found := differences(state.Identity, identity)
	if r.follows() { // all ranks use the same sums, so their machines may have different kernels
		found = slices.DeleteFunc(found, func(d difference) bool { return d.key == sessionPrefix+"onednn" })
	}
	others := slices.ContainsFunc(found, func(d difference) bool { return d.key == weightsKey && d.checkpoint != "" })
	found = slices.DeleteFunc(found, func(d difference) bool { return d.key == weightsKey })
	var metrics []string
	for _, sum := range state.Sums {
		metrics = append(metrics, sum.Name)
	}
	if !slices.Equal(metrics, r.train.names) {
		found = append(found, difference{metricsKey, strings.Join(metrics, ", "), strings.Join(r.train.names, ", ")})
	}
	if len(found) > 0 {
		slices.SortFunc(found, func(a, b difference) int { return cmp.Compare(a.key, b.key) })
		if err := r.accept(path, found); err != nil {
			return err
		}
		forced(state, found)
	}
	records, err := readHistory(filepath.Join(path, checkpoint.History))
	if err != nil {
		return fmt.Errorf("resuming from %s: %w", path, err)
	}
	if err := r.state.Session.Restore(r.steady, filepath.Join(path, checkpoint.Variables)); err != nil {
		return fmt.Errorf("resuming from %s: restoring the model: %w", path, err)
	}
	if others && !r.follows() {
		r.state.Log.Warn("the model has other weights than those with which the training began; the weights of the "+
			"checkpoint replace them", "checkpoint", path)
	}
	if err := r.state.Session.SetState(state.Session); err != nil {
		return fmt.Errorf("resuming from %s: state of the session: %w", path, err)
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
	if at, err := time.Parse(time.RFC3339, state.Written); err == nil { // for information only
		r.written = written{step: s.Step, time: at}
	}
	s.Epoch = min(s.EpochsDone+1, max(r.loop.Epochs, s.EpochsDone))
	if !r.follows() {
		r.state.Log.Debug("resuming", "checkpoint", path, "epochs_done", s.EpochsDone, "step", s.Step)
	}
	if s.EpochsDone >= r.loop.Epochs {
		r.stop = fmt.Sprintf("already complete: %s has %d of %d epochs; a larger number of epochs trains more", path,
			s.EpochsDone, r.loop.Epochs)
		r.state.Log.Info("nothing to train", "reason", r.stop)
	}
	return nil
}

const forcedEvent = "resumed_anyway"

// forced prepares a state for a resume despite differences. If they change the batches, the
// position in the data has no meaning, and the run continues with the next pass. If they change the
// metrics, the means of the epoch begin again.
func forced(state *savedState, found []difference) {
	state.Events = append(state.Events, forcedEvent)
	moved := slices.ContainsFunc(found, func(d difference) bool { return slices.Contains(positionKeys, d.key) })
	if moved && state.PassBatch > 0 {
		state.Pass, state.PassBatch = state.Pass+1, 0
	}
	if slices.ContainsFunc(found, func(d difference) bool { return d.key == metricsKey }) {
		state.Sums, state.EpochSamples, state.UncountedSamples = nil, 0, 0
	}
}

func differences(checkpoint, run map[string]string) []difference {
	keys := maps.Clone(checkpoint)
	if keys == nil {
		keys = make(map[string]string)
	}
	maps.Copy(keys, run)
	var found []difference
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key == rateKey && (checkpoint[key] == "" || run[key] == "") {
			continue // the schedule is unknown
		}
		if checkpoint[key] != run[key] {
			found = append(found, difference{key, checkpoint[key], run[key]})
		}
	}
	return found
}

const maxHistoryBytes = 1 << 30

func readHistory(path string) ([]Record, error) {
	text, err := files.Read(path, maxHistoryBytes)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return parseHistory(text)
}

// historyLines returns the content of a history file.
func historyLines(records []Record) ([]byte, error) {
	var lines []byte
	for i := range records {
		line, err := json.Marshal(records[i])
		if err != nil {
			return nil, fmt.Errorf("history of epoch %d: %w", records[i].Epoch, err)
		}
		lines = append(append(lines, line...), '\n')
	}
	return lines, nil
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
