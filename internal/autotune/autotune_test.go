package autotune

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/allocator"
	"steadyfit/internal/columns"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

var (
	fused    = Configuration{StepsPerExecution: 50}
	compiled = Configuration{Compiled: true}
	both     = Configuration{StepsPerExecution: 50, Compiled: true}
	single   = Configuration{Executor: gpuopts.SingleThreaded, IntraThreads: 1, InterThreads: 1}
	intra    = Configuration{IntraThreads: 1}
	inter    = Configuration{InterThreads: 1}
	two      = Configuration{InterThreads: 2}
	oneDNNOn = Configuration{OneDNN: "on"}
)

func TestCandidateInWords(t *testing.T) {
	for _, c := range []struct {
		configuration Configuration
		want          string
	}{
		{Configuration{}, "plain"},
		{both, "50 steps per execution, XLA-compiled"},
		{single.over(compiled), "XLA-compiled, single-threaded executor, intra threads 1"},
		{inter, "inter threads 1"},
		{Configuration{Precision: gpuopts.BFloat16}.over(fused), "50 steps per execution, bfloat16"},
		{fused.over(oneDNNOn), "oneDNN on, 50 steps per execution"},
	} {
		assert.Equal(t, c.want, c.configuration.String())
	}
}

func TestRounds(t *testing.T) {
	_, err := tfbind.Load("")
	require.NoError(t, err)
	oneDNN, known := tfprocess.OneDNN()
	require.True(t, known)
	for _, c := range []struct {
		configuration Configuration
		rounds        bool
		changes       int
	}{
		{Configuration{}, false, 0},
		{fused, false, 1},
		{two.over(fused), false, 2},
		{Configuration{InterThreads: 1, Allocator: allocator.Jemalloc}.over(fused), false, 3},
		{Configuration{Executor: gpuopts.SingleThreaded}, false, 1},
		{Configuration{Executor: gpuopts.SingleThreaded}.over(fused), oneDNN, map[bool]int{true: 3, false: 2}[oneDNN]},
		{intra, true, 2},
		{single, true, 3},
		{single.over(fused), true, 4},
		{compiled, true, 2},
		{both, true, 3},
		{oneDNNOn, true, 2},
		{Configuration{Executor: gpuopts.SingleThreaded}.over(fused).over(oneDNNOn), true, 4},
		{Configuration{Precision: gpuopts.BFloat16}, true, 4},
	} {
		assert.Equal(t, c.rounds, c.configuration.Rounds(), c.configuration)
		assert.Equal(t, c.changes, c.configuration.Changes(), c.configuration)
	}
	loop := session.Rounding{IntraThreads: 1}
	if oneDNN {
		loop.Loop, loop.StepsPerExecution = true, 50
	}
	assert.Equal(t, loop, single.over(fused).Apply(session.Options{}).Rounding())
	assert.Equal(t, session.Rounding{Compiled: true}, compiled.Apply(session.Options{StepsPerExecution: 1}).Rounding(), "one step per call, either way")
}

func TestApply(t *testing.T) {
	base := session.Options{StepsPerExecution: 7, Device: gpuopts.Options{IntraThreads: 3, MemoryGrowth: true}}
	assert.Equal(t, base, Configuration{}.Apply(base))
	o := single.over(both).Apply(base)
	assert.Equal(t, session.Options{
		StepsPerExecution: 50, Compiled: true,
		Device: gpuopts.Options{IntraThreads: 1, InterThreads: 1, Executor: gpuopts.SingleThreaded, MemoryGrowth: true},
	}, o)
}

// dense returns a model that has all kinds of signatures, for batches of 32, and data for it.
func dense(t *testing.T) (*savedmodels.Model, *data.InMemory) {
	t.Helper()
	m, err := savedmodels.Builtin("dense-100-64-1")
	require.NoError(t, err)
	const n = 320
	x, y := make([]float32, 100*n), make([]float32, n)
	for i := range x {
		x[i] = float32(i%17) / 17
	}
	for i := range y {
		y[i] = float32(i % 2)
	}
	ds, err := data.New("made", data.Field{Name: "x", Array: data.Array{Shape: []int{n, 100}, Values: x}},
		data.Field{Name: "y", Array: data.Array{Shape: []int{n, 1}, Values: y}})
	require.NoError(t, err)
	return m, ds
}

func TestOffers(t *testing.T) {
	m, ds := dense(t)
	all := Limits{StepsPerExecution: 100, Compiled: true, Threads: true, Precision: true}
	for _, c := range []struct {
		name, env       string
		options         session.Options
		batch           int
		limits          Limits
		bases, settings []Configuration
	}{
		{name: "nothing is allowed", batch: 32},
		{name: "all", batch: 32, limits: all, bases: []Configuration{both, fused, compiled}, settings: []Configuration{single, intra, {Precision: gpuopts.BFloat16}}},
		{name: "a batch that no signature was compiled for", batch: 16, limits: Limits{StepsPerExecution: 100, Compiled: true}, bases: []Configuration{fused}},
		{name: "fewer steps in an epoch than a compiled signature runs", batch: 32, limits: Limits{StepsPerExecution: 10, Compiled: true}, bases: []Configuration{{StepsPerExecution: 10}, compiled}},
		{name: "deterministic", options: session.Options{Device: gpuopts.Options{Deterministic: true}}, batch: 32, limits: Limits{StepsPerExecution: 50, Compiled: true, Threads: true}, bases: []Configuration{fused}},
		{name: "threads are set from outside", env: "TF_NUM_INTEROP_THREADS", batch: 32, limits: Limits{StepsPerExecution: 50, Threads: true}, bases: []Configuration{fused}},
		{name: "a step is traced", batch: 32, limits: Limits{StepsPerExecution: 50, Threads: true, Traced: true}, bases: []Configuration{fused}, settings: []Configuration{intra}},
		{name: "what is set stays", options: session.Options{StepsPerExecution: 5, Device: gpuopts.Options{IntraThreads: 1, Precision: gpuopts.BFloat16}}, batch: 32, limits: all, bases: []Configuration{compiled}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.env != "" {
				t.Setenv(c.env, "2")
			}
			o, err := newOffer(&Plan{Model: m, Options: c.options, Data: ds, Batch: c.batch, Limits: c.limits})
			require.NoError(t, err)
			assert.Equal(t, offer{bases: c.bases, settings: c.settings}, o)
			for _, b := range o.bases {
				for _, s := range append([]Configuration{{}}, o.settings...) {
					now, ok := o.like(s.over(b))
					assert.True(t, ok)
					assert.Equal(t, s.over(b), now)
				}
			}
			for _, other := range []Configuration{{StepsPerExecution: 777}, {StepsPerExecution: 77, Compiled: true}, {InterThreads: 9}} {
				_, ok := o.like(other)
				assert.False(t, ok, other)
			}
			_, ok := o.like(Configuration{})
			assert.True(t, ok)
		})
	}
}

// An allocator is among the configurations to choose from if it is installed and no environment
// variable conflicts with it.
func TestAllocator(t *testing.T) {
	m, ds := dense(t)
	j := Configuration{Allocator: allocator.Jemalloc}
	assert.Equal(t, "50 steps per execution, jemalloc", j.over(fused).String())
	offers := func() bool {
		o, err := newOffer(&Plan{Model: m, Data: ds, Batch: 32, Limits: Limits{Restart: true}})
		require.NoError(t, err)
		require.LessOrEqual(t, len(o.settings), 1)
		assert.Equal(t, len(o.settings) == 1, j.Within(Limits{Restart: true}, session.Options{}) == j && os.Getenv("LD_PRELOAD") == "")
		return len(o.settings) == 1
	}
	for _, name := range []string{"LD_PRELOAD", "MALLOC_CONF"} {
		t.Setenv(name, "") // restores the variable after the test
		require.NoError(t, os.Unsetenv(name))
	}
	dir := t.TempDir()
	t.Setenv("LD_LIBRARY_PATH", dir)
	path := filepath.Join(dir, "libjemalloc.so.2")
	require.NoError(t, os.WriteFile(path, nil, 0o666))
	assert.True(t, offers())
	assert.Equal(t, Configuration{}, j.Within(Limits{}, session.Options{}), "it is not allowed")
	missing, err := j.Environment()
	require.NoError(t, err)
	require.Len(t, missing, 2)
	assert.Equal(t, "LD_PRELOAD="+path, missing[0].String())
	t.Setenv("MALLOC_CONF", "dirty_decay_ms:0")
	assert.False(t, offers())
	t.Setenv("MALLOC_CONF", allocator.JemallocKeeps) // as in the release profile
	assert.True(t, offers())
	t.Setenv("LD_PRELOAD", "libother.so")
	assert.False(t, offers())
	t.Setenv("LD_PRELOAD", path)
	assert.False(t, offers(), "it is preloaded already")
	assert.Equal(t, j, j.Within(Limits{}, session.Options{}), "and so it stays")
	_, err = Configuration{Allocator: "none"}.Environment()
	assert.ErrorIs(t, err, allocator.ErrUnknown)
}

// The opposite of the present use of oneDNN is among the configurations to choose from, even if a
// variable sets the present use, unless the options set or need the present use.
func TestOtherOneDNN(t *testing.T) {
	_, err := tfbind.Load("")
	require.NoError(t, err)
	on, known := tfprocess.OneDNN()
	require.True(t, known)
	other, value := Configuration{OneDNN: "off"}, "0"
	if !on {
		other, value = oneDNNOn, "1"
	}
	m, ds := dense(t)
	offers := func(l Limits, o session.Options) bool {
		t.Helper()
		offered, err := newOffer(&Plan{Model: m, Options: o, Data: ds, Batch: 32, Limits: l})
		require.NoError(t, err)
		return slices.Contains(offered.settings, other)
	}
	both := Limits{Restart: true, OneDNN: true}
	assert.True(t, offers(both, session.Options{}))
	assert.False(t, offers(Limits{OneDNN: true}, session.Options{}))
	assert.False(t, offers(Limits{Restart: true}, session.Options{}))
	assert.False(t, offers(both, session.Options{Device: gpuopts.Options{Deterministic: true}}))
	if on {
		assert.False(t, offers(both, session.Options{Device: gpuopts.Options{OneDNN: "on"}}), "it is set")
		assert.False(t, offers(both, session.Options{Device: gpuopts.Options{Precision: gpuopts.BFloat16}}), "bfloat16 needs oneDNN")
	}
	for _, present := range []string{"", "0", "1"} {
		t.Setenv("TF_ENABLE_ONEDNN_OPTS", present)
		missing, err := other.Environment()
		require.NoError(t, err)
		assert.Equal(t, other, other.Within(both, session.Options{}))
		if present == value {
			assert.Empty(t, missing)
			assert.Equal(t, other, other.Within(Limits{}, session.Options{}), "the process has it already")
			continue
		}
		require.Len(t, missing, 1)
		assert.Equal(t, "TF_ENABLE_ONEDNN_OPTS="+value, missing[0].String())
		assert.Equal(t, Configuration{}, other.Within(Limits{Restart: true}, session.Options{}))
	}
}

func TestAllowed(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps int64
		step  time.Duration
		want  time.Duration
	}{
		{"a demo", 900, 150 * time.Microsecond, 2700 * time.Microsecond},
		{"two hundredths", 100_000, time.Millisecond, 2 * time.Second},
		{"no more than the bound", 100_000, time.Hour, maxTime},
	} {
		assert.Equal(t, c.want, (&Plan{Steps: c.steps}).allowed(c.step), c.name)
	}
	_, ds := dense(t)
	p := Plan{Data: ds, Batch: 32}
	assert.Equal(t, 50*time.Microsecond+646*time.Nanosecond, p.least(), "32 samples of 101 float32 at 20 GB/s")
	assert.Equal(t, maxTime, p.allowed(time.Microsecond), "so many steps that nobody knows")
	p.Steps = 1000
	assert.Equal(t, 20*time.Millisecond, p.allowed(time.Millisecond))
}

// A configuration that needs a restart must save twice the time of the restart.
func TestRestartTime(t *testing.T) {
	t.Setenv("TF_ENABLE_ONEDNN_OPTS", "0")
	m := Measurement{Configuration: oneDNNOn, Rounds: 9, Step: 0.25, Low: 0.2, Ratio: 0.25, High: 0.5} // saves 0.5 s per step
	chosen := func(p Plan, m Measurement) bool {
		c := Choice{Measurements: []Measurement{{Rounds: 9, Step: 1, Low: 1, Ratio: 1, High: 1}, m}}
		c.decide(&p, 0)
		return !c.Configuration.Plain()
	}
	assert.True(t, chosen(Plan{Steps: 40, RestartTime: 10 * time.Second}, m))
	assert.False(t, chosen(Plan{Steps: 39, RestartTime: 10 * time.Second}, m))
	assert.True(t, chosen(Plan{RestartTime: time.Hour}, m), "the number of steps is unknown")
	m.Configuration = intra
	assert.True(t, chosen(Plan{Steps: 1, RestartTime: time.Hour}, m), "it needs no restart")
}

func TestSummarize(t *testing.T) {
	same := func(want, m Measurement) {
		t.Helper()
		for _, pair := range [][2]*float64{{&want.Ratio, &m.Ratio}, {&want.Low, &m.Low}, {&want.High, &m.High}} {
			assert.InDelta(t, *pair[0], *pair[1], 1e-12)
			*pair[1] = *pair[0]
		}
		assert.Equal(t, want, m)
	}
	same(Measurement{Configuration: fused, Step: 2, Ratio: 0.5, Low: 0.5, High: 3, Rounds: 3},
		summarize(fused, []float64{1, 2, 9}, []float64{2, 4, 3}, plainSteps))
	// One disturbed round of nine does not widen the interval.
	same(Measurement{Configuration: fused, Step: 5, Ratio: 0.5, Low: 0.5, High: 0.5, Rounds: 9},
		summarize(fused, []float64{4, 5, 5, 5, 5, 5, 5, 5, 90}, []float64{10, 10, 10, 10, 10, 10, 10, 10, 10}, plainSteps))
	assert.Equal(t, Measurement{Configuration: fused}, summarize(fused, nil, nil, plainSteps))
	// If the configuration was compared with another one than plain steps, the ratios multiply.
	// The errors of their logarithms add in quadrature: the lower bounds are off by 16 to the
	// powers of 3/4 and 1, and together by 16 to the power of 5/4. The upper bound of the second
	// ratio is exact.
	same(Measurement{Configuration: fused, Step: 1, Ratio: 0.25, Low: 0.25 / 32, High: 2, Rounds: 3},
		summarize(fused, []float64{1, 1, 1}, []float64{16, 1, 1}, Measurement{Configuration: both, Low: 0.25 / 8, Ratio: 0.25, High: 2}))
}

func TestJudge(t *testing.T) {
	measured := func(c Configuration, low, ratio, high float64) Measurement {
		return Measurement{Configuration: c, Step: ratio, Low: low, Ratio: ratio, High: high, Rounds: 5}
	}
	with := func(m Measurement, change func(*Measurement)) Measurement {
		change(&m)
		return m
	}
	plain := measured(Configuration{}, 1, 1, 1)
	quick := measured(both, 0.2, 0.21, 0.22)
	for _, c := range []struct {
		name     string
		measured []Measurement
		want     Configuration
		stays    bool
	}{
		{name: "nothing but plain", measured: []Measurement{plain}, stays: true},
		{name: "the fastest", measured: []Measurement{plain, measured(fused, 0.7, 0.75, 0.8), quick}, want: both},
		{name: "as fast as plain", measured: []Measurement{plain, measured(fused, 0.9, 0.99, 1.1)}, stays: true},
		{name: "faster, and not shown to be", measured: []Measurement{plain, measured(fused, 0.5, 0.8, 0.98)}, stays: true},
		{name: "out, for a loss or for memory", measured: []Measurement{plain, with(quick, func(m *Measurement) { m.Out = "the loss is not finite" })}, stays: true},
		{name: "too few rounds", measured: []Measurement{plain, with(quick, func(m *Measurement) { m.Rounds = 2 })}, stays: true},
		{name: "about as fast, and less is changed", measured: []Measurement{plain, quick, measured(fused, 0.21, 0.215, 0.22)}, want: fused},
		{name: "faster by more than that", measured: []Measurement{plain, quick, measured(fused, 0.22, 0.225, 0.23)}, want: both},
		{name: "about as fast, and it rounds as plain steps do", measured: []Measurement{plain, measured(single.over(fused), 0.5, 0.5, 0.5), measured(Configuration{InterThreads: 1, Allocator: "jemalloc"}.over(fused), 0.51, 0.51, 0.51)}, want: Configuration{InterThreads: 1, Allocator: "jemalloc"}.over(fused)},
		{name: "of two that change as much, the faster", measured: []Measurement{plain, measured(single, 0.5, 0.505, 0.51), measured(inter, 0.49, 0.5, 0.51)}, want: inter},
	} {
		t.Run(c.name, func(t *testing.T) {
			winner, ok := judge(c.measured)
			assert.Equal(t, !c.stays, ok)
			assert.Equal(t, c.want, winner.Configuration)
		})
	}
}

// Settings are added to the configuration that is fastest without them, if it may be faster than
// plain steps.
func TestBestWay(t *testing.T) {
	measured := func(c Configuration, ratio float64, out string) Measurement {
		return Measurement{Configuration: c, Step: ratio, Low: ratio / 1.2, Ratio: ratio, High: ratio * 2, Rounds: 5, Out: out}
	}
	assert.Equal(t, Configuration{}, bestBase(nil))
	assert.Equal(t, Configuration{}, bestBase([]Measurement{measured(fused, 1.21, ""), measured(single, 0.3, "")}), "shown to be slower")
	assert.Equal(t, fused, bestBase([]Measurement{measured(fused, 1.19, "")}), "not shown to be")
	assert.Equal(t, fused, bestBase([]Measurement{measured(single, 0.3, ""), measured(both, 0.2, "the loss is not finite"), measured(fused, 0.9, ""), measured(compiled, 0.95, ""), measured(intra.over(compiled), 0.1, "")}))
}

func TestBudget(t *testing.T) {
	m := Measurement{Peak: 500 * memory.MiB, Anon: 100 * memory.MiB, Base: 60 * memory.MiB}
	for _, c := range []struct {
		name string
		plan Plan
		own  memory.Bytes
		want string
	}{
		{"none", Plan{}, memory.GiB, ""},
		{"kept", Plan{Budget: 600 * memory.MiB}, 160 * memory.MiB, ""},
		{"kept, of a process with less", Plan{Budget: 500 * memory.MiB}, 10 * memory.MiB, ""},
		{"broken, with what is here already", Plan{Budget: 600 * memory.MiB}, 161 * memory.MiB, "over the budget of 600.0 MiB of resident memory"},
		{"of anonymous memory", Plan{Budget: 150 * memory.MiB, BudgetOfAnon: true}, memory.MiB, ""},
		{"of anonymous memory, broken", Plan{Budget: 100 * memory.MiB, BudgetOfAnon: true}, 61 * memory.MiB, "over the budget of 100.0 MiB of anonymous memory"},
	} {
		assert.Equal(t, c.want, c.plan.over(m, c.own), c.name)
	}
}

func TestAnswers(t *testing.T) {
	assert.NoError(t, usable(answer{Step: 1, Finite: true}))
	assert.ErrorIs(t, usable(answer{Step: 1}), errNotFinite)
}

func TestCache(t *testing.T) {
	m, ds := dense(t)
	p := Plan{Model: m, Data: ds, Batch: 32, Cache: filepath.Join(t.TempDir(), "not", "there", "yet")}
	k := newKey(&p, tfbind.Info{Version: "2.21.0"})
	assert.Nil(t, p.load(k).Choice)

	kept := entry{Format: format, Key: k, PlainSeconds: 1e-4, Choice: &Choice{Took: time.Second, Measurements: []Measurement{{}, {Configuration: both, Step: 2e-5, Ratio: 0.2}}}}
	require.NoError(t, p.save(kept))
	got := p.load(k)
	assert.Equal(t, kept.Choice, got.Choice)
	assert.Equal(t, 1e-4, got.PlainSeconds)
	path, err := p.path(k)
	require.NoError(t, err)
	left, err := os.ReadDir(p.Cache)
	require.NoError(t, err)
	require.Len(t, left, 1, "no temporary file is left")

	// The key does not include the limits and the budget.
	p.Limits, p.Budget = Limits{StepsPerExecution: 7}, memory.GiB
	assert.Equal(t, k, newKey(&p, tfbind.Info{Version: "2.21.0"}))
	// Another model, batch, option or version gives another key.
	for name, other := range map[string]func(*key){
		"model": func(k *key) { k.Model = "x" }, "batch": func(k *key) { k.Batch = 1 }, "options": func(k *key) { k.Options.Device.IntraThreads = 2 },
		"TensorFlow": func(k *key) { k.TensorFlow = "2.20.0" }, "library": func(k *key) { k.Library = "x" }, "processor": func(k *key) { k.Cores++ }, "quota": func(k *key) { k.Procs++ },
	} {
		o := k
		other(&o)
		assert.Nil(t, p.load(o).Choice, name)
	}

	good, err := os.ReadFile(path)
	require.NoError(t, err)
	var foreign entry
	require.NoError(t, json.Unmarshal(good, &foreign))
	foreign.Key.CPU = "another one"
	moved, err := json.Marshal(foreign)
	require.NoError(t, err)
	foreign.Key, foreign.Format = k, format+" and more"
	newer, err := json.Marshal(foreign)
	require.NoError(t, err)
	for name, content := range map[string][]byte{"cut": good[:len(good)/2], "empty": nil, "of another machine": moved, "of another format": newer} {
		require.NoError(t, os.WriteFile(path, content, 0o666))
		assert.Nil(t, p.load(k).Choice, name)
	}
	require.NoError(t, p.save(kept))
	assert.NotNil(t, p.load(k).Choice, "a damaged entry is replaced")

	// If the folder cannot be made, the only consequence is that trials are repeated.
	p.Cache = filepath.Join(path, "below a file")
	require.ErrorContains(t, p.save(kept), "not a directory")
	assert.Nil(t, p.load(k).Choice)
	p.Cache = ""
	require.NoError(t, p.save(kept))
	assert.Nil(t, p.load(k).Choice)
}

func TestWithin(t *testing.T) {
	all := single.over(both)
	for _, c := range []struct {
		name          string
		limits        Limits
		deterministic bool
		want          Configuration
	}{
		{name: "nothing"},
		{name: "all", limits: Limits{StepsPerExecution: 9, Compiled: true, Threads: true}, want: all},
		{name: "deterministic", limits: Limits{StepsPerExecution: 9, Compiled: true, Threads: true}, deterministic: true, want: fused},
		{name: "traced", limits: Limits{Threads: true, Traced: true}, want: Configuration{IntraThreads: 1, InterThreads: 1}},
	} {
		assert.Equal(t, c.want, all.Within(c.limits, session.Options{Device: gpuopts.Options{Deterministic: c.deterministic}}), c.name)
	}
	assert.Equal(t, two, two.Within(Limits{Threads: true, Traced: true}, session.Options{}))
	assert.Equal(t, Configuration{}, two.Within(Limits{}, session.Options{}))
}

// Cached measurements serve every training that may use some of the configurations.
func TestKept(t *testing.T) {
	measured := func(c Configuration, ratio float64, peak memory.Bytes) Measurement {
		return Measurement{Configuration: c, Step: ratio, Low: ratio, Ratio: ratio, High: ratio, Rounds: 5, Peak: peak}
	}
	kept := Choice{Measurements: []Measurement{
		measured(Configuration{}, 1, 100), measured(both, 0.2, 500), measured(fused, 0.6, 200), measured(compiled, 0.4, 400), measured(single.over(both), 0.1, 500),
		measured(two.over(both), 0.15, 500),
	}}
	for _, c := range []struct {
		name            string
		bases, settings []Configuration
		plan            Plan
		own             memory.Bytes
		want            Configuration
		partly          bool
	}{
		{name: "all", bases: []Configuration{both, fused, compiled}, settings: []Configuration{single}, want: single.over(both)},
		{name: "no threads", bases: []Configuration{both, fused, compiled}, want: both},
		{name: "no compiled signature, and an epoch that is shorter", bases: []Configuration{{StepsPerExecution: 44}}, want: Configuration{StepsPerExecution: 44}},
		{name: "an epoch of which nothing is known", bases: []Configuration{{StepsPerExecution: 3}}, partly: true},
		{name: "a setting that was not measured", bases: []Configuration{compiled}, settings: []Configuration{inter}, want: compiled, partly: true},
		{name: "another setting", bases: []Configuration{both, fused, compiled}, settings: []Configuration{two}, want: two.over(both)},
		{name: "a budget", bases: []Configuration{both, fused, compiled}, plan: Plan{Budget: 450}, want: compiled},
		{name: "a budget, of a process that has more", bases: []Configuration{both, fused, compiled}, plan: Plan{Budget: 450}, own: 100, want: fused},
		{name: "a budget that nothing keeps", bases: []Configuration{both, fused, compiled}, plan: Plan{Budget: 450}, own: 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			now, whole := kept.now(offer{bases: c.bases, settings: c.settings})
			now.decide(&c.plan, c.own)
			assert.Equal(t, !c.partly, whole)
			assert.Equal(t, c.want, now.Configuration)
			assert.Empty(t, kept.Measurements[1].Out, "what is kept is not changed")
		})
	}
	// Threads that an earlier session of the process has fixed are not used, and the reason says so.
	late, whole := kept.now(offer{bases: []Configuration{both, fused, compiled}, tooLate: []Configuration{single, intra}})
	late.decide(&Plan{}, 0)
	assert.True(t, whole)
	assert.Equal(t, both, late.Configuration)
	assert.Contains(t, late.reason(true), single.over(both).String()+" is out: "+needsProcess)
	// A later choice replaces the earlier measurements that it repeats, and keeps all other ones.
	later := Choice{Measurements: []Measurement{measured(Configuration{}, 1, 100), measured(fused, 0.5, 200)}}
	later.merge(&kept, offer{}, false)
	assert.Len(t, later.Measurements, 6)
	assert.Equal(t, 0.5, find(later.Measurements, fused).Ratio)
	assert.False(t, kept.shortOf(maxTime))
	kept.Allowed, kept.Measurements[1].Passing = 2*minTime, true
	assert.True(t, kept.shortOf(2*minTime), "what may have passed is tried again")
	assert.False(t, kept.shortOf(minTime), "but not in less time")
	kept.Allowed = time.Minute
	assert.True(t, kept.shortOf(maxTime), "also where more time was asked for")
	// A measurement that lacked time does not replace an earlier one, but a failed measurement
	// does.
	later = Choice{Measurements: []Measurement{measured(Configuration{}, 1, 100), {Configuration: fused, Out: "late", Late: true}, {Configuration: compiled, Out: "boom", Passing: true}}}
	later.merge(&kept, offer{}, false)
	assert.Equal(t, 0.6, find(later.Measurements, fused).Ratio)
	assert.Equal(t, "boom", find(later.Measurements, compiled).Out)
	assert.Nil(t, find(later.Measurements, both), "which has failed, too")
	// Requested trials replace cached measurements, except where a new trial was late.
	anew := []Measurement{measured(Configuration{}, 1, 100), {Configuration: fused, Out: "late", Late: true}, measured(compiled, 0.9, 400)}
	later = Choice{Measurements: anew}
	kept.Measurements[1].Passing = false
	later.merge(&kept, offer{bases: []Configuration{both, fused, compiled}, settings: []Configuration{single}}, true)
	assert.Equal(t, 0.6, find(later.Measurements, fused).Ratio)
	assert.Equal(t, 0.9, find(later.Measurements, compiled).Ratio)
	assert.Nil(t, find(later.Measurements, single.over(both)))
	assert.NotNil(t, find(later.Measurements, two.over(both)), "which was not offered")
	shorter := Choice{Measurements: []Measurement{measured(Configuration{StepsPerExecution: 44}, 0.7, 200)}}
	later = Choice{Measurements: anew}
	later.merge(&shorter, offer{bases: []Configuration{fused}}, true)
	assert.Len(t, later.Measurements, 4, "of which the one that was late is another number of steps")
	// Two numbers of steps that count as the same are one configuration.
	kept.Measurements = append(kept.Measurements, measured(Configuration{StepsPerExecution: 44}, 0.7, 200))
	now, _ := kept.now(offer{bases: []Configuration{fused}})
	assert.Len(t, now.Measurements, 2)
	assert.Equal(t, 0.6, find(now.Measurements, fused).Ratio)
}

// sample writes fields in the order of the data. A field that the signature does not take is an
// error.
func TestSample(t *testing.T) {
	m, ds := dense(t)
	for b, err := range ds.Batches(data.Pass{Batch: ds.Len()}) {
		require.NoError(t, err)
		odd := data.Field{Name: "../../odd", Array: data.Array{Shape: []int{b.Size}, Values: make([]float32, b.Size)}}
		mixed, err := data.New("made", odd, b.Fields[0], b.Fields[1])
		require.NoError(t, err)
		_, err = sample(&Plan{Model: m, Data: mixed, Batch: 32}, t.TempDir(), time.Minute)
		require.ErrorIs(t, err, session.ErrData)
		mixed, err = mixed.Drop(odd.Name)
		require.NoError(t, err)
		dir := filepath.Join(t.TempDir(), "a", "b")
		require.NoError(t, os.MkdirAll(dir, 0o777))
		fields, err := sample(&Plan{Model: m, Data: mixed, Batch: 32}, dir, time.Minute)
		require.NoError(t, err)
		assert.Equal(t, []string{"x", "y"}, fields)
		written, err := columns.Open(dir, fields, false)
		require.NoError(t, err)
		assert.Equal(t, 320, written.Len())
		assert.Equal(t, mixed.Fields(), written.Fields())
		assert.NoError(t, written.Close())
	}
}

func TestReason(t *testing.T) {
	c := Choice{Configuration: both, Took: 2100 * time.Millisecond, Measurements: []Measurement{
		{Step: 131e-6, Ratio: 1}, {Configuration: both, Step: 27.1e-6, Ratio: 0.2069, Rounds: 9}, {Configuration: compiled, Out: "its process has ended: boom"},
	}}
	assert.Equal(t, "50 steps per execution, XLA-compiled: 27.1 us per step, 4.8 times as fast as plain (measured in 2.1 s); XLA-compiled is out: its process has ended: boom", c.reason(false))
	c = Choice{Measurements: []Measurement{{Step: 0.137, Ratio: 1}, {Configuration: fused, Out: errLate.Error(), Late: true}}, Allowed: 2 * time.Second}
	assert.Equal(t, "plain: 137 ms per step; no other configuration was measurably faster (measured before); 50 steps per execution is out: no time was left", c.reason(true))
	assert.True(t, c.shortOf(4*time.Second))
	assert.False(t, c.shortOf(3*time.Second))
	c = Choice{Took: time.Second, Measurements: []Measurement{{Step: 1, Ratio: 1}, {Configuration: both, Out: "no room"}, {Configuration: fused, Out: "boom"}, {Configuration: compiled, Out: "no room"}, {Configuration: single, Out: "no room"}, {Configuration: intra, Out: errLate.Error(), Late: true}, {Configuration: inter, Out: errLate.Error(), Late: true}}}
	assert.Equal(t, "plain: 1 s per step; no other configuration was measurably faster (measured in 1.0 s); 50 steps per execution, XLA-compiled and 2 more are out: no room; 50 steps per execution is out: boom; intra threads 1 and 1 more are out: no time was left", c.reason(false))
	assert.Equal(t, "1.5 s", duration(1.5))
}
