package autotune

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/data"
	"steadyfit/internal/allocator"
	"steadyfit/internal/columns"
	"steadyfit/internal/graphdef"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// Trials are compared with plain steps and stored. If plain steps fail, the most micro-batches
// replace them.
func TestTrials(t *testing.T) {
	m, ds := dense(t)
	most, eight := Configuration{MicroBatches: 32}, Configuration{MicroBatches: 8}
	for name, fails := range map[string]error{"plain steps run": nil, "plain steps fail": errors.New("killed by the kernel because memory ran out")} {
		t.Run(name, func(t *testing.T) {
			p := Plan{Model: m, Data: ds, Batch: 32, Cache: t.TempDir(), Budget: 1}
			plain := scripted{step: 0.1}
			if fails != nil {
				plain.failsAt, plain.fails = 1, fails
			}
			s := newScriptedTuner(t, &p, []scripted{plain, {is: most, step: 0.4}, {is: eight, step: 0.2}})
			trials := Trials{tuner: &s.tuner, cached: p.load(newKey(&p, tfbind.Info{}))}
			measured, err := trials.Measure(t.Context(), eight)
			require.NoError(t, err)
			assert.InDelta(t, map[bool]float64{true: 2, false: 0.5}[fails == nil], measured.Ratio, 1e-9)
			assert.Equal(t, map[bool]Configuration{true: {}, false: most}[fails == nil], measured.Reference)
			s.until = time.Now()
			late, err := trials.Measure(t.Context(), both)
			require.NoError(t, err)
			assert.True(t, late.Late)
			require.NoError(t, trials.Close())
			assert.Empty(t, s.running)

			assert.Equal(t, []Measurement{measured}, trials.Known(), "late ones are not known")
			again := Trials{tuner: &s.tuner, cached: p.load(newKey(&p, tfbind.Info{}))}
			assert.Equal(t, trials.Known(), again.Known())
			p.Budget = 0
			assert.Empty(t, again.Known(), "trainings with and without a budget differ")
		})
	}
}

// A configuration that is too slow to warm up fails, and is measured again when there is more time. If
// it ran in an earlier trial, it counts as late instead.
func TestTrialsTooSlowToWarmUp(t *testing.T) {
	m, ds := dense(t)
	p := Plan{Model: m, Data: ds, Batch: 32, Cache: t.TempDir()}
	list := []scripted{{step: 0.1}, {is: both, step: 0.1, cold: true}}
	s := newScriptedTuner(t, &p, list)
	trials := Trials{tuner: &s.tuner, cached: p.load(newKey(&p, tfbind.Info{}))}
	measure := func(within time.Duration) Measurement {
		s.until = time.Now().Add(within)
		r, err := trials.Measure(t.Context(), both)
		require.NoError(t, err)
		return r
	}
	cold := measure(time.Hour)
	assert.InDelta(t, 1800, cold.Waited, 1)
	assert.False(t, cold.Late)
	assert.False(t, cold.Passing, "other configurations follow")
	assert.Equal(t, []Measurement{cold}, trials.Known())
	s.until = time.Now().Add(3 * time.Hour)
	assert.Empty(t, trials.Known())
	list[1].cold = false
	warm := measure(3 * time.Hour)
	assert.Empty(t, warm.Out)
	assert.Equal(t, []Measurement{warm}, trials.Known())
	list[1].cold = true
	assert.True(t, measure(time.Minute).Late)
	assert.Equal(t, []Measurement{warm}, trials.Known())
	require.NoError(t, trials.Close())
}

// A search continues if its measurements cannot be stored.
func TestTrialsUnsaved(t *testing.T) {
	m, ds := dense(t)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	p := Plan{Model: m, Data: ds, Batch: 32, Cache: file}
	s := newScriptedTuner(t, &p, []scripted{{step: 0.1}})
	trials := Trials{tuner: &s.tuner, cached: p.load(newKey(&p, tfbind.Info{}))}
	measured, err := trials.Measure(t.Context(), both)
	require.NoError(t, err)
	assert.ErrorIs(t, measured.Unsaved, syscall.ENOTDIR)
	assert.Len(t, trials.Known(), 1)
	require.NoError(t, trials.Close())
}

// Peaks that were measured with little data are converted to more data.
func TestTrialsWithMoreData(t *testing.T) {
	m, few := dense(t)
	p := Plan{Model: m, Data: few, Batch: 32, Cache: t.TempDir()}
	s := newScriptedTuner(t, &p, []scripted{{step: 0.1, holds: answer{Base: 20, StepPeak: 1000, Mapped: 300, Opened: 500, OpenedAnon: 100, Opening: 1500}}})
	key := newKey(&p, tfbind.Info{})
	s.own = 20
	trials := Trials{tuner: &s.tuner, cached: p.load(key)}
	little, err := trials.Measure(t.Context(), Configuration{})
	require.NoError(t, err)
	require.NoError(t, trials.Close())
	memories := func(m Measurement) []memory.Bytes {
		return []memory.Bytes{m.StepPeak, m.StepAnon, m.Opened, m.OpenedAnon, m.Opening}
	}
	assert.Equal(t, []memory.Bytes{1000, 700, 500, 100, 1500}, memories(little))

	s.own = 120
	again := Trials{tuner: &s.tuner, cached: p.load(key)}
	require.Len(t, again.Known(), 1)
	want := []memory.Bytes{1100, 800, 600, 200, 1600}
	assert.Equal(t, want, memories(again.Known()[0]))
	s.own = 20
	assert.Equal(t, []memory.Bytes{1000, 700, 500, 100, 1500}, memories(again.Known()[0]), "the cache is unchanged")
}

// The time and size of a trial's features are scaled to all data. Features with which steps round
// differently need Limits.FeatureRounding; with it, an earlier trial counts.
func TestTrialsOfCachedFeatures(t *testing.T) {
	m, ds := dense(t)
	cached := Configuration{CachedFeatures: true}
	of := Features{Samples: ds.Len() / 4, Bytes: 100, Seconds: 2, Difference: 1e-7}
	p := Plan{Model: m, Data: ds, Batch: 32, Cache: t.TempDir()}
	s := newScriptedTuner(t, &p, []scripted{{step: 0.1}, {is: cached, step: 0.001, holds: answer{StepPeak: 1000, Mapped: 300, Opened: 500, Features: &of}}})
	trials := Trials{tuner: &s.tuner, cached: p.load(newKey(&p, tfbind.Info{}))}
	measured, err := trials.Measure(t.Context(), cached)
	require.NoError(t, err)
	require.NoError(t, trials.Close())
	assert.Equal(t, &Features{Samples: ds.Len(), Bytes: 400, Seconds: 8, Difference: 1e-7}, measured.Features)
	assert.Equal(t, []memory.Bytes{1300, 1000, 500}, []memory.Bytes{measured.StepPeak, measured.StepAnon, measured.Opened})
	assert.Equal(t, "the first steps would round differently, by 1e-07; {Config.CacheFeatures} on accepts that", measured.Out)

	p.Limits.FeatureRounding = true
	again := Trials{tuner: &s.tuner, cached: p.load(newKey(&p, tfbind.Info{}))}
	require.Len(t, again.Known(), 1)
	assert.Empty(t, again.Known()[0].Out)
	assert.Equal(t, measured.Features, again.Known()[0].Features)
}

func TestSpace(t *testing.T) {
	_, err := tfbind.Load("")
	require.NoError(t, err)
	m, ds := dense(t)
	p := Plan{Model: m, Data: ds, Batch: 24, Limits: Limits{StepsPerExecution: 10, Threads: true, Precision: true}}
	bases, groups, err := p.Space()
	require.NoError(t, err)
	assert.Equal(t, []Configuration{{MicroBatches: 2}, {MicroBatches: 4}, {MicroBatches: 8}, {MicroBatches: 24}, {StepsPerExecution: 10}}, bases)
	require.Len(t, groups, 3, "without a restart, neither allocators nor oneDNN")
	assert.Equal(t, []Configuration{{NoPrefetch: true}}, groups[1])

	p.Limits = Limits{Restart: true, OneDNN: true}
	_, groups, err = p.Space()
	require.NoError(t, err)
	require.Len(t, groups, 2)
	other, ok := p.otherOneDNN()
	require.True(t, ok)
	mmap := Configuration{Allocator: allocator.Mmap}
	assert.Subset(t, groups[1], []Configuration{mmap, other, mmap.over(other)}, "allocators with and without oneDNN")

	p.Options = session.Options{MicroBatches: 3}
	bases, _, err = p.Space()
	require.NoError(t, err)
	assert.Empty(t, bases, "the number is set")
}

// texts returns a model whose loss is the mean length of its texts.
func texts(t *testing.T) *savedmodels.Model {
	t.Helper()
	cast := graphdef.Attrs{"SrcT": graphdef.Type(tfbind.Int32), "DstT": graphdef.Type(tfbind.Float32), "Truncate": graphdef.Bool(false)}
	mean := graphdef.Attrs{"T": graphdef.Type(tfbind.Float32), "Tidx": graphdef.Type(tfbind.Int32), "keep_dims": graphdef.Bool(false)}
	def, err := (&graphdef.Graph{}).
		Placeholder("text", tfbind.String).
		Constant("axis", tfbind.Int32, make([]byte, 4), 1).
		Add("lengths", "StringLength", graphdef.Attrs{"unit": graphdef.Text("BYTE")}, "text").
		Add("floats", "Cast", cast, "lengths").
		Add("loss", "Mean", mean, "floats", "axis").
		Add("init", "NoOp", nil).Bytes()
	require.NoError(t, err)
	graph := &graph_go_proto.GraphDef{}
	require.NoError(t, proto.Unmarshal(def, graph))
	info := func(op string, d tfbind.DType, dims ...int64) map[string]*pb.TensorInfo {
		return map[string]*pb.TensorInfo{op: {Encoding: &pb.TensorInfo_Name{Name: op + ":0"}, Dtype: types_go_proto.DataType(d), TensorShape: graphdef.Shape(dims).GetShape()}}
	}
	content, err := proto.Marshal(&pb.SavedModel{MetaGraphs: []*pb.MetaGraphDef{{
		MetaInfoDef: &pb.MetaGraphDef_MetaInfoDef{Tags: []string{"serve"}}, GraphDef: graph,
		SignatureDef: map[string]*pb.SignatureDef{
			"train":                 {Inputs: info("text", tfbind.String, -1), Outputs: info("loss", tfbind.Float32)},
			"__saved_model_init_op": {Outputs: map[string]*pb.TensorInfo{"__saved_model_init_op": {Encoding: &pb.TensorInfo_Name{Name: "init"}}}},
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
	p.Model = texts(t)
	of := func(text string) data.Dataset {
		ds, err := data.New("made", data.Field{Name: "text", Array: data.Array{Shape: []int{320}, Values: slices.Repeat([]string{text, ""}, 160)}})
		require.NoError(t, err)
		return ds
	}
	p.Data = of("a text")
	require.Empty(t, p.unmeasurable(offer{settings: []Configuration{intra}}))
	u := withSample(t, &p)
	written, err := columns.Open(u.spec.Data, u.spec.Fields, false)
	require.NoError(t, err)
	assert.Equal(t, 320, written.Len())
	for b := range written.Batches(data.Pass{Batch: 2}) {
		assert.Equal(t, []string{"a text", ""}, b.Fields[0].Values)
		break
	}
	c := u.startProcess(t.Context(), Configuration{})
	defer c.end()
	a, err := c.hear(time.Now().Add(p.Time))
	require.NoError(t, err)
	assert.True(t, a.Finite)

	p.Data = of(strings.Repeat("a", 1<<20))
	u = withSample(t, &p)
	written, err = columns.Open(u.spec.Data, u.spec.Fields, false)
	require.NoError(t, err)
	assert.Equal(t, 3*32, written.Len(), "64 MiB in batches of a little more than 16 MiB")
}
