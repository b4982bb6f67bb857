package autotune

import (
	"encoding/gob"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/tfprocess"
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
		{Configuration{InterThreads: 1, Allocator: tfprocess.Jemalloc}.over(fused), false, 3},
		{Configuration{Executor: gpuopts.SingleThreaded}, false, 1},
		{Configuration{Executor: gpuopts.SingleThreaded}.over(fused), oneDNN, map[bool]int{true: 3, false: 2}[oneDNN]},
		{intra, true, 2},
		{single, true, 3},
		{single.over(fused), true, 4},
		{compiled, true, 2},
		{both, true, 3},
		{oneDNNOn, true, 2},
		{Configuration{Executor: gpuopts.SingleThreaded}.over(fused).over(oneDNNOn), true, 4},
	} {
		assert.Equal(t, c.rounds, c.configuration.Rounds(), c.configuration)
		assert.Equal(t, c.changes, c.configuration.changes(), c.configuration)
	}
	loop := Rounding{IntraThreads: 1}
	if oneDNN {
		loop.Loop, loop.StepsPerExecution = true, 50
	}
	assert.Equal(t, loop, RoundingOf(single.over(fused).Apply(session.Options{})))
	assert.Equal(t, Rounding{Compiled: true}, RoundingOf(compiled.Apply(session.Options{StepsPerExecution: 1})),
		"one step per call, either way")
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
	all := Limits{StepsPerExecution: 100, Compiled: true, Threads: true}
	for _, c := range []struct {
		name, env       string
		options         session.Options
		batch           int
		limits          Limits
		bases, settings []Configuration
	}{
		{name: "nothing is allowed", batch: 32},
		{name: "all", batch: 32, limits: all, bases: []Configuration{both, fused, compiled},
			settings: []Configuration{single, intra}},
		{name: "a batch that no signature was compiled for", batch: 16,
			limits: Limits{StepsPerExecution: 100, Compiled: true}, bases: []Configuration{fused}},
		{name: "fewer steps in an epoch than a compiled signature runs", batch: 32,
			limits: Limits{StepsPerExecution: 10, Compiled: true}, bases: []Configuration{{StepsPerExecution: 10}, compiled}},
		{name: "deterministic", options: session.Options{Device: gpuopts.Options{Deterministic: true}}, batch: 32,
			limits: Limits{StepsPerExecution: 50, Compiled: true, Threads: true}, bases: []Configuration{fused}},
		{name: "threads are set from outside", env: "TF_NUM_INTEROP_THREADS", batch: 32,
			limits: Limits{StepsPerExecution: 50, Threads: true}, bases: []Configuration{fused}},
		{name: "what is set stays", options: session.Options{StepsPerExecution: 5,
			Device: gpuopts.Options{IntraThreads: 1}}, batch: 32, limits: all,
			bases: []Configuration{compiled}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.env != "" {
				t.Setenv(c.env, "2")
			}
			o, err := (&Plan{Model: m, Options: c.options, Data: ds, Batch: c.batch, Limits: c.limits}).fastSpace()
			require.NoError(t, err)
			assert.Equal(t, c.bases, o.bases)
			assert.Equal(t, c.settings, o.threads)
		})
	}
}

// An allocator is among the configurations to choose from if it is installed and no environment
// variable conflicts with it.
func TestAllocator(t *testing.T) {
	m, ds := dense(t)
	j := Configuration{Allocator: tfprocess.Jemalloc}
	assert.Equal(t, "50 steps per execution, jemalloc", j.over(fused).String())
	offers := func() bool {
		o, err := (&Plan{Model: m, Data: ds, Batch: 32, Limits: Limits{Restart: true}}).fastSpace()
		require.NoError(t, err)
		assert.Equal(t, len(o.memories) == 1, j.Within(Limits{Restart: true}, session.Options{}) == j &&
			os.Getenv("LD_PRELOAD") == "")
		return len(o.memories) == 1
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
	t.Setenv("MALLOC_CONF", tfprocess.JemallocKeeps) // as in the release profile
	assert.True(t, offers())
	t.Setenv("LD_PRELOAD", "libother.so")
	assert.False(t, offers())
	t.Setenv("LD_PRELOAD", path)
	assert.False(t, offers(), "it is preloaded already")
	assert.Equal(t, j, j.Within(Limits{}, session.Options{}), "and so it stays")
	_, err = Configuration{Allocator: "none"}.Environment()
	assert.ErrorIs(t, err, tfprocess.ErrUnknownAllocator)
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
		offered, err := (&Plan{Model: m, Options: o, Data: ds, Batch: 32, Limits: l}).fastSpace()
		require.NoError(t, err)
		return slices.Contains(offered.memories, other)
	}
	both := Limits{Restart: true, OneDNN: true}
	assert.True(t, offers(both, session.Options{}))
	assert.False(t, offers(Limits{OneDNN: true}, session.Options{}))
	assert.False(t, offers(Limits{Restart: true}, session.Options{}))
	assert.False(t, offers(both, session.Options{Device: gpuopts.Options{Deterministic: true}}))
	if on {
		assert.False(t, offers(both, session.Options{Device: gpuopts.Options{OneDNN: "on"}}), "it is set")
		assert.False(t, offers(both, session.Options{Device: gpuopts.Options{Precision: gpuopts.BFloat16}}),
			"bfloat16 needs oneDNN")
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

// Trials do not change session options that are set.
func TestLimits(t *testing.T) {
	t.Setenv("TF_NUM_INTRAOP_THREADS", "")
	t.Setenv("TF_NUM_INTEROP_THREADS", "")
	device := func(o gpuopts.Options) session.Options { return session.Options{Device: o} }
	all := Limits{StepsPerExecution: 50, Compiled: true, Threads: true, Restart: true, OneDNN: true}
	for name, c := range map[string]struct {
		options session.Options
		without func(l *Limits)
	}{
		"nothing set":       {session.Options{}, func(*Limits) {}},
		"steps":             {session.Options{StepsPerExecution: 8}, func(l *Limits) { l.StepsPerExecution = 0 }},
		"one step":          {session.Options{StepsPerExecution: 1}, func(l *Limits) { l.StepsPerExecution = 0 }},
		"compiled":          {session.Options{Compiled: true}, func(l *Limits) { l.Compiled = false }},
		"threads":           {device(gpuopts.Options{InterThreads: 1}), func(l *Limits) { l.Threads = false }},
		"oneDNN":            {device(gpuopts.Options{OneDNN: "off"}), func(l *Limits) { l.OneDNN = false }},
		"float16":           {device(gpuopts.Options{Precision: gpuopts.Float16}), func(l *Limits) { l.Threads = false }},
		"float16, resolved": {device(gpuopts.Options{Precision: gpuopts.Float16CPU}), func(l *Limits) { l.Threads = false }},
	} {
		want := all
		c.without(&want)
		assert.Equal(t, want, all.under(c.options), name)
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

func TestSummarize(t *testing.T) {
	assert.Equal(t, Measurement{Configuration: fused, Step: 2, Ratio: 0.5, Low: 0.5, High: 3, Rounds: 3},
		summarize(fused, []float64{1, 2, 9}, []float64{2, 4, 3}))
	// One disturbed round of nine does not widen the interval.
	assert.Equal(t, Measurement{Configuration: fused, Step: 5, Ratio: 0.5, Low: 0.5, High: 0.5, Rounds: 9},
		summarize(fused, []float64{4, 5, 5, 5, 5, 5, 5, 5, 90}, []float64{10, 10, 10, 10, 10, 10, 10, 10, 10}))
}

func TestFastest(t *testing.T) {
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
	}{
		{name: "nothing but plain", measured: []Measurement{plain}},
		{name: "the fastest", measured: []Measurement{plain, measured(fused, 0.7, 0.75, 0.8), quick}, want: both},
		{name: "as fast as plain", measured: []Measurement{plain, measured(fused, 0.9, 0.99, 1.1)}},
		{name: "faster, and not shown to be", measured: []Measurement{plain, measured(fused, 0.5, 0.8, 0.98)}},
		{name: "out, for a loss or for memory", measured: []Measurement{plain,
			with(quick, func(m *Measurement) { m.Out = "the loss is not finite" })}},
		{name: "too few rounds", measured: []Measurement{plain, with(quick, func(m *Measurement) { m.Rounds = 2 })}},
		{name: "about as fast, and less is changed", measured: []Measurement{plain, quick,
			measured(fused, 0.21, 0.215, 0.22)}, want: fused},
		{name: "faster by more than that", measured: []Measurement{plain, quick, measured(fused, 0.22, 0.225, 0.23)},
			want: both},
		{name: "about as fast, and it rounds as plain steps do",
			measured: []Measurement{plain, measured(single.over(fused), 0.5, 0.5, 0.5),
				measured(Configuration{InterThreads: 1, Allocator: "jemalloc"}.over(fused), 0.51, 0.51, 0.51)},
			want: Configuration{InterThreads: 1, Allocator: "jemalloc"}.over(fused)},
		{name: "of two that change as much, the faster",
			measured: []Measurement{plain, measured(single, 0.5, 0.505, 0.51), measured(inter, 0.49, 0.5, 0.51)}, want: inter},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, fastest(c.measured))
		})
	}
}

func TestStore(t *testing.T) {
	m, ds := dense(t)
	info := tfbind.Info{Version: "2.21.0"}
	p := Plan{Model: m, Data: ds, Batch: 32, Cache: filepath.Join(t.TempDir(), "not", "there", "yet")}
	load := func() *store {
		s, err := p.open(info)
		require.NoError(t, err)
		return s
	}
	kept := load()
	assert.Empty(t, kept.Measurements)
	kept.add(Measurement{Configuration: both, Ratio: 0.2}, false)
	kept.add(Measurement{Configuration: both, Ratio: 0.3}, false)
	assert.Equal(t, kept.Measurements, load().Measurements)
	kept.add(Measurement{Configuration: both, Ratio: 0.4}, true)
	assert.Equal(t, []Measurement{{Configuration: both, Ratio: 0.4}}, load().Measurements)
	left, err := os.ReadDir(p.Cache)
	require.NoError(t, err)
	require.Len(t, left, 1, "no temporary file is left")

	// The key does not include the limits. Another model, batch, option or version has another key.
	p.Limits = Limits{StepsPerExecution: 7}
	assert.NotEmpty(t, load().Measurements)
	for name, change := range map[string]func(*Plan, *tfbind.Info){
		"model":      func(p *Plan, _ *tfbind.Info) { other := *m; other.Hash = "x"; p.Model = &other },
		"batch":      func(p *Plan, _ *tfbind.Info) { p.Batch = 1 },
		"options":    func(p *Plan, _ *tfbind.Info) { p.Options.Device.IntraThreads = 2 },
		"budget":     func(p *Plan, _ *tfbind.Info) { p.Budgeted = true },
		"TensorFlow": func(_ *Plan, i *tfbind.Info) { i.Version = "2.20.0" },
	} {
		other, i := p, info
		change(&other, &i)
		s, err := other.open(i)
		require.NoError(t, err)
		assert.Empty(t, s.Measurements, name)
	}

	good, err := os.ReadFile(kept.path)
	require.NoError(t, err)
	for _, content := range [][]byte{good[:len(good)/2], nil} {
		require.NoError(t, os.WriteFile(kept.path, content, 0o666))
		assert.Empty(t, load().Measurements, "damaged")
	}
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
		{name: "deterministic", limits: Limits{StepsPerExecution: 9, Compiled: true, Threads: true}, deterministic: true,
			want: fused},
	} {
		assert.Equal(t, c.want, all.Within(c.limits, session.Options{Device: gpuopts.Options{Deterministic: c.deterministic}}), c.name)
	}
	assert.Equal(t, Configuration{}, two.Within(Limits{}, session.Options{}))
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
		path := filepath.Join(t.TempDir(), "batches")
		require.ErrorIs(t, sample(&Plan{Model: m, Data: mixed, Batch: 32}, path, time.Minute), session.ErrData)
		mixed, err = mixed.Drop(odd.Name)
		require.NoError(t, err)
		require.NoError(t, sample(&Plan{Model: m, Data: mixed, Batch: 32}, path, time.Minute))
		written, err := readSample(path)
		require.NoError(t, err)
		assert.Equal(t, 320, written.Len())
		assert.Equal(t, mixed.Fields(), written.Fields())
		next, stop := iter.Pull2(mixed.Batches(data.Pass{Batch: 320}))
		want, err, _ := next()
		require.NoError(t, err)
		for got, err := range written.Batches(data.Pass{Batch: 320}) {
			require.NoError(t, err)
			assert.Equal(t, want.Fields, got.Fields)
		}
		stop()
		assert.NoError(t, written.Close())
	}
}

// The file of sample can have values of all types, and readSample joins the batches.
func TestReadSample(t *testing.T) {
	path := filepath.Join(t.TempDir(), "batches")
	file, err := os.Create(path)
	require.NoError(t, err)
	all := []any{[]float32{1, 0}, []float64{0, 2}, []int8{3, 4}, []int16{5, 6}, []int32{7, 8}, []int64{-1 << 63, 9},
		[]uint8{1, 255}, []uint16{2, 3}, []uint32{4, 5}, []uint64{6, 1<<64 - 1}, []bool{false, true}, []string{"", "\xff\x00"}}
	var batch []data.Field
	for i, values := range all {
		batch = append(batch, data.Field{Name: strconv.Itoa(i), Array: data.Array{Shape: []int{2}, Values: values}})
	}
	w := gob.NewEncoder(file)
	require.NoError(t, w.Encode(batch))
	require.NoError(t, w.Encode(batch))
	require.NoError(t, file.Close())
	ds, err := readSample(path)
	require.NoError(t, err)
	assert.Equal(t, 4, ds.Len())
	for b, err := range ds.Batches(data.Pass{Batch: 2}) {
		require.NoError(t, err)
		assert.Equal(t, batch, b.Fields)
	}
	require.NoError(t, os.Truncate(path, 100))
	_, err = readSample(path)
	assert.ErrorContains(t, err, path)
}

func TestReason(t *testing.T) {
	c := Choice{Configuration: both, Measurements: []Measurement{
		{Step: 131e-6, Ratio: 1}, {Configuration: both, Step: 27.1e-6, Ratio: 0.2069, Rounds: 9},
		{Configuration: compiled, Out: "its process has ended: boom"},
	}}
	assert.Equal(t, "50 steps per execution, XLA-compiled: 27.1µs per step, 4.8 times as fast as plain (measured "+
		"before)", c.reason("measured before"))
	c = Choice{Measurements: []Measurement{{Step: 0.137, Ratio: 1}, failed(fused, errLate)}}
	assert.Equal(t, "plain: 137ms per step; no other configuration was measurably faster (measured in 2.1 s)",
		c.reason("measured in 2.1 s"))
}
