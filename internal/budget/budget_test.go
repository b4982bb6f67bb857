package budget

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

const mib = memory.MiB

// machine simulates the memory of a process with a session.
type machine struct {
	fit.Plain
	behaviour
	returns             bool // freed large blocks are returned to the system
	parts, largest      int
	freed, leaked, kept memory.Bytes
	high, highest       memory.Bytes
	trained             int
	opened, closed      int
	sizes               []int // largest micro-batch of each step
	resets              []int // steps after which the session was reset
	trims               int
}

// behaviour is what several processes of a training have in common.
type behaviour struct {
	batch int
	whole bool         // batches cannot be split
	base  memory.Bytes // memory with the model loaded
	// A step needs perSample bytes for each sample of a micro-batch. The process retains pool bytes for each
	// sample of the largest micro-batch.
	perSample, pool memory.Bytes
	// beyondOf, if not nil, replaces perSample.
	beyondOf func(samples int) memory.Bytes
	// Each step leaves memory behind until malloc is trimmed, or until the process ends.
	garbage, leak memory.Bytes
	// Each step leaves memory behind while malloc retains blocks, until it is trimmed without
	// retaining them.
	fragments    memory.Bytes
	malloc       bool         // malloc with a threshold replaces the pool
	validation   memory.Bytes // memory of a validation above the level
	saving       memory.Bytes // memory of writing a checkpoint above the level
	opening      memory.Bytes // peak before the first step
	unsettable   error        // error of SetMicroBatches
	unresettable error        // error of reset
	unreadable   error        // error of level
	afterStep    func(m *machine)
}

// process returns a new process.
func (b behaviour) process() *machine { return &machine{behaviour: b} }

func (m *machine) bytes() memory.Bytes {
	return m.base + m.kept + m.freed + m.leaked + m.pool*memory.Bytes(m.largest)
}

func (m *machine) train() {
	m.trained++
	size := (m.batch + m.MicroBatches() - 1) / m.MicroBatches()
	m.sizes = append(m.sizes, size)
	m.largest = max(m.largest, size)
	beyond := m.perSample * memory.Bytes(size)
	if m.beyondOf != nil {
		beyond = m.beyondOf(size)
	}
	m.rise(beyond)
	if !m.returns {
		m.kept += m.fragments
	}
	m.freed, m.leaked = m.freed+m.garbage, m.leaked+m.leak
	if m.afterStep != nil {
		m.afterStep(m)
	}
}

func (m *machine) rise(beyond memory.Bytes) {
	m.high = max(m.high, m.bytes()+beyond)
	m.highest = max(m.highest, m.high)
}

var errWhole = errors.New("the model has no gradients")

func (m *machine) CheckSplit() error {
	if m.whole {
		return errWhole
	}
	return nil
}

func (m *machine) MicroBatches() int { return max(m.parts, 1) }

func (m *machine) SetMicroBatches(n int) error {
	m.parts = n
	return m.unsettable
}

func (m *machine) Reset(context.Context, string) (session.Reset, error) {
	if m.unresettable != nil {
		return session.Reset{}, m.unresettable
	}
	m.resets = append(m.resets, m.trained)
	return session.Reset{Took: time.Second}, nil
}

func (m *machine) level() (memory.Bytes, error) { return m.bytes(), m.unreadable }
func (m *machine) uncertainty() memory.Bytes    { return 256 * memory.KiB }

func (m *machine) peak() memory.Bytes { return m.opening }

func (m *machine) beyond() (memory.Bytes, error) {
	beyond := max(m.high-m.bytes(), 0)
	m.high = 0
	return beyond, m.unreadable
}

func (m *machine) trim() {
	m.trims++
	m.freed, m.returns = 0, m.malloc
	if m.returns {
		m.kept = 0
	}
}

func (m *machine) retain() { m.returns = false }

func (m *machine) close() error {
	m.closed++
	return nil
}

func (m *machine) open(memory.Layer) (meter, error) {
	m.opened++
	return m, nil
}

type attempt struct {
	epochs, steps int // steps is per epoch
	validates     bool
	dir           string // folder of checkpoints; empty for none
	log           *strings.Builder
	hooks         []fit.Hook
}

func (a attempt) run(t *testing.T, m *machine, b *Budget) (*fit.History, error) {
	t.Helper()
	b.Batch, m.batch = 32, 32
	loop := fit.Loop{Session: m, Batch: 32, Epochs: a.epochs, Resume: a.dir}
	if a.validates {
		loop.Validation = samples(t, 8)
	}
	if a.dir != "" {
		loop.Hook(fit.Checkpoint{Folder: a.dir}.Hook())
	}
	if a.log != nil {
		b.Log = slog.New(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	loop.Hook(b.hook(m, m.open))
	loop.Hook(a.hooks...)
	h, err := loop.Run(t.Context(), samples(t, 32*a.steps))
	require.Equal(t, m.opened, m.closed, "what was opened is closed")
	return h, err
}

// eventsOf returns the events of all epochs.
func eventsOf(h *fit.History) []string {
	events := []string{}
	for _, r := range h.Records {
		events = append(events, r.Events...)
	}
	return events
}

// The largest micro-batches that fit are chosen, and every peak is under the limit.
func TestBudgetChooses(t *testing.T) {
	for _, c := range []struct {
		name  string
		m     behaviour
		set   int // Budget.MicroBatches
		limit memory.Bytes
		parts int
		says  string // text in the log
	}{
		{"plenty", behaviour{base: 300 * mib, perSample: 10 * mib}, 0, 2000 * mib, 1, `chosen" parts=1 samples=32 peak="620.0 MiB" budget="2.0 GiB" of=rss reason="whole batches fit"`},
		{"some", behaviour{base: 300 * mib, perSample: 10 * mib, pool: mib}, 0, 600 * mib, 2, `chosen" parts=2 samples=16 peak="476.0 MiB" budget="600.0 MiB" of=rss reason="32 samples may need 740.0 MiB of 582.0 MiB"`},
		{"hardly", behaviour{base: 300 * mib, perSample: 10 * mib}, 0, 331 * mib, 16, `chosen" parts=16 samples=2 peak="320.0 MiB" budget="331.0 MiB" of=rss reason="4 samples may need 340.0 MiB`},
		{"no growth that can be told", behaviour{base: 300 * mib, perSample: 100}, 0, 400 * mib, 1, `chosen" parts=`},
		{"cannot be split", behaviour{base: 300 * mib, perSample: 10 * mib, whole: true}, 0, 700 * mib, 1,
			`batches are not split (the model has no gradients)" parts=1 samples=32 now="300.0 MiB" budget="700.0 MiB" of=rss`},
		{"set", behaviour{base: 300 * mib, perSample: 10 * mib}, 2, 520 * mib, 2, `micro-batches as set" parts=2 samples=16`},
		{"without a pool", behaviour{base: 300 * mib, malloc: true, beyondOf: func(n int) memory.Bytes { return memory.Bytes(n*n) * mib }}, 0, 450 * mib, 4, `chosen" parts=4`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := c.m.process()
			var log strings.Builder
			h, err := attempt{epochs: 2, steps: 40, log: &log}.run(t, m, &Budget{Limit: c.limit, MicroBatches: c.set})
			require.NoError(t, err)
			assert.Equal(t, c.parts, m.MicroBatches(), "%s", &log)
			assert.LessOrEqual(t, m.highest, c.limit)
			assert.Empty(t, eventsOf(h))
			assert.Equal(t, 1, strings.Count(log.String(), "level=INFO"), "%s", &log)
			assert.Contains(t, log.String(), `level=INFO msg="memory budget: `+c.says)
		})
	}
}

// A wrong prediction is logged and corrected after the first step.
func TestBudgetIsCrossed(t *testing.T) {
	m := behaviour{base: 300 * mib, beyondOf: func(samples int) memory.Bytes {
		if samples > 8 { // an operation uses another algorithm
			return memory.Bytes(samples) * 20 * mib
		}
		return memory.Bytes(samples) * 5 * mib
	}}.process()
	var log strings.Builder
	h, err := attempt{epochs: 1, steps: 40, log: &log}.run(t, m, &Budget{Limit: 500 * mib})
	require.NoError(t, err)
	assert.Equal(t, []int{2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 16, 8}, m.sizes[:12])
	assert.Equal(t, 8, m.sizes[39])
	assert.Equal(t, []string{"over_budget", "microbatch"}, eventsOf(h))
	assert.Contains(t, log.String(), `level=WARN msg="memory budget: exceeded" step=11 peak="620.0 MiB" budget="500.0 MiB" by="120.0 MiB"`)
}

// Each measure is taken if cheaper ones do not help.
func TestBudgetMeasures(t *testing.T) {
	for _, c := range []struct {
		name   string
		m      behaviour
		limit  memory.Bytes
		again  bool
		events []string
		parts  int
		stop   string // text in the reason; empty if the run completes
	}{
		// The headroom is used up by the garbage of about 56 steps.
		{"trim", behaviour{base: 300 * mib, perSample: mib, garbage: mib, whole: true}, 400 * mib, false, []string{"trim"}, 1,
			""},
		{"trim without retaining", behaviour{base: 300 * mib, perSample: mib, fragments: mib, whole: true, malloc: true},
			500 * mib, false, []string{"trim"}, 1, ""},
		{"no room to keep blocks", behaviour{base: 300 * mib, perSample: mib, fragments: mib, whole: true, malloc: true},
			400 * mib, false, []string{}, 1, ""},
		{"threshold of the environment", behaviour{base: 300 * mib, perSample: 4 * mib, fragments: 600 * memory.KiB}, 520 * mib,
			false, []string{"microbatch"}, 2, ""},
		{"trim is not enough", behaviour{base: 300 * mib, perSample: mib, fragments: mib, leak: mib, whole: true, malloc: true},
			500 * mib, true, nil, 1, "resuming in a new process"},
		{"microbatch", behaviour{base: 300 * mib, perSample: 4 * mib, leak: 600 * memory.KiB}, 520 * mib, false,
			[]string{"microbatch"}, 2, ""},
		{"process", behaviour{base: 300 * mib, perSample: mib, leak: mib, whole: true}, 400 * mib, true, nil, 1,
			"resuming in a new process"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := c.m.process()
			b := &Budget{Limit: c.limit}
			var reason string
			if c.again {
				b.Restart = func(r string) { reason = r }
			}
			h, err := attempt{epochs: 1, steps: 200}.run(t, m, b)
			require.NoError(t, err)
			assert.LessOrEqual(t, m.highest, c.limit)
			assert.Equal(t, c.parts, m.MicroBatches())
			if c.stop == "" {
				assert.Equal(t, c.events, eventsOf(h))
				return
			}
			assert.Contains(t, h.Stopped, c.stop)
			assert.Equal(t, "memory budget", reason)
		})
	}
}

// If a measure is needed again at once, it did not help.
func TestBudgetGoesOnToTheNextMeasure(t *testing.T) {
	// Trimming releases the memory of one step.
	m := behaviour{base: 300 * mib, garbage: 40 * mib, whole: true}.process()
	h, err := attempt{epochs: 1, steps: 200}.run(t, m, &Budget{Limit: 350 * mib})
	var unkept *Error
	require.ErrorAs(t, err, &unkept)
	assert.Contains(t, h.Stopped, "cannot be kept")
	assert.Less(t, m.trained, 10)
	assert.Equal(t, 2, m.trims, "one at the start")
}

// The error of a budget has the reason why batches were not split, and the checkpoint.
func TestErrorSaysWhatToDo(t *testing.T) {
	for _, c := range []struct {
		name      string
		whole, at bool
		want      string
	}{
		{"split", false, false, ": raise it to about 656 MiB, or train with smaller batches; there is no checkpoint to " +
			"resume from"},
		{"whole", true, true, "MiB, or allow micro-batches, which were not used (the model has no gradients); "},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := behaviour{base: 300 * mib, whole: c.whole, perSample: 150 * mib,
				beyondOf: func(int) memory.Bytes { return 300 * mib }}.process()
			a := attempt{epochs: 1, steps: 20}
			if c.at {
				a.dir = t.TempDir()
			}
			h, err := a.run(t, m, &Budget{Limit: 400 * mib})
			var unkept *Error
			require.ErrorAs(t, err, &unkept)
			assert.ErrorContains(t, err, c.want)
			assert.Equal(t, c.whole, errors.Is(err, errWhole))
			assert.Equal(t, h.Checkpoint, unkept.Checkpoint)
			assert.Equal(t, "memory budget: 400.0 MiB of rss cannot be kept", h.Stopped)
			if c.at {
				assert.NotEmpty(t, h.Checkpoint)
				assert.ErrorContains(t, err, "a training with another limit can resume from "+h.Checkpoint)
			}
		})
	}
}

// Little headroom is tolerated below the limit, without a measure in each step.
func TestBudgetToleratesLittleHeadroom(t *testing.T) {
	for _, restart := range []func(string){nil, func(string) { t.Error("a new process would have no more headroom") }} {
		m := behaviour{base: 390 * mib, whole: true}.process()
		h, err := attempt{epochs: 1, steps: 200}.run(t, m, &Budget{Limit: 400 * mib, Restart: restart})
		require.NoError(t, err)
		assert.Empty(t, eventsOf(h))
		assert.Less(t, m.trims, 200/peakEvery+2)
	}
}

// With the limit from the error, the run succeeds, also its validations and checkpoints, and the limit is close to its
// peak. It suffices for the steps, but not for opening the model, which may take more.
func TestBudgetNeedIsEnough(t *testing.T) {
	for _, b := range []behaviour{
		{base: 300 * mib, perSample: 10 * mib},
		{base: 300 * mib, perSample: 10 * mib, pool: 3 * mib},
		{base: 300 * mib, perSample: 100 * mib, pool: 20 * mib},
		{base: 300 * mib, perSample: 10 * mib, whole: true},
		{base: 300 * mib, perSample: 10 * mib, leak: 100 * memory.KiB},
		{base: 300 * mib},
		{base: 300 * mib, perSample: mib, whole: true, afterStep: func(m *machine) { // later steps take more
			if m.trained == 12 {
				m.base += 16 * mib
			}
		}},
		{base: 300 * mib, perSample: mib, validation: 300 * mib, whole: true},
		{base: 300 * mib, perSample: mib, saving: 100 * mib, whole: true},
		{base: 60 * mib, perSample: mib, opening: 290 * mib},
	} {
		for _, limit := range []memory.Bytes{mib, 50 * mib, 200 * mib, 299 * mib, 301 * mib, 340 * mib, 400 * mib} {
			if b.validation > 0 && limit < 400*mib {
				continue // it ends before the first validation
			}
			first, a := b.process(), attempt{epochs: 2, steps: 20, validates: b.validation > 0}
			if b.saving > 0 {
				a.dir = t.TempDir()
			}
			var log strings.Builder
			a.log = &log
			_, err := a.run(t, first, &Budget{Limit: limit})
			assert.Equal(t, max(b.base, b.opening) > limit, strings.Contains(log.String(),
				`level=WARN msg="memory budget: exceeded before the first step" now=`))
			if err == nil {
				require.LessOrEqual(t, first.highest, limit)
				continue
			}
			var unkept *Error
			require.ErrorAs(t, err, &unkept, "%+v", b)
			require.LessOrEqual(t, first.trained, 21)
			require.LessOrEqual(t, unkept.Need, first.highest*110/100+2*mib)
			require.Contains(t, unkept.Error(), "raise it to ")
			require.Equal(t, b.opening, unkept.Opening)
			require.Equal(t, b.opening > unkept.Need, strings.Contains(unkept.Error(),
				"; opening the model takes 290 MiB for a moment"))

			second := b.process()
			if b.saving > 0 {
				a.dir = t.TempDir()
			}
			h, err := a.run(t, second, &Budget{Limit: unkept.Need})
			require.NoError(t, err, "%+v with %v", b, unkept.Need)
			require.LessOrEqual(t, second.highest, unkept.Need)
			require.NotContains(t, eventsOf(h), overEvent)
		}
	}
}

// A budget that no process can keep ends the training even if Restart is set. A budget that a new
// process can keep causes a restart.
func TestBudgetAcrossProcesses(t *testing.T) {
	for _, c := range []struct {
		name      string
		m         behaviour
		limit     memory.Bytes
		processes int
		kept      bool
	}{
		{"never", behaviour{base: 300 * mib, perSample: 20 * mib}, 290 * mib, 2, false},
		{"never, and not split", behaviour{base: 300 * mib, perSample: 20 * mib, whole: true}, 400 * mib, 1, false},
		{"only without the blocks of larger parts", behaviour{base: 300 * mib, perSample: mib, pool: 20 * mib}, 325 * mib, 2,
			true},
		{"only for a while", behaviour{base: 300 * mib, perSample: mib, leak: mib, whole: true}, 425 * mib, 3, true},
		{"only for a moment", behaviour{base: 300 * mib, perSample: mib, leak: 10 * mib, whole: true}, 420 * mib, 1, false},
		{"never in a validation", behaviour{base: 300 * mib, validation: 300 * mib, whole: true}, 400 * mib, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := attempt{epochs: 10, steps: 25, dir: t.TempDir()}
			if c.m.validation > 0 {
				a.steps, a.validates = 100, true
			}
			for process := 1; ; process++ {
				m := c.m.process()
				again := false
				log := &strings.Builder{}
				a.log = log
				h, err := a.run(t, m, &Budget{Limit: c.limit, Restart: func(string) { again = true }})
				t.Logf("process %d: %d steps, %d parts, at most %v\n%s", process, m.trained, m.MicroBatches(), m.highest, log)
				if again {
					require.NoError(t, err)
					require.Less(t, process, 10)
					continue
				}
				assert.Equal(t, c.processes, process)
				if c.kept {
					require.NoError(t, err)
					assert.Len(t, h.Records, a.epochs)
					return
				}
				require.ErrorAs(t, err, new(*Error))
				return
			}
		})
	}
}

// A resumed run uses the micro-batches of the stopped run.
func TestBudgetIsResumed(t *testing.T) {
	m := behaviour{base: 300 * mib, perSample: 10 * mib}
	dir := t.TempDir()
	first := m.process()
	_, err := attempt{epochs: 1, steps: 20, dir: dir}.run(t, first, &Budget{Limit: 420 * mib})
	require.NoError(t, err)
	require.Equal(t, 4, first.MicroBatches())

	same, copied := m.process(), t.TempDir()
	require.NoError(t, os.CopyFS(copied, os.DirFS(dir)))
	var log strings.Builder
	_, err = attempt{epochs: 2, steps: 20, dir: copied, log: &log}.run(t, same, &Budget{Limit: 420 * mib})
	require.NoError(t, err)
	assert.Contains(t, log.String(), `level=INFO msg="memory budget: micro-batches of an earlier run" parts=4 samples=8 now="300.0 MiB" budget="420.0 MiB" of=rss`)
	assert.Equal(t, slices.Repeat([]int{8}, 20), same.sizes)

	other := m.process()
	_, err = attempt{epochs: 2, steps: 20, dir: dir}.run(t, other, &Budget{Limit: 2000 * mib})
	require.NoError(t, err)
	assert.Equal(t, []int{2, 2, 2, 2, 4}, other.sizes[:5], "another limit chooses anew")

	// No number is chosen yet, so there is no state.
	dir = t.TempDir()
	_, err = attempt{epochs: 1, steps: 3, dir: dir}.run(t, m.process(), &Budget{Limit: 420 * mib})
	require.NoError(t, err)
	anew := m.process()
	_, err = attempt{epochs: 9, steps: 3, dir: dir}.run(t, anew, &Budget{Limit: 420 * mib})
	require.NoError(t, err)
	assert.Equal(t, 2, anew.sizes[0])
	assert.Equal(t, 4, anew.MicroBatches())
}

// No measure is taken after the last step, or after the run was stopped.
func TestBudgetAtTheEnd(t *testing.T) {
	m := behaviour{base: 300 * mib, whole: true, afterStep: func(m *machine) {
		if m.trained == 20 {
			m.rise(500 * mib)
		}
	}}.process()
	h, err := attempt{epochs: 1, steps: 20}.run(t, m, &Budget{Limit: 400 * mib})
	require.NoError(t, err)
	assert.Equal(t, []string{"over_budget"}, eventsOf(h))

	stop := fit.Hook{Name: "stop", Priority: -1, Step: func(_ context.Context, s *fit.State) error {
		if s.Step == 20 {
			s.Stop("enough")
		}
		return nil
	}}
	m = m.process()
	h, err = attempt{epochs: 3, steps: 30, hooks: []fit.Hook{stop}}.run(t, m, &Budget{Limit: 400 * mib})
	require.NoError(t, err)
	assert.Equal(t, "enough", h.Stopped)
}

func TestBudgetOptions(t *testing.T) {
	failed := errors.New("no")
	for _, c := range []struct {
		name string
		b    Budget
		m    behaviour
		want string
	}{
		{"limit", Budget{}, behaviour{}, "Budget.Limit 0 B: expected more than 0"},
		{"parts", Budget{Limit: mib}, behaviour{unsettable: failed}, "no"},
	} {
		m := c.m.process()
		_, err := attempt{epochs: 1, steps: 1}.run(t, m, &c.b)
		require.ErrorContains(t, err, c.want, c.name)
		require.Zero(t, m.trained)
	}
	_, err := openMeter(memory.MallocUsed)
	require.ErrorAs(t, err, new(*option.Error))
}

// peaks simulates a kernel that may not report the peak of a process.
type peaks struct {
	*memory.Sampler
	err, reset error
}

func (p *peaks) Sample(step int, s *memory.Sample) error {
	*s = memory.Sample{}
	if p.err != nil || p.reset == nil {
		return p.err
	}
	return p.Sampler.Sample(step, s)
}

func (p *peaks) ResetPeak() error { return p.reset }

// A meter that cannot measure peaks returns an error, and a run whose memory becomes unreadable ends with a
// checkpoint.
func TestBudgetThatCannotBeMeasured(t *testing.T) {
	sampler, err := memory.NewSampler(0)
	if err != nil {
		t.Skip("this machine does not report the memory of a process: ", err)
	}
	defer sampler.Close()
	for want, kernel := range map[string]*peaks{
		"no proc": {err: errors.New("no proc")}, "VmHWM": {}, "cannot be reset: read-only": {reset: errors.New("read-only")},
	} {
		kernel.Sampler = sampler
		_, err := (&processMeter{sampler: kernel}).beyond()
		require.ErrorContains(t, err, want)
	}
	m := behaviour{base: 300 * mib, perSample: mib, afterStep: func(m *machine) {
		if m.trained == 20 {
			m.unreadable = errors.New("too many open files")
		}
	}}.process()
	h, err := attempt{epochs: 2, steps: 30, dir: t.TempDir()}.run(t, m, &Budget{Limit: 400 * mib})
	require.ErrorIs(t, err, m.unreadable)
	require.Equal(t, 20, m.trained)
	require.EqualValues(t, 20, savedStep(t, h.Checkpoint))
}
