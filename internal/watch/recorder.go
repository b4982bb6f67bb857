package watch

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"steadyfit/internal/cgroup"
	"steadyfit/memory"
)

// byTime is the key of the series of a program that is sampled by time.
const byTime = ""

// Kinds of steps of the probe, in the order in which they are preferred. Kinds of memory.Mark and --mark come first.
var kinds = []string{"train", "test", "predict", "run", "call"}

// recorder collects the samples of a program.
type recorder struct {
	tree   *tree
	series map[string]*memory.Series // by kind of step
	began  time.Time
	last   time.Time // of a sample
	epochs int
	steps  map[string]int
	ends   []map[string]int // the steps at the first mark after the end of an epoch
	peak   memory.Bytes
	// left is what the program may still use, and measured the time when it was read.
	left     memory.Bytes
	measured time.Time
	// peers are the processes that sent messages. main is the one with most steps. When it has ended, the next one with
	// steps follows it; before are the steps until then.
	peers        []*peer
	main         *peer
	before       map[string]int
	epochsBefore int
	// held is the memory at the last sample, first that at the first mark, and searched that when containers were
	// searched for.
	held, first, searched memory.Bytes
	asked                 time.Time // when processes without steps were asked for containers
	// containers has the last message about each container that grows.
	containers map[containerKey]seen
	samples    *json.Encoder // nil without Options.Samples
	all        bool          // whether each mark has a sample
	measure    *Measure      // nil without Options.Measure
	attached   bool          // whether the processes ran already
	lost       bool          // whether the connection of main has ended before its process
	err        error         // of writing a sample
}

func newRecorder(samples io.Writer, roots ...int) *recorder {
	r := &recorder{tree: newTree(roots...), series: map[string]*memory.Series{}, began: time.Now(),
		steps: map[string]int{}, containers: map[containerKey]seen{}, asked: time.Now()}
	if samples != nil {
		r.samples = json.NewEncoder(samples)
	}
	return r
}

// sampleEvery is the time between samples of a program without marks.
const sampleEvery = 100 * time.Millisecond

// mostMarks is the maximum number of samples at marks in a second.
const mostMarks = 20

// sample takes a sample after a step of a kind, or at a moment.
func (r *recorder) sample(kind string) { r.record(kind, r.tree.sample()) }

// record adds a sample. A program does not wait for it.
func (r *recorder) record(kind string, s memory.Sample) {
	r.tree.scan()
	if len(r.tree.members) == 0 {
		return
	}
	if s.At.Sub(r.measured) > time.Second {
		r.left = memory.Bytes(cgroup.Available(strconv.Itoa(r.tree.roots[0])).Bytes)
		r.measured = s.At
	}
	r.last, r.held = s.At, s.Get(Total).Bytes
	r.peak = max(r.peak, r.held)
	if r.main != nil {
		for _, layer := range slices.Sorted(maps.Keys(r.main.Counts)) {
			s.Set(layer, memory.Known(memory.Bytes(r.main.Counts[layer])))
		}
	}
	s.Step = r.steps[kind]
	if r.series[kind] == nil {
		r.series[kind] = &memory.Series{}
	}
	r.series[kind].Append(&s)
	if r.samples != nil && r.err == nil {
		r.err = r.samples.Encode(struct {
			Kind   string        `json:"kind"`
			Epochs int           `json:"epochs"`
			Sample memory.Sample `json:"sample"`
		}{kind, r.epochs, s})
	}
	if kind != byTime && r.series[byTime] != nil {
		s.Step = 0
		r.series[byTime].Append(&s)
	}
}

// receive handles a message.
func (r *recorder) receive(m message) {
	p := m.from
	if m.Hello != nil {
		if p.pid > 0 { // it is in a namespace that can be seen
			r.tree.add(p.pid)
		}
		if p.Hello == nil {
			r.peers = append(r.peers, p)
		} else { // no signal follows the answer
			p.answer(goOn)
		}
		p.Hello = m.Hello
	}
	if m.Imported != nil && len(r.steps) == 0 {
		delete(r.series, byTime)
		r.asked = time.Now()
	}
	if m.Containers != nil {
		p.searches++
	}
	for _, c := range m.Containers {
		r.follow(c, p)
	}
	if m.Stacks != nil {
		p.Stacks = m.Stacks
	}
	if m.Places != nil || m.Missed != nil {
		p.Places, p.Missed = m.Places, m.Missed
	}
	if m.Counts != nil {
		p.Counts = m.Counts
		if r.main == nil || r.main.ended && len(r.main.Steps) == 0 {
			r.main = p
		}
	}
	if m.ended {
		p.ended, p.endedAt = true, time.Now()
		if i := slices.Index(r.peers, p); i > 0 && p.Counts == nil { // it has told nothing
			r.peers = slices.Delete(r.peers, i, i+1)
		}
	}
	if m.Mark != nil {
		r.marked(p, m)
	}
}

// marked handles a mark, at which a process waits for an answer.
func (r *recorder) marked(p *peer, m message) {
	if len(r.steps) == 0 && len(m.Steps) > 0 { // what came before the first step is the start of the program
		delete(r.series, byTime)
		r.searched = 0
	}
	p.Steps, p.Epochs = m.Steps, m.Epochs
	r.lost = false
	switch {
	case r.main == nil || len(r.main.Steps) == 0:
		r.main = p
	case r.main != p && r.main.ended: // the next process of the program counts on
		r.main = p
		r.before, r.epochsBefore = maps.Clone(r.steps), r.epochs
	case marks(p) > marks(r.main) && len(r.before) == 0:
		r.main = p
	}
	if p != r.main {
		p.answer(goOn)
		return
	}
	for kind, n := range m.Steps {
		r.steps[kind] = max(r.steps[kind], r.before[kind]+n)
	}
	if n := r.epochsBefore + m.Epochs; n > r.epochs {
		r.epochs, r.ends = n, append(r.ends, maps.Clone(r.steps))
	}
	if r.measure != nil {
		r.measuredMark(p, *m.Mark)
		return
	}
	// At the end of the program, what the last step held may be free.
	if *m.Mark == "" || !r.all && time.Since(r.last) < time.Second/mostMarks/2 {
		s := r.tree.sample()
		p.answer(r.next(s.Get(Total).Bytes, *m.Mark == ""))
		return
	}
	s := r.tree.sample()
	p.answer(r.next(s.Get(Total).Bytes, false))
	r.record(*m.Mark, s)
}

// measuredMark takes a sample while a program that is measured waits.
func (r *recorder) measuredMark(p *peer, kind string) {
	kind = cmp.Or(kind, Ended)
	r.record(kind, r.tree.sample())
	if kind == Loaded {
		r.tree.resetPeaks()
	}
	if r.measure.Waits != nil {
		r.measure.Waits(kind, slices.Sorted(maps.Keys(r.tree.members)))
	}
	p.answer(goOn)
}

// next returns the answer at a mark. A search takes time and some memory. So containers are searched for again only
// after the memory has grown by half of what may be a leak, and at the end if it has grown by all of that.
func (r *recorder) next(held memory.Bytes, end bool) answer {
	if r.searched == 0 {
		r.first = held
	}
	if held < r.searched*9/10 { // the program has freed memory
		r.searched = held
	}
	if from := cmp.Or(r.searched, 1); float64(held-from) >= max(wholeBudget*float64(from), float64(MinuteBudget))/2 ||
		end && float64(held-r.first) >= wholeBudget*float64(r.first) {
		r.searched = held
		return search
	}
	return goOn
}

// kinds returns the kinds of steps that were seen, in the order in which they are preferred.
func (r *recorder) kinds() []string {
	return slices.SortedFunc(maps.Keys(r.steps), func(a, b string) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a), slices.Index(kinds, b)), cmp.Compare(a, b))
	})
}

func marks(p *peer) (n int) {
	for _, steps := range p.Steps {
		n += steps
	}
	return n
}

// tick takes a sample by time, unless marks do.
func (r *recorder) tick() {
	if p := r.main; p != nil && p.ended && r.tree.members[p.pid] != nil && time.Since(p.endedAt) > time.Second {
		r.lost = true
	}
	if time.Since(r.last) >= sampleEvery && (r.measure == nil || r.measure.Every == 0 || len(r.steps) == 0) {
		r.sample(byTime)
	}
	if r.measure == nil {
		r.ask()
	}
}

// A program is asked for containers at first askFrom after its start or its last import, and then each askEvery.
const (
	askFrom  = 3 * time.Second
	askEvery = time.Second
)

// ask asks the processes of a program without steps for containers that grow, as next does at marks.
func (r *recorder) ask() {
	if slices.ContainsFunc(r.peers, func(p *peer) bool { return len(p.Steps) > 0 }) {
		return
	}
	wait := askEvery
	if r.searched == 0 {
		wait = askFrom
	}
	due := time.Since(r.asked) >= wait && r.next(r.held, false) == search
	if due {
		r.asked = time.Now()
	}
	for _, p := range r.peers {
		p.due = (p.due || due) && p.Hello.Asked && !p.ended
		ready := p.due && r.tree.members[p.pid] != nil && interruptible(p.pid)
		if ready && p.ready {
			p.due = false
			_ = unix.Tgkill(p.pid, p.pid, unix.SIGURG) // it may have ended
		}
		p.ready = ready
	}
}

// mark counts a step that the program's output tells.
func (r *recorder) mark() {
	r.steps["mark"]++
	if time.Since(r.last) >= time.Second/mostMarks {
		r.sample("mark")
	}
}

// exiting is how long a program may take to free its memory when it ends.
const exiting = 500 * time.Millisecond

// leaveOutExit leaves out the samples by time that show how a program frees its memory when it ends.
func (r *recorder) leaveOutExit() {
	s := r.series[byTime]
	if s == nil {
		return
	}
	now := time.Now()
	samples := s.Samples()
	from := slices.IndexFunc(samples, func(s memory.Sample) bool { return now.Sub(s.At) < exiting })
	if from > 0 {
		rest := &memory.Series{}
		for i := range samples[:from] {
			rest.Append(&samples[i])
		}
		r.series[byTime] = rest
	}
}

// chosen returns the series to judge: that of the preferred kind with enough samples.
func (r *recorder) chosen() (kind string, s *memory.Series) {
	if s := r.series[byTime]; r.lost && s != nil {
		return byTime, s
	}
	for _, least := range []int{leastSamples, 1} {
		for _, kind := range append(r.kinds(), byTime) {
			if s := r.series[kind]; s != nil && s.Total() >= least {
				return kind, s
			}
		}
	}
	return byTime, &memory.Series{}
}

// later returns a kind of step that goes on after the last step of another kind, and its samples from there. It returns
// nil unless they cover a quarter of the time.
func (r *recorder) later(kind string, than *memory.Series) (string, *memory.Series) {
	samples := than.Samples()
	if kind == byTime || len(samples) == 0 {
		return "", nil
	}
	begin, end := samples[0].At, samples[len(samples)-1].At
	for _, other := range r.kinds() {
		rest := &memory.Series{}
		if r.series[other] == nil {
			continue
		}
		for _, s := range r.series[other].Samples() {
			if s.At.After(end) {
				rest.Append(&s)
			}
		}
		if all := rest.Samples(); len(all) >= leastSamples && 4*all[len(all)-1].At.Sub(end) > all[len(all)-1].At.Sub(begin) {
			return other, rest
		}
	}
	return "", nil
}

// leastSamples is the minimum number of samples of a series that is judged.
const leastSamples = 16
