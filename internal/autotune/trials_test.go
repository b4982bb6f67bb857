package autotune

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfprocess"
	"steadyfit/internal/tfproto"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

var jemalloc = Configuration{Allocator: tfprocess.Jemalloc}

// scripted is a trial whose steps take as long as the test says.
type scripted struct {
	trials *scriptedTrials
	is     Configuration
	step   float64
	// later is the time of a step in all trials of the configuration but the first; 0 means step.
	later float64
	// failsAt is the first failing round, counted from 1 over all trials of the configuration. It
	// fails with an error, by a timeout, or with a loss that is not finite.
	failsAt int
	fails   error
	// cold trials never warm up.
	cold bool
	// holds has the amounts of memory for the answers of the trial.
	holds answer

	latest answer
}

func (s *scripted) hear(until time.Time) (answer, error) {
	if !s.cold {
		return s.answer(), nil
	}
	s.trials.waited = append(s.trials.waited, time.Until(until).Round(time.Minute))
	return answer{}, errLate
}

func (s *scripted) answer() answer {
	s.latest = s.holds
	s.latest.Step, s.latest.Execution, s.latest.Finite = s.step, s.step, true
	return s.latest
}

func (s *scripted) ask(time.Time, float64) (answer, error) {
	s.trials.ran[s.is]++
	a := s.answer()
	if s.failsAt == 0 || s.trials.ran[s.is] < s.failsAt {
		return a, nil
	}
	switch {
	case errors.Is(s.fails, errNotFinite):
		a.Finite = false
		return a, nil
	}
	return answer{}, s.fails
}

func (s *scripted) last() answer { return s.latest }

func (s *scripted) end() {
	s.trials.running = slices.DeleteFunc(s.trials.running, func(o *scripted) bool { return o == s })
}

// scriptedTrials are Trials whose trials are scripted.
type scriptedTrials struct {
	Trials
	t       *testing.T
	started []Configuration
	running []*scripted
	ran     map[Configuration]int
	waited  []time.Duration // for cold trials to warm up
}

func newScripted(t *testing.T, p *Plan, trials []scripted) *scriptedTrials {
	t.Helper()
	if p.Model == nil {
		m, ds := dense(t)
		p.Model, p.Data, p.Batch = m, ds, 32
	}
	setMaxTime(t, time.Hour)
	store, err := p.open(tfbind.Info{})
	require.NoError(t, err)
	s := &scriptedTrials{t: t, ran: map[Configuration]int{}}
	s.Trials = Trials{plan: p, until: time.Now().Add(time.Hour), rounds: minRounds, store: store,
		start: func(_ context.Context, c Configuration) trial {
			i := slices.IndexFunc(trials, func(o scripted) bool { return o.is == c })
			if i < 0 {
				i = slices.IndexFunc(trials, func(o scripted) bool { return o.is == Configuration{} })
			}
			one := trials[i]
			one.trials, one.is = s, c
			if one.later > 0 && slices.Contains(s.started, c) {
				one.step = one.later
			}
			s.started, s.running = append(s.started, c), append(s.running, &one)
			if len(s.running) > 2 {
				t.Errorf("%d processes at the same time", len(s.running))
			}
			return &one
		}}
	return s
}

func (s *scriptedTrials) choose(sp space) Choice {
	s.t.Helper()
	f := &fastestSearch{plan: s.plan, trials: &s.Trials, began: time.Now(), mayMeasure: true}
	require.NoError(s.t, f.run(s.t.Context(), sp))
	require.NoError(s.t, f.confirm(s.t.Context()))
	require.NoError(s.t, s.Close())
	assert.Empty(s.t, s.running, "all have ended")
	return f.choice()
}

// Each setting is added to the fastest configuration so far.
func TestOrderOfTrials(t *testing.T) {
	all := space{bases: []Configuration{both, fused, compiled}, threads: []Configuration{single, intra},
		memories: []Configuration{jemalloc}}
	on := fused.over(oneDNNOn)
	for _, c := range []struct {
		name   string
		script []scripted
		space  space
		order  []Configuration
		want   Configuration
	}{
		{"threads on the best base",
			[]scripted{{step: 1}, {is: both, step: 4}, {is: fused, step: 0.8}, {is: intra.over(fused), step: 0.4},
				{is: jemalloc.over(intra.over(fused)), step: 0.39}},
			all, []Configuration{{}, both, fused, compiled, single.over(fused), intra.over(fused),
				jemalloc.over(intra.over(fused)), intra.over(fused)}, intra.over(fused)},
		{"oneDNN comes first, and the others build on it",
			[]scripted{{step: 1}, {is: oneDNNOn, step: 0.4}, {is: on, step: 0.2}, {is: jemalloc.over(on), step: 0.1}},
			space{bases: []Configuration{fused}, memories: []Configuration{oneDNNOn, jemalloc}},
			[]Configuration{{}, oneDNNOn, on, jemalloc.over(on), jemalloc.over(on)}, jemalloc.over(on)},
		{"oneDNN that is slower", []scripted{{step: 1}, {is: oneDNNOn, step: 1.1}, {is: fused, step: 0.2}},
			space{bases: []Configuration{fused}, memories: []Configuration{oneDNNOn}}, []Configuration{{}, oneDNNOn, fused, fused},
			fused},
		{"all slower", []scripted{{step: 1}, {is: both, step: 4}, {is: fused, step: 2}, {is: compiled, step: 3}},
			all, []Configuration{{}, both, fused, compiled, single, intra, jemalloc}, Configuration{}},
		{"no bases", []scripted{{step: 1}, {is: single, step: 0.5}}, space{threads: []Configuration{single}},
			[]Configuration{{}, single, single}, single},
		{"fast in one trial only", []scripted{{step: 1}, {is: both, step: 0.5, later: 1.1}, {is: fused, step: 0.8}},
			space{bases: []Configuration{both, fused}}, []Configuration{{}, both, fused, both, fused}, fused},
		{"fails when it is repeated", []scripted{{step: 1}, {is: both, step: 0.5, failsAt: maxRounds + 1,
			fails: errors.New("boom")}},
			space{bases: []Configuration{both}}, []Configuration{{}, both, both}, Configuration{}},
		{"one that dies", []scripted{{step: 1}, {is: both, step: 0.2, failsAt: 2, fails: errors.New("boom")},
			{is: fused, step: 0.5}},
			space{bases: []Configuration{both, fused}}, []Configuration{{}, both, fused, fused}, fused},
		{"one that does not warm up", []scripted{{step: 1}, {is: both, cold: true}, {is: fused, step: 0.5}},
			space{bases: []Configuration{both, fused}}, []Configuration{{}, both, fused, fused}, fused},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScripted(t, &Plan{}, c.script)
			got := s.choose(c.space)
			assert.Equal(t, c.order, s.started)
			assert.Equal(t, c.want, got.Configuration)
			if len(s.waited) > 0 {
				assert.Equal(t, []time.Duration{30 * time.Minute}, s.waited, "half of the time")
			}
		})
	}
}

// Measurements of an earlier training are used, and only the others are measured.
func TestMeasuredBefore(t *testing.T) {
	p := &Plan{Cache: t.TempDir()}
	script := []scripted{{step: 1}, {is: both, step: 0.25}, {is: fused, step: 0.5},
		{is: compiled, step: 0.9, failsAt: 1, fails: errors.New("boom")}}
	first := newScripted(t, p, script).choose(space{bases: []Configuration{both, compiled}})
	assert.Equal(t, both, first.Configuration)
	s := newScripted(t, p, script)
	assert.Equal(t, both, s.choose(space{bases: []Configuration{both, fused, compiled}}).Configuration)
	assert.Equal(t, []Configuration{{}, fused, compiled}, s.started, "what may have passed is tried again")
	s = newScripted(t, p, script)
	assert.Equal(t, fused, s.choose(space{bases: []Configuration{fused}}).Configuration)
	assert.Equal(t, []Configuration{{}, fused}, s.started, "one trial is not enough")
	s = newScripted(t, p, script)
	again := s.choose(space{bases: []Configuration{both, fused}})
	assert.Equal(t, both, again.Configuration)
	assert.Empty(t, s.started)
	assert.Contains(t, again.Reason, "(measured before)")
}

// No second process is started if there may be too little memory for it.
func TestTrialsWithoutHeadroom(t *testing.T) {
	s := newScripted(t, &Plan{}, []scripted{{step: 1, holds: answer{Anon: 1 << 60}}})
	c := s.choose(space{bases: []Configuration{both, fused}})
	assert.Equal(t, []Configuration{{}}, s.started)
	assert.Contains(t, find(c.Measurements, both).Out, "there may be too little memory: ")
}

// Trials of a search are compared with plain steps and stored. If plain steps fail, the most
// micro-batches replace them.
func TestTrials(t *testing.T) {
	most, eight := Configuration{MicroBatches: 32}, Configuration{MicroBatches: 8}
	for name, fails := range map[string]error{"plain steps run": nil,
		"plain steps fail": errors.New("killed by the kernel because memory ran out")} {
		t.Run(name, func(t *testing.T) {
			p := &Plan{Cache: t.TempDir(), searches: true}
			plain := scripted{step: 0.1}
			if fails != nil {
				plain.failsAt, plain.fails = 1, fails
			}
			s := newScripted(t, p, []scripted{plain, {is: most, step: 0.4}, {is: eight, step: 0.2, holds: answer{Peak: 1}}})
			measured, err := s.Measure(t.Context(), eight)
			require.NoError(t, err)
			assert.InDelta(t, map[bool]float64{true: 2, false: 0.5}[fails == nil], measured.Ratio, 1e-9)
			assert.Equal(t, map[bool]Configuration{true: {}, false: most}[fails == nil], measured.Reference)
			s.until = time.Now()
			late, err := s.Measure(t.Context(), both)
			require.NoError(t, err)
			assert.True(t, late.Late)
			require.NoError(t, s.Close())
			assert.Empty(t, s.running)
			assert.Equal(t, []Measurement{measured}, newScripted(t, p, nil).Known(), "late ones are not known")
		})
	}
}

// A search continues if its measurements cannot be stored.
func TestTrialsUnsaved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	s := newScripted(t, &Plan{Cache: file}, []scripted{{step: 0.1}})
	measured, err := s.Measure(t.Context(), both)
	require.NoError(t, err)
	assert.Empty(t, measured.Out)
	assert.Len(t, s.Known(), 1)
	require.NoError(t, s.Close())
}

// Peaks that were measured with little data are converted to more data.
func TestTrialsWithMoreData(t *testing.T) {
	s := newScripted(t, &Plan{Cache: t.TempDir()}, []scripted{
		{step: 0.1, holds: answer{Base: 20, Peak: 1000, Mapped: 300}},
	})
	s.own = 120
	m, err := s.Measure(t.Context(), Configuration{})
	require.NoError(t, err)
	assert.Equal(t, []memory.Bytes{1100, 800}, []memory.Bytes{m.Peak, m.Anon})
	require.NoError(t, s.Close())
}

func TestGoalSpace(t *testing.T) {
	_, err := tfbind.Load("")
	require.NoError(t, err)
	m, ds := dense(t)
	p := Plan{Model: m, Data: ds, Batch: 24, Limits: Limits{StepsPerExecution: 10, Threads: true}}
	s, err := p.goalSpace()
	require.NoError(t, err)
	assert.Equal(t, []Configuration{{MicroBatches: 2}, {MicroBatches: 4}, {MicroBatches: 8}, {MicroBatches: 24},
		{StepsPerExecution: 10}}, s.bases)
	require.Empty(t, s.memories, "without a restart, neither allocators nor oneDNN")

	p.Limits = Limits{Restart: true, OneDNN: true}
	s, err = p.goalSpace()
	require.NoError(t, err)
	other, ok := p.otherOneDNN()
	require.True(t, ok)
	mmap := Configuration{Allocator: tfprocess.Mmap}
	assert.Subset(t, s.memories, []Configuration{mmap, other, mmap.over(other)}, "allocators with and without oneDNN")

	p.Options = session.Options{MicroBatches: 3}
	s, err = p.goalSpace()
	require.NoError(t, err)
	assert.Empty(t, s.bases, "the number is set")
}

// textsOf returns a model whose loss is the mean length of its texts.
func textsOf(t *testing.T) *savedmodels.Model {
	t.Helper()
	cast := graphdef.Attrs{"SrcT": graphdef.Type(dtype.Int32), "DstT": graphdef.Type(dtype.Float32),
		"Truncate": graphdef.Bool(false)}
	mean := graphdef.Attrs{"T": graphdef.Type(dtype.Float32), "Tidx": graphdef.Type(dtype.Int32),
		"keep_dims": graphdef.Bool(false)}
	def, err := (&graphdef.Graph{}).
		Placeholder("text", dtype.String).
		Constant("axis", dtype.Int32, make([]byte, 4), 1).
		Add("lengths", "StringLength", graphdef.Attrs{"unit": graphdef.Text("BYTE")}, "text").
		Add("floats", "Cast", cast, "lengths").
		Add("loss", "Mean", mean, "floats", "axis").
		Add("init", "NoOp", nil).Bytes()
	require.NoError(t, err)
	graph := &tfproto.GraphDef{}
	require.NoError(t, proto.Unmarshal(def, graph))
	info := func(op string, d dtype.DType, dims ...int64) map[string]*tfproto.TensorInfo {
		return map[string]*tfproto.TensorInfo{op: {Encoding: &tfproto.TensorInfo_Name{Name: op + ":0"},
			Dtype: tfproto.DataType(d), TensorShape: graphdef.Shape(dims).GetShape()}}
	}
	content, err := proto.Marshal(&tfproto.SavedModel{MetaGraphs: []*tfproto.MetaGraphDef{{
		MetaInfoDef: &tfproto.MetaGraphDef_MetaInfoDef{Tags: []string{"serve"}}, GraphDef: graph,
		SignatureDef: map[string]*tfproto.SignatureDef{
			"train":                 {Inputs: info("text", dtype.String, -1), Outputs: info("loss", dtype.Float32)},
			"__saved_model_init_op": {Outputs: map[string]*tfproto.TensorInfo{"__saved_model_init_op": {Encoding: &tfproto.TensorInfo_Name{Name: "init"}}}},
		},
	}}})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "saved_model.pb"), content, 0o600))
	m, err := savedmodels.Open(dir)
	require.NoError(t, err)
	return m
}

// Trials train on texts. Long texts are few.
func TestTrialsOfText(t *testing.T) {
	p := planned(t)
	p.Model = textsOf(t)
	of := func(text string) data.Dataset {
		ds, err := data.New("made", data.Field{Name: "text",
			Array: data.Array{Shape: []int{320}, Values: slices.Repeat([]string{text, ""}, 160)}})
		require.NoError(t, err)
		return ds
	}
	p.Data = of("a text")
	u := withSample(t, &p)
	written, err := readSample(u.spec.Data)
	require.NoError(t, err)
	assert.Equal(t, 320, written.Len())
	for b := range written.Batches(data.Pass{Batch: 2}) {
		assert.Equal(t, []string{"a text", ""}, b.Fields[0].Values)
		break
	}
	c := u.startProcess(t.Context(), Configuration{})
	defer c.end()
	a, err := c.hear(time.Now().Add(maxTime))
	require.NoError(t, err)
	assert.True(t, a.Finite)

	p.Data = of(strings.Repeat("a", 1<<20))
	u = withSample(t, &p)
	written, err = readSample(u.spec.Data)
	require.NoError(t, err)
	assert.Equal(t, 3*32, written.Len(), "64 MiB in batches of a little more than 16 MiB")
}
