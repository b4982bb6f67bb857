package fit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"

	"steadyfit/data"
	"steadyfit/memory"
	"steadyfit/session"
)

// Budget keeps the memory of a training process under a limit, by the cheapest means
// that does: giving back what malloc holds, reading fewer batches ahead, splitting
// batches into parts, loading the model anew, going on in another process. Where
// nothing holds it the run is stopped, with a checkpoint if there is a hook for them,
// and Run returns a *BudgetError with a limit that would do.
//
// A step needs its memory at once, so a run begins with batches in small parts, then
// parts of twice the size, and from what these needed it chooses the largest that fit.
// A model that cannot be split (session.Session.CanSplit) has no such beginning: its
// first steps tell whether it fits.
//
// What was chosen is part of checkpoints, and a run that resumes under the same limit
// goes on with it; before that is chosen, it begins anew. When the memory of a process
// has grown, the next one goes on with what was chosen at first. What a limit makes of
// a run depends on what was measured: two runs that begin anew may split differently,
// and then add gradients in another order.
//
// The level is looked at after each step, and the peak of a step after each of the 16
// that follow a change, then after every 16th, and after a validation. A peak above the
// limit is a warning with its amount, and the event "over_budget". The events of the
// measures are "trim", "prefetch", "microbatch" and "reload"; of what happened n times
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
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("memory budget: %v of %s cannot be kept (after step %d); %d MiB would do", e.Limit, e.Layer, e.Step, e.Need/memory.MiB)
}

const (
	// smallestParts is how many parts a budget begins with, if the batch has as many
	// samples.
	smallestParts = 16
	// reserve is the part of a limit that is left free for what a prediction misses,
	// and extrapolated how much more growth with the samples is reckoned with than
	// between the two sizes that were measured.
	reserve      = 0.03
	extrapolated = 1.15
	// leastNoise is what two peaks may differ by for no reason, and clearly by how many
	// times that they have to differ for their slope to be a prediction.
	leastNoise = memory.MiB
	clearly    = 8
	// peakEvery is how many steps lie between two looks at the peak, and how many are
	// looked at one by one after a change.
	peakEvery = 16
	// soon is within how many steps a measure that is needed again did not help.
	soon = 16
	// worth is how many steps a process must last for another one to be of use.
	worth = 64
	// firstPatience is how many steps little room is borne at first; it is doubled each
	// time that nothing helps.
	firstPatience = 2 * peakEvery
)

// eventOver is the event of a peak above the limit.
const eventOver = "over_budget"

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
	CanSplit() bool
	MicroBatches() int
	SetMicroBatches(n int) error
	// reset resets and goes on with the same state.
	reset(ctx context.Context, depth session.Depth) (session.Reset, error)
}

// meter is the memory of the process, and what can be done about it at any time.
type meter interface {
	// level is what there is of the layer of the budget, and uncertainty how much more
	// there may be.
	level() memory.Reading
	uncertainty() memory.Bytes
	// beyond is how far the memory was above what it is now, at most, since the last
	// call.
	beyond() memory.Bytes
	// trim has malloc give back what is free, and reports whether it could be asked;
	// collect does it for the Go runtime.
	trim() bool
	collect()
	close() error
}

// processMeter is a meter of this process.
type processMeter struct {
	gauge   *memory.Gauge
	sampler *memory.Sampler
	sample  memory.Sample
	// stuck is a peak that could not be made to begin anew.
	stuck memory.Bytes
}

func openMeter(layer memory.Layer) (meter, error) {
	gauge, err := memory.NewGauge(layer)
	if err != nil {
		return nil, &OptionError{"Budget.Layer", err.Error(), "use memory.RSS, or a layer that this machine tells"}
	}
	sampler, err := memory.NewSampler(memory.SamplerOptions{})
	if err != nil {
		return nil, errors.Join(err, gauge.Close())
	}
	return &processMeter{gauge: gauge, sampler: sampler}, nil
}

func (m *processMeter) level() memory.Reading { return m.gauge.Read() }

func (m *processMeter) uncertainty() memory.Bytes { return m.gauge.Uncertainty() }

// beyond is that of RSS, the only layer whose peak the kernel tells. Where it does not
// let it begin anew, only a peak above all earlier ones is seen.
func (m *processMeter) beyond() memory.Bytes {
	if err := m.sampler.Sample(0, &m.sample); err != nil {
		return 0
	}
	peak, rss := m.sample.Get(memory.Peak), m.sample.Get(memory.RSS)
	if !peak.OK || !rss.OK {
		return 0
	}
	if m.sampler.ResetPeak() != nil {
		if peak.Bytes <= m.stuck {
			return 0
		}
		m.stuck = peak.Bytes
	}
	return max(peak.Bytes-rss.Bytes, 0)
}

func (m *processMeter) trim() bool { return session.Trim() }

func (m *processMeter) collect() { debug.FreeOSMemory() }

func (m *processMeter) close() error { return errors.Join(m.gauge.Close(), m.sampler.Close()) }

// keeper keeps a budget during a run.
type keeper struct {
	*Budget
	session trainee
	open    func(memory.Layer) (meter, error)
	// loaded is what an earlier run chose; nil if there was none, or for another budget.
	loaded *budgetState

	memory meter
	layer  memory.Layer
	log    *slog.Logger
	began  int64        // the step
	base   memory.Bytes // before the first step

	// starting is true until the first parts have been measured: there is nothing to be
	// done before that, and the figure is needed.
	starting  bool
	exploring bool
	// first is what the first parts needed; its size is 0 before.
	first need
	// once is what the first step with parts of the present size took more than the
	// next one; another size takes it again.
	once memory.Bytes
	// chosen is what the run has settled on; its parts are 0 before.
	chosen plan
	// settled is the level after the first steps with that; 0 before.
	settled memory.Bytes
	// most is the highest peak with the parts that a run begins with, or with more.
	most memory.Bytes

	// above is what the memory has beyond its level, at most, since the last change;
	// guessed is true while that is only supposed. top is the highest level since the
	// last look.
	above, top memory.Bytes
	guessed    bool
	// settling is how many looks do not count, since the first step of a kind takes
	// what later ones do not; near, how many steps are looked at one by one; unseen,
	// how many have not been looked at.
	settling, near, unseen int

	// last is the measure that was taken last, and lastStep after which step.
	last     measure
	lastStep int64
	// While there is little room, nothing is done about it before the step idle, unless
	// it has become less by half; tight was the level then, 0 if there is room. patience
	// is how long that is borne.
	idle, patience int64
	tight          memory.Bytes
	// then is done when wait more steps are: batches that are read ahead no longer
	// are let go one by one.
	then func() error
	wait int
	// goOn is what another process is to begin with, if it is not what there is now.
	goOn *plan
	err  *BudgetError
}

// need is what steps on parts of a size had at most.
type need struct {
	size int
	peak memory.Bytes
}

// plan is how batches are trained: in so many parts, with so many read ahead.
type plan struct {
	Parts int `json:"parts"`
	Ahead int `json:"prefetch"`
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
		return &OptionError{"Budget.Limit", fmt.Sprintf("it is %v, but has to be more than 0", k.Limit), "set what the process may have"}
	}
	if k.Batch < 1 {
		return &OptionError{"Budget.Batch", fmt.Sprintf("it is %d, but has to be at least 1", k.Batch), "set it to Loop.Batch"}
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	if k.memory, err = k.open(k.layer); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.memory.close())
		}
	}()
	k.memory.trim()
	k.began, k.base, k.patience = s.Step, k.memory.level().Bytes, firstPatience
	k.anew()
	k.starting = true
	k.changed(0)
	if l := k.loaded; l != nil && (l.Limit != k.Limit || l.Layer != k.layer || l.Batch != k.Batch || l.Parts < 1 || l.Parts > 1 && !k.session.CanSplit()) {
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
		return err
	}
	if k.splits() {
		k.exploring = true
		return k.session.SetMicroBatches(k.firstParts())
	}
	k.chosen = k.plan()
	return nil
}

func (k *keeper) splits() bool { return k.Batch > 1 && k.session.CanSplit() }

// firstParts is how many parts a run begins with that chooses.
func (k *keeper) firstParts() int {
	if !k.splits() {
		return 1
	}
	return min(smallestParts, k.Batch)
}

// plan is the present one.
func (k *keeper) plan() plan { return plan{k.session.MicroBatches(), k.ahead()} }

// left is what is left free of a limit.
func (k *keeper) left(limit memory.Bytes) memory.Bytes {
	return max(memory.Bytes(reserve*float64(limit)), k.memory.uncertainty())
}

// free is the limit less the reserve.
func (k *keeper) free() memory.Bytes { return k.Limit - k.left(k.Limit) }

// enough is the least limit, in whole MiB, under which a peak leaves the reserve free.
func (k *keeper) enough(peak memory.Bytes) memory.Bytes {
	least := max(memory.Bytes(float64(peak)/(1-reserve)), peak+k.memory.uncertainty())
	return (least + memory.MiB) / memory.MiB * memory.MiB
}

// noise is what two amounts may differ by for no reason.
func (k *keeper) noise() memory.Bytes { return max(leastNoise, k.memory.uncertainty()) }

func (k *keeper) room() bool { return k.memory.level().Bytes+k.above <= k.free() }

func (k *keeper) end(context.Context, *State) error {
	err := k.memory.close()
	if k.err != nil {
		err = errors.Join(k.err, err)
	}
	return err
}

// changed has the steps that follow looked at one by one; above is what they are
// supposed to have beyond the level until the first of them has been measured.
func (k *keeper) changed(above memory.Bytes) {
	k.above, k.guessed = above, true
	k.settling, k.near = 1, peakEvery
}

func (k *keeper) step(ctx context.Context, s *State) error {
	reading := k.memory.level()
	if !reading.OK {
		return nil
	}
	level := reading.Bytes
	k.top = max(k.top, level)
	var peak memory.Bytes
	counts := false
	k.unseen++
	// The last step of an epoch, so that what a validation takes is not taken for that
	// of a step.
	if k.exploring || k.near > 0 || k.unseen >= peakEvery || s.EpochStep == s.StepsPerEpoch {
		peak, counts = k.look(s, level)
	}
	if k.guessed {
		k.once = peak // explore takes off what the next step needs
	}
	switch {
	case lastStep(s) || k.starting:
		return nil
	case peak > k.Limit:
		return k.act(ctx, s, level)
	case k.guessed:
		return nil // the next step tells
	case level+k.above > k.Limit:
		return k.act(ctx, s, level)
	case k.exploring:
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
		k.memory.collect()
		return then()
	case level+k.above > k.free() && (s.Step >= k.idle || level > k.tight+(k.Limit-k.above-k.tight)/2):
		return k.act(ctx, s, level)
	}
	return nil
}

// epoch looks at what a validation needed.
func (k *keeper) epoch(_ context.Context, s *State) error {
	if reading := k.memory.level(); reading.OK {
		k.saw(s, reading.Bytes, k.memory.beyond(), false)
	}
	return nil
}

// look looks at the peak since the last look. counts is false if it says little about
// the steps that follow.
func (k *keeper) look(s *State, level memory.Bytes) (peak memory.Bytes, counts bool) {
	k.unseen, k.near = 0, max(k.near-1, 0)
	// A checkpoint may have been written before the first step of an epoch.
	alone := s.EpochStep > 1 || s.StepsPerEpoch == 1 || s.Step <= k.began+1
	return k.saw(s, level, k.memory.beyond(), alone)
}

// saw takes up what was beyond a level. alone is true if that was of a step only.
func (k *keeper) saw(s *State, level, beyond memory.Bytes, alone bool) (peak memory.Bytes, counts bool) {
	peak = level + beyond
	// What came down meanwhile was part of the level, not beyond it.
	above := max(peak-max(k.top, level), 0)
	k.top = level
	if k.session.MicroBatches() >= k.firstParts() {
		k.most = max(k.most, peak)
	}
	over := peak > k.Limit
	if over {
		k.over(s, peak)
	}
	if k.settling > 0 && (!over || k.starting) {
		if alone {
			k.settling--
		}
		return peak, false
	}
	if k.guessed && alone {
		k.above, k.guessed, k.starting = 0, false, false
	}
	k.above = max(k.above, above)
	if k.settled == 0 && !k.guessed && k.chosen.Parts > 0 {
		k.settled = level
	}
	return peak, alone
}

// anew has the next look see what comes from now on only.
func (k *keeper) anew() {
	k.memory.beyond()
	k.top = k.memory.level().Bytes
}

// over says that the limit was crossed.
func (k *keeper) over(s *State, peak memory.Bytes) {
	k.log.Warn("memory budget: crossed", "step", s.Step, "peak", peak, "budget", k.Limit, "by", peak-k.Limit)
	tally(s, eventOver)
}

// tally adds a word to the events of the epoch, or counts it if it is there.
func tally(s *State, word string) {
	events := s.run.events
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

// partSize is the samples of the largest part.
func (k *keeper) partSize(parts int) int {
	parts = min(parts, k.Batch)
	return (k.Batch + parts - 1) / parts
}

// explore takes up what the present parts needed, and tries larger ones or chooses.
func (k *keeper) explore(s *State, peak memory.Bytes) error {
	parts := k.session.MicroBatches()
	now, next := need{k.partSize(parts), peak}, (parts+1)/2
	k.once = max(k.once-peak, 0)
	k.log.Debug("memory budget: measured", "parts", parts, "samples", now.size, "peak", now.peak, "beyond", k.above)
	if k.first.size == 0 {
		k.first = now
		// If all that there is were for samples, twice as many would take as much again.
		if parts > 1 && now.peak+max(now.peak-k.base, 0)+k.once <= k.Limit {
			return k.resize(next)
		}
		return k.choose(now, k.plan())
	}
	if now.size <= k.first.size { // batches were split for another reason meanwhile
		return k.choose(now, k.plan())
	}
	noise := k.noise()
	grown := now.peak - k.first.peak
	perSample := float64(max(grown, noise)) / float64(now.size-k.first.size)
	if grown < clearly*noise && parts > 1 && k.fits(now, perSample, next, 0) {
		return k.resize(next)
	}
	// The pool keeps the blocks of smaller parts, which are of no use to larger ones:
	// so not one size after the other is tried, but what these say.
	best := k.plan()
	for ahead := best.Ahead; ; ahead /= 2 {
		if n := k.fewest(now, perSample, k.saved(ahead)); n > 0 && n < best.Parts {
			best = plan{n, ahead}
		}
		if ahead == 0 {
			break
		}
	}
	if best.Ahead == k.ahead() {
		return k.choose(now, best)
	}
	k.exploring = false
	k.readAhead(s, best.Ahead, func() error { return k.choose(now, best) })
	return nil
}

// resize has batches split into so many parts, of another size than before.
func (k *keeper) resize(parts int) error {
	k.changed(0)
	return k.session.SetMicroBatches(parts)
}

// choose ends the exploration. now is what the present parts need.
func (k *keeper) choose(now need, p plan) error {
	k.exploring, k.chosen = false, p
	k.log.Info("memory budget: chosen", "parts", p.Parts, "prefetch", p.Ahead, "peak_so_far", now.peak, "budget", k.Limit)
	if p.Parts == k.session.MicroBatches() {
		return nil
	}
	return k.resize(p.Parts)
}

// fits predicts whether so many parts fit when saved bytes less are read ahead, going by
// what the present ones need. What only the first step takes may use what is left free.
func (k *keeper) fits(now need, perSample float64, parts int, saved memory.Bytes) bool {
	peak := now.peak - saved + memory.Bytes(extrapolated*perSample*float64(k.partSize(parts)-now.size))
	return peak <= k.free() && peak+k.once <= k.Limit
}

// fewest is the smallest number of parts below the present one that is predicted to
// fit when saved bytes less are read ahead; 0 if none is. now is what the present
// parts need.
func (k *keeper) fewest(now need, perSample float64, saved memory.Bytes) int {
	fits := 0
	for parts := 1; parts < k.session.MicroBatches(); parts++ {
		if !k.fits(now, perSample, parts, saved) {
			continue
		}
		if fits == 0 {
			fits = parts
		}
		// Parts of two sizes take blocks of two sizes from the pool.
		if k.Batch%parts == 0 {
			return parts
		}
		if parts >= 2*fits {
			break
		}
	}
	return fits
}

// ahead is how many batches are read ahead.
func (k *keeper) ahead() int {
	if k.Prefetch == nil {
		return 0
	}
	return k.Prefetch.Ahead()
}

// saved is what reading only so many batches ahead would save.
func (k *keeper) saved(ahead int) memory.Bytes {
	if k.Prefetch == nil {
		return 0
	}
	return memory.Bytes(int64(k.Prefetch.Ahead()-ahead) * k.Prefetch.BatchBytes(k.Batch))
}

// readAhead lowers the number of batches that are read ahead, and does then when they
// are let go.
func (k *keeper) readAhead(s *State, ahead int, then func() error) {
	k.wait = k.Prefetch.Ahead() - ahead + 1
	k.then = then
	k.Prefetch.SetAhead(ahead)
	tally(s, "prefetch")
}

// measure is what can be done in place when there is little room, the cheapest first.
type measure int

const (
	measureNone measure = iota
	measureTrim
	measurePrefetch
	measureSplit
	measureReload
	measuresEnd
)

func (m measure) String() string {
	return [...]string{"none", "trim", "prefetch", "microbatch", "reload", "end"}[m]
}

// act takes one measure after the other until there is room. What is in progress is
// given up: this decides anew.
func (k *keeper) act(ctx context.Context, s *State, level memory.Bytes) error {
	k.then, k.exploring = nil, false
	from := measureTrim
	if k.last != measureNone && s.Step-k.lastStep <= soon {
		// Reading still less ahead, and smaller parts, are other measures than before.
		if from = k.last; from == measureTrim || from == measureReload {
			from++
		}
	}
	if s.Step-k.lastStep > k.patience {
		k.patience = firstPatience
	}
	helps := false
	for m := from; m < measuresEnd && !helps; m++ {
		var err error
		if helps, err = k.take(ctx, s, m, level); err != nil {
			return err
		}
		if helps || m == measureReload {
			k.last, k.lastStep = m, s.Step
		}
	}
	if k.chosen.Parts == 0 {
		k.chosen = k.plan()
	}
	k.anew()
	if !helps {
		return k.lastResort(s, level)
	}
	k.tight = 0
	k.log.Info("memory budget: "+k.last.String(), "step", s.Step, "before", level, "now", k.memory.level(), "parts", k.session.MicroBatches(), "prefetch", k.ahead(), "budget", k.Limit)
	return nil
}

// take takes a measure and reports whether there is room then, going by what is known.
func (k *keeper) take(ctx context.Context, s *State, m measure, level memory.Bytes) (helps bool, err error) {
	switch m {
	case measureTrim:
		helps = k.memory.trim() && k.room()
	case measurePrefetch:
		level = k.memory.level().Bytes
		if level+k.above > k.Limit {
			return false, nil // it takes some steps
		}
		for ahead := k.ahead(); ahead > 0; {
			ahead /= 2
			if level+k.above-k.saved(ahead) <= k.free() {
				k.readAhead(s, ahead, func() error { return nil })
				k.near = peakEvery
				return true, nil
			}
		}
	case measureSplit:
		helps, err = k.split()
	case measureReload:
		helps, err = k.reload(ctx, s, level)
	}
	if err == nil && (helps || m == measureReload) {
		tally(s, m.String())
	}
	return helps, err
}

// split halves the parts until there is room.
func (k *keeper) split() (bool, error) {
	if !k.splits() {
		return false, nil
	}
	for parts := k.session.MicroBatches(); parts < k.Batch; {
		before := k.partSize(parts)
		parts = min(2*parts, k.Batch)
		if err := k.session.SetMicroBatches(parts); err != nil {
			return false, err
		}
		// What a step has beyond its level goes with the samples, most of it; the steps
		// that follow tell. The pool of the larger parts stays.
		k.changed(k.above * memory.Bytes(k.partSize(parts)) / memory.Bytes(before))
		if k.room() {
			return true, nil
		}
		if k.memory.level().Bytes > k.free() {
			return false, nil // that alone is too much
		}
	}
	return false, nil
}

func (k *keeper) reload(ctx context.Context, s *State, level memory.Bytes) (bool, error) {
	// What is kept must survive the end of ctx: a step is not undone by Ctrl-C.
	did, err := k.session.reset(context.WithoutCancel(ctx), session.ResetReload)
	if err != nil {
		return false, err
	}
	s.ResetBy(session.ResetReload, did.Returned(), did.Took)
	if peak := k.memory.level().Bytes + k.memory.beyond(); peak > max(k.Limit, level) {
		k.over(s, peak)
	}
	k.settling, k.near = 1, peakEvery
	return k.room(), nil
}

// lastResort is what remains where nothing in place makes room.
func (k *keeper) lastResort(s *State, level memory.Bytes) error {
	now := k.memory.level().Bytes
	renews := k.Again != nil && s.Step-k.began >= worth && now > k.settled+k.noise()
	if now+k.above <= k.Limit && !(renews && k.tight > 0 && now > k.tight+k.noise()) {
		k.idle, k.tight = s.Step+k.patience, now
		k.patience *= 2
		k.log.Warn("memory budget: little room is left", "step", s.Step, "now", now, "needed", now+k.above, "budget", k.Limit)
		return nil
	}
	if renews {
		// It has grown, and a new process has room for what had it at first.
		return k.again(s, level, k.chosen)
	}
	if parts := k.session.MicroBatches(); k.splits() && (parts < k.Batch || k.guessed) {
		// Nothing smaller is possible; what it needs has to be known.
		k.changed(k.above * memory.Bytes(k.partSize(k.Batch)) / memory.Bytes(k.partSize(parts)))
		tally(s, measureSplit.String())
		k.log.Info("memory budget: the smallest parts", "step", s.Step, "before", level, "now", now, "parts", k.Batch, "budget", k.Limit)
		return k.session.SetMicroBatches(k.Batch)
	}
	if k.Again != nil && (k.loaded == nil || k.loaded.plan != k.plan()) {
		return k.again(s, level, k.plan())
	}
	k.err = &BudgetError{k.Limit, k.layer, k.enough(k.most), s.Step}
	s.Stop(k.err.Error())
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
