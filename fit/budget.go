package fit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"steadyfit/data"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// Budget keeps the memory of a training process under a limit, by the cheapest means
// that does: giving back what malloc holds, having malloc keep less, reading fewer
// batches ahead, splitting batches into parts, loading the model anew, going on in
// another process. Where
// nothing holds it the run is stopped, with a checkpoint if there is a hook for them,
// and Run returns a *BudgetError with a limit that would do.
//
// A step needs its memory at once, so a run begins with batches in small parts, then
// parts of twice the size, and from what these needed it chooses the largest that fit.
// Without oneDNN's pool (below) it goes on to parts of twice the size, as long as they fit.
// A model that cannot be split (session.Session.CheckSplit) has no such beginning: its
// first steps tell whether it fits.
//
// Where TensorFlow takes memory from glibc's malloc (without oneDNN's pool), malloc
// fragments: the peak of the same steps varies and creeps up. A run therefore begins with
// a malloc that returns every large block to the system as it is freed
// (session.SetMmapThreshold). That costs page faults, so malloc may keep blocks again
// where the limit leaves room for three times what a step takes, and after the run.
// glibc's own adjustment of the threshold does not come back. A threshold that the
// environment sets is left alone.
//
// What was chosen is part of checkpoints, and a run that resumes under the same limit
// goes on with it; before that is chosen, it begins anew. When the memory of a process
// has grown, the next one goes on with what was chosen at first. What a limit makes of
// a run depends on what was measured: two runs that begin anew may split differently,
// and then add gradients in another order.
//
// The level is looked at after each step, and the peak of a step after each of the 16
// that follow a change, then after every 16th, and after a validation. A peak above the
// limit is a warning with its amount, and the event "over_budget"; memory that can no
// longer be read is a warning and the event "budget_blind", once. The events of the
// measures are "trim", "unmap", "prefetch", "microbatch" and "reload"; of what happened n times
// in an epoch, n > 1, it is "trim*n". What is needed again within 16 steps did not help,
// and the next measure is taken.
//
// 3% of the limit are left free, or what a reading may be off if that is more
// ([memory.Gauge.Uncertainty]).
type Budget struct {
	// Limit is what the process may have at any time.
	Limit memory.Bytes
	// Layer is what it is about, of those that a [memory.Gauge] reads; empty means
	// memory.RSS. For a control group, memory.CgroupWorkingSet is what cannot be taken
	// back at once. Peaks are told of RSS alone; what a step has beyond what stays is
	// taken to be the same in all layers.
	Layer memory.Layer
	// Batch is the size of the batches.
	Batch int
	// Prefetch is what reads batches ahead; nil if there is none whose number may be
	// lowered.
	Prefetch *data.Prefetched
	// Again goes on in another process; nil if nobody could start one. See
	// ResetPolicy.Again. It is not called where another process has been of no use: where
	// this one began as the next one would, and is without room within 64 steps, or has
	// not grown since.
	Again func(reason string)
	// Log gets what is done, and why; nil discards it.
	Log *slog.Logger
}

// BudgetError: a budget that cannot be kept.
type BudgetError struct {
	Limit memory.Bytes
	Layer memory.Layer
	// Need is a limit that would do, in whole MiB: the highest peak that was measured with batches in
	// the parts that a run begins with, or in smaller ones, and what is left free. Memory
	// that grows on needs more in the end.
	Need memory.Bytes
	// Step is after how many steps that was found.
	Step int64
	// Whole is why batches were not split (session.Session.CheckSplit); nil if they were,
	// or have one sample.
	Whole error
	// Checkpoint is the newest one, to resume from; empty if there is none.
	Checkpoint string
}

func (e *BudgetError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the memory budget of %v of %s cannot be kept (after step %d): raise it to %d MiB or more", e.Limit, e.Layer, e.Step, e.Need/memory.MiB)
	if e.Whole != nil {
		fmt.Fprintf(&b, ", or allow micro-batches, which were not used (%v)", e.Whole) // it says how
	} else {
		b.WriteString(", or train with smaller batches")
	}
	if e.Checkpoint != "" {
		fmt.Fprintf(&b, "; a training with another limit can resume from %s", e.Checkpoint)
	} else {
		b.WriteString("; there is no checkpoint to resume from")
	}
	return b.String()
}

// Unwrap is why batches were not split.
func (e *BudgetError) Unwrap() error { return e.Whole }

// reserve is the part of a limit that is left free for what a prediction misses.
const reserve = 0.03

// roomToKeep is how many times what a step takes a limit has to have room for, so that
// malloc may keep the blocks that steps free. What it keeps was measured to add up to
// half of what a step takes (image-224 in parts of 1 to 32 samples, glibc 2.36).
const roomToKeep = 3

// worth is how many steps a process must last for another one to be of use.
const worth = 64

// eventOver is the event of a peak above the limit.
const eventOver = "over_budget"

// eventBlind is the event of memory that could not be read, once in a run.
const eventBlind = "budget_blind"

// Hook is the budget as a hook of a loop that trains s. Its error comes at the end of
// the run, after a Checkpoint hook has written the last checkpoint; so its Priority
// must not be that of the Checkpoint hook or above.
func (b *Budget) Hook(s *session.Session) Hook {
	return b.hook(inPlace{s}, openMeter)
}

func (b *Budget) hook(s trainee, open func(memory.Layer) (meter, error)) Hook {
	k := &keeper{Budget: b, session: s, open: open}
	return Hook{Name: "memory budget", Replays: true, Load: k.load, Save: k.save, Start: k.start, Step: k.step, Epoch: k.epoch, End: k.end}
}

// trainee is the session, as far as budgets and resets have to do with it.
type trainee interface {
	// CheckSplit says why batches cannot be split; nil if they can.
	CheckSplit() error
	MicroBatches() int
	SetMicroBatches(n int) error
	// variableBytes is what the variables take; those of unknown shape are left out.
	variableBytes() memory.Bytes
	// reset resets and goes on with the same state.
	reset(ctx context.Context, depth session.Depth) (session.Reset, error)
}

// keeper keeps a budget during a run.
type keeper struct {
	*Budget
	session trainee
	open    func(memory.Layer) (meter, error)
	// loaded is what an earlier run chose; nil if there was none, or for another budget.
	loaded *budgetState

	layer memory.Layer
	log   *slog.Logger
	watch watch
	taken ladder
	// exploring is what the plan is being chosen by; nil when it has been.
	exploring *choice
	// chosen is what the run has settled on; its parts are 0 before.
	chosen plan
	// settled is the level after the first steps with that; 0 before.
	settled memory.Bytes
	// unmaps is true while malloc returns large blocks as they are freed, and kept if it
	// was told to keep them since; then unmapped is what a step took beyond its level
	// before.
	unmaps, kept bool
	unmapped     memory.Bytes
	// most is the highest peak with the parts that a run begins with, or with more.
	most memory.Bytes
	// then is done when wait more steps are: batches that are read ahead no longer
	// are let go one by one.
	then func() error
	wait int
	// goOn is what another process is to begin with, if it is not what there is now.
	goOn *plan
	// blind is true once it was said that memory could not be read.
	blind bool
	// err is what the run ends with after its last checkpoint: a *BudgetError, or that of
	// a measure that failed and left the session as it was.
	err error
}

// budgetState is what the hook remembers, of a budget that is the same.
type budgetState struct {
	Limit memory.Bytes `json:"limit"`
	Layer memory.Layer `json:"layer"`
	Batch int          `json:"batch"`
	plan
	// Most is keeper.most.
	Most memory.Bytes `json:"peak"`
}

func (k *keeper) load(_ string, state json.RawMessage) error {
	k.loaded = nil
	if state == nil {
		return nil
	}
	var loaded budgetState
	if err := json.Unmarshal(state, &loaded); err != nil {
		return fmt.Errorf("reading its state: %w", err)
	}
	k.loaded = &loaded
	return nil
}

func (k *keeper) save(string) (json.RawMessage, error) {
	if k.chosen.Parts == 0 {
		return nil, nil
	}
	now := k.plan()
	if k.goOn != nil {
		now = *k.goOn
	}
	return json.Marshal(budgetState{k.Limit, k.layer, k.Batch, now, k.most})
}

func (k *keeper) start(_ context.Context, s *State) (err error) {
	*k = keeper{Budget: k.Budget, session: k.session, open: k.open, loaded: k.loaded, layer: layerOr(k.Layer), log: k.Log}
	if k.Limit <= 0 {
		return &option.Error{Option: "Budget.Limit", Value: k.Limit, Reason: "expected more than 0"}
	}
	if k.Batch < 1 {
		return &option.Error{Option: "Budget.Batch", Value: k.Batch, Reason: "expected at least 1", Fix: "set it to {Loop.Batch}"}
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	m, err := k.open(k.layer)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			k.restoreThreshold()
			err = errors.Join(err, m.close())
		}
	}()
	m.trim()
	if err := m.unmapFrom(unmapLarge); err != nil {
		k.log.Debug("memory budget: the mmap threshold of malloc is left alone", "reason", err)
	} else {
		k.unmaps = true
	}
	k.taken.patience = firstPatience
	k.watch = watch{meter: m, limit: k.Limit, began: s.Step, starting: true}
	base := m.level().Bytes
	if base > k.Limit {
		k.log.Warn("memory budget: the process has more before the first step", "now", base, "budget", k.Limit, "of", k.layer)
	}
	k.watch.anew()
	k.watch.changed(0)
	if l := k.loaded; l != nil && (l.Limit != k.Limit || l.Layer != k.layer || l.Batch != k.Batch || l.Parts < 1 || l.Parts > 1 && k.session.CheckSplit() != nil) {
		k.loaded = nil
	}
	if l := k.loaded; l != nil {
		if l.Ahead < k.ahead() {
			k.Prefetch.SetAhead(l.Ahead)
		}
		k.most = l.Most
		err = k.session.SetMicroBatches(l.Parts)
		k.chosen = k.plan()
		l.plan = k.chosen // fewer may be read ahead by now
		k.log.Info("memory budget: as chosen before", "parts", k.chosen.Parts, "samples", partSize(k.Batch, k.chosen.Parts), "prefetch", k.chosen.Ahead,
			"now", base, "budget", k.Limit, "of", k.layer)
		return err
	}
	if k.splits() {
		k.exploring = &choice{batch: k.Batch, limit: k.Limit, free: k.watch.free(), noise: k.watch.noise(), base: base, aheadBytes: k.aheadBytes(), returns: k.unmaps}
		return k.session.SetMicroBatches(k.firstParts())
	}
	k.chosen = k.plan()
	why := "a batch has one sample"
	if err := k.session.CheckSplit(); k.Batch > 1 && err != nil {
		why = err.Error()
	}
	k.log.Info("memory budget: batches stay whole", "prefetch", k.chosen.Ahead, "now", base, "budget", k.Limit, "of", k.layer, "reason", why)
	return nil
}

func (k *keeper) splits() bool { return k.Batch > 1 && k.session.CheckSplit() == nil }

// firstParts is how many parts a run begins with that chooses.
func (k *keeper) firstParts() int {
	if !k.splits() {
		return 1
	}
	return min(smallestParts, k.Batch)
}

// plan is the present one.
func (k *keeper) plan() plan { return plan{k.session.MicroBatches(), k.ahead()} }

// ahead is how many batches are read ahead.
func (k *keeper) ahead() int {
	if k.Prefetch == nil {
		return 0
	}
	return k.Prefetch.Ahead()
}

// aheadBytes is what a batch that is read ahead takes.
func (k *keeper) aheadBytes() memory.Bytes {
	if k.Prefetch == nil {
		return 0
	}
	return memory.Bytes(k.Prefetch.BatchBytes(k.Batch))
}

func (k *keeper) end(_ context.Context, s *State) error {
	k.restoreThreshold()
	var unkept *BudgetError
	if errors.As(k.err, &unkept) {
		unkept.Checkpoint = s.History.Checkpoint // the last one is written by now
	}
	return errors.Join(k.err, k.watch.close())
}

func (k *keeper) step(ctx context.Context, s *State) error {
	err := k.keep(ctx, s)
	k.tellBlind(s)
	if err != nil {
		k.err, err = keepForCheckpoint(s, err)
	}
	return err
}

// keep looks at the memory after a step, and does what there is to do about it.
func (k *keeper) keep(ctx context.Context, s *State) error {
	w := &k.watch
	reading := w.level()
	if !reading.OK {
		return nil
	}
	level := reading.Bytes
	var peak memory.Bytes
	counts := false
	if w.due(s, level, k.exploring != nil) {
		peak, counts = k.look(s, level, w.alone(s))
	}
	switch {
	case lastStep(s) || w.starting:
		return nil
	case peak > k.Limit:
		return k.act(ctx, s, level)
	case w.guessed:
		return nil // the next step tells
	case level+w.above > k.Limit:
		return k.act(ctx, s, level)
	case k.exploring != nil:
		if !counts {
			return nil
		}
		return k.explore(s, peak)
	case k.then != nil:
		if k.wait--; k.wait > 0 {
			return nil
		}
		then := k.then
		k.then = nil
		w.collect()
		return then()
	case level+w.above > w.free() && !k.taken.bears(s.Step, level, k.Limit-w.above):
		return k.act(ctx, s, level)
	}
	return nil
}

// epoch looks at what a validation needed.
func (k *keeper) epoch(_ context.Context, s *State) error {
	if reading := k.watch.level(); reading.OK {
		k.look(s, reading.Bytes, false)
	}
	k.tellBlind(s)
	return nil
}

// tellBlind says, once, that memory could not be read: while that lasts, nothing keeps the
// budget, and no peak is seen.
func (k *keeper) tellBlind(s *State) {
	why := k.watch.unread()
	if why == nil || k.blind {
		return
	}
	k.blind = true
	k.log.Warn("memory budget: memory cannot be read, and nothing keeps the budget while that lasts", "step", s.Step, "reason", why)
	s.Event(eventBlind)
}

// look looks at the peak since the last look, of a step only if alone is true. counts is
// false if it says little about the steps that follow.
func (k *keeper) look(s *State, level memory.Bytes, alone bool) (peak memory.Bytes, counts bool) {
	peak, counts = k.watch.look(level, alone)
	if k.session.MicroBatches() >= k.firstParts() {
		k.most = max(k.most, peak)
	}
	if peak > k.Limit {
		k.over(s, peak)
	}
	if k.settled == 0 && k.chosen.Parts > 0 && k.watch.steady() {
		k.settled = level
		k.letKeep(level)
	}
	return peak, counts
}

// letKeep lets malloc keep the blocks that steps free, if there is room for
// roomToKeep times what a step takes.
func (k *keeper) letKeep(level memory.Bytes) {
	if !k.unmaps || level+roomToKeep*k.watch.above > k.watch.free() {
		return
	}
	if k.watch.unmapFrom(unmapHuge) == nil {
		k.unmaps, k.kept, k.unmapped = false, true, k.watch.above
	}
}

// over says that the limit was crossed.
func (k *keeper) over(s *State, peak memory.Bytes) {
	k.log.Warn("memory budget: crossed", "step", s.Step, "peak", peak, "budget", k.Limit, "by", peak-k.Limit)
	countEvent(s, eventOver)
}

// countEvent adds a word to the events of the epoch, or counts it if it is there.
func countEvent(s *State, word string) {
	events := s.run.tally.Events
	if s.run.closing {
		events = s.Record.Events
	}
	for i, event := range events {
		name, times, _ := strings.Cut(event, "*")
		if name == word {
			n, _ := strconv.Atoi(times) // once has no number
			events[i] = word + "*" + strconv.Itoa(max(n, 1)+1)
			return
		}
	}
	s.Event(word)
}

// explore takes up what the present parts needed, and tries larger ones or chooses.
func (k *keeper) explore(s *State, peak memory.Bytes) error {
	now := k.plan()
	peak, done := k.exploring.enough(now.Parts, peak)
	if !done {
		return nil
	}
	k.log.Debug("memory budget: measured", "parts", now.Parts, "samples", partSize(k.Batch, now.Parts), "peak", peak, "beyond", k.watch.above)
	next, done := k.exploring.next(now, k.watch.firstPeak, peak, k.watch.above)
	if !done {
		return k.resize(next.Parts)
	}
	needs, why := k.exploring.needs, k.exploring.why
	k.exploring = nil
	if next.Ahead == now.Ahead {
		return k.choose(next, needs, why)
	}
	k.readAhead(s, next.Ahead, func() error { return k.choose(next, needs, why) })
	return nil
}

// resize has batches split into so many parts, of another size than before.
func (k *keeper) resize(parts int) error {
	k.watch.changed(0)
	return k.session.SetMicroBatches(parts)
}

// choose ends the exploration. needs is the peak of steps under the plan, and why says why
// its parts are not larger.
func (k *keeper) choose(p plan, needs memory.Bytes, why string) error {
	k.chosen = p
	k.log.Info("memory budget: chosen", "parts", p.Parts, "samples", partSize(k.Batch, p.Parts), "prefetch", p.Ahead,
		"needs", needs, "budget", k.Limit, "of", k.layer, "reason", why)
	if p.Parts == k.session.MicroBatches() {
		return nil
	}
	return k.resize(p.Parts)
}

// readAhead lowers the number of batches that are read ahead, and does then when they
// are let go.
func (k *keeper) readAhead(s *State, ahead int, then func() error) {
	k.wait = k.Prefetch.Ahead() - ahead + 1
	k.then = then
	k.Prefetch.SetAhead(ahead)
	countEvent(s, measurePrefetch.String())
}

// act takes one measure after the other until there is room. What is in progress is
// given up: this decides anew.
func (k *keeper) act(ctx context.Context, s *State, level memory.Bytes) error {
	k.then, k.exploring = nil, nil
	helps := false
	for m := k.taken.from(s.Step); m < measuresEnd && !helps; m++ {
		if m == measureReload && !k.reloadFits() {
			k.taken.took(m, s.Step)
			continue
		}
		var err error
		if helps, err = k.take(ctx, s, m, level); err != nil {
			return err
		}
		if helps || m == measureReload {
			k.taken.took(m, s.Step)
		}
	}
	if k.chosen.Parts == 0 {
		k.chosen = k.plan()
	}
	k.watch.anew()
	if !helps {
		return k.lastResort(s, level)
	}
	k.taken.tight = 0
	k.log.Info("memory budget: "+k.taken.last.String(), "step", s.Step, "before", level, "now", k.watch.level(), "parts", k.session.MicroBatches(), "prefetch", k.ahead(), "budget", k.Limit)
	return nil
}

// take takes a measure and reports whether there is room then, going by what is known.
func (k *keeper) take(ctx context.Context, s *State, m measure, level memory.Bytes) (helps bool, err error) {
	switch m {
	case measureTrim:
		helps = k.watch.trim() && k.watch.room()
	case measureUnmap:
		helps = k.unmap()
	case measurePrefetch:
		return k.readFewer(s), nil
	case measureSplit:
		helps, err = k.split()
	case measureReload:
		helps, err = k.reload(ctx, s, level)
	}
	if err == nil && (helps || m == measureReload) {
		countEvent(s, m.String())
	}
	return helps, err
}

// restoreThreshold lets malloc keep blocks after the run.
func (k *keeper) restoreThreshold() {
	if k.unmaps && k.watch.unmapFrom(unmapHuge) == nil {
		k.unmaps = false
	}
}

// unmap ends letKeep, and reports whether there is room then.
func (k *keeper) unmap() bool {
	if !k.kept || k.unmaps || k.watch.unmapFrom(unmapLarge) != nil {
		return false
	}
	k.unmaps = true
	k.watch.trim()
	k.watch.changed(k.unmapped)
	return k.watch.room()
}

// readFewer has as many batches read ahead as there is room for, if that takes some away
// and the steps until then fit.
func (k *keeper) readFewer(s *State) bool {
	needed, present := k.watch.level().Bytes+k.watch.above, k.ahead()
	if needed > k.Limit {
		return false
	}
	for ahead := present; ahead > 0; {
		ahead /= 2
		if needed-memory.Bytes(present-ahead)*k.aheadBytes() <= k.watch.free() {
			k.readAhead(s, ahead, func() error { return nil })
			k.watch.near = peakEvery
			return true
		}
	}
	return false
}

// split halves the parts until there is room.
func (k *keeper) split() (bool, error) {
	if !k.splits() {
		return false, nil
	}
	for parts := k.session.MicroBatches(); parts < k.Batch; {
		smaller := min(2*parts, k.Batch)
		if err := k.shrink(parts, smaller); err != nil {
			return false, err
		}
		if k.watch.room() {
			return true, nil
		}
		if k.watch.level().Bytes > k.watch.free() {
			return false, nil // that alone is too much
		}
		parts = smaller
	}
	return false, nil
}

// shrink has batches split into more parts. What a step has beyond its level goes with
// the samples, most of it; the steps that follow tell. The pool of the larger parts stays.
func (k *keeper) shrink(from, to int) error {
	k.watch.changed(k.watch.above * memory.Bytes(partSize(k.Batch, to)) / memory.Bytes(partSize(k.Batch, from)))
	return k.session.SetMicroBatches(to)
}

// reloadFits reports whether there is room for a reload: for the variables of the
// snapshot, which may be a copy, and for those that loading makes.
func (k *keeper) reloadFits() bool {
	level, twice := k.watch.level().Bytes, 2*k.session.variableBytes()
	if level+twice <= k.Limit {
		return true
	}
	k.log.Info("memory budget: no room to load the model anew", "now", level, "needed", level+twice, "budget", k.Limit)
	return false
}

func (k *keeper) reload(ctx context.Context, s *State, level memory.Bytes) (bool, error) {
	// What is kept must survive the end of ctx: a step is not undone by Ctrl-C.
	did, err := k.session.reset(context.WithoutCancel(ctx), session.ResetReload)
	if err != nil {
		return false, err
	}
	s.ResetBy(session.ResetReload, did.Returned(), did.Took)
	if peak := k.watch.level().Bytes + k.watch.beyond(); peak > max(k.Limit, level) {
		k.over(s, peak)
	}
	k.watch.settling, k.watch.near = 1, peakEvery
	return k.watch.room(), nil
}

// lastResort is what remains where nothing in place makes room.
func (k *keeper) lastResort(s *State, level memory.Bytes) error {
	w := &k.watch
	now := w.level().Bytes
	renews := k.Again != nil && s.Step-w.began >= worth && now > k.settled+w.noise()
	if now+w.above <= k.Limit && !(renews && k.taken.grew(now, w.noise())) {
		k.taken.bear(s.Step, now)
		k.log.Warn("memory budget: little room is left", "step", s.Step, "now", now, "needed", now+w.above, "budget", k.Limit)
		return nil
	}
	if renews {
		// It has grown, and a new process has room for what had it at first.
		return k.again(s, level, k.chosen)
	}
	if parts := k.session.MicroBatches(); k.splits() && (parts < k.Batch || w.guessed) {
		// Nothing smaller is possible; what it needs has to be known.
		countEvent(s, measureSplit.String())
		k.log.Info("memory budget: the smallest parts", "step", s.Step, "before", level, "now", now, "parts", k.Batch, "budget", k.Limit)
		return k.shrink(parts, k.Batch)
	}
	if k.Again != nil && (k.loaded == nil || k.loaded.plan != k.plan()) {
		return k.again(s, level, k.plan())
	}
	unkept := &BudgetError{Limit: k.Limit, Layer: k.layer, Need: w.enough(k.most), Step: s.Step}
	if k.Batch > 1 {
		unkept.Whole = k.session.CheckSplit()
	}
	k.err = unkept
	s.Stop(fmt.Sprintf("memory budget: %v of %s cannot be kept", k.Limit, k.layer))
	return nil
}

// again goes on in another process, with p.
func (k *keeper) again(s *State, level memory.Bytes, p plan) error {
	k.goOn = &p
	s.ResetBy(session.ResetProcess, memory.Reading{}, 0)
	s.Stop(fmt.Sprintf("a new process goes on: %v of %v in use", level, k.Limit))
	k.Again("memory budget")
	return nil
}
