package session_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
	"steadyfit/session"
	"steadyfit/tfbind"
)

const cannotPreprocess = "the graph cannot be used for preprocessing"

// little returns the little-endian bytes of int32 values.
func little(values ...int32) []byte {
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
	}
	return raw
}

// typed returns an attribute T with a type.
func typed(d tfbind.DType) graphdef.Attrs { return graphdef.Attrs{"T": graphdef.Type(d)} }

// floats returns a graph with the inputs x and seed.
func floats() *graphdef.Graph {
	return new(graphdef.Graph).Placeholder("x", tfbind.Float32).Placeholder("seed", tfbind.Int64)
}

// noisy returns a graph that adds random numbers from 0 to 1 to x.
func noisy() *graphdef.Graph {
	return floats().
		Add("shape", "Shape", graphdef.Attrs{"T": graphdef.Type(tfbind.Float32), "out_type": graphdef.Type(tfbind.Int32)},
			"x").
		Add("noise", "StatelessRandomUniform", graphdef.Attrs{
			"dtype": graphdef.Type(tfbind.Float32), "T": graphdef.Type(tfbind.Int32), "Tseed": graphdef.Type(tfbind.Int64),
		}, "shape", "seed").
		Add("y", "AddV2", typed(tfbind.Float32), "x", "noise")
}

// preprocess returns ds with the field x through a graph.
func preprocess(t testing.TB, ds data.Dataset, g *graphdef.Graph, o session.PreprocessingOptions) data.Dataset {
	t.Helper()
	def, err := g.Bytes()
	require.NoError(t, err)
	o.Name, o.Field, o.Input, o.Output = cmp.Or(o.Name, "g"), "x", "x", "y"
	got, closed, err := session.Preprocess(t.Context(), ds, def, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, closed()) })
	return got
}

// fieldOf returns the values of field x in a pass and the sizes of the batches.
func fieldOf[T any](t testing.TB, ds data.Dataset, p data.Pass) (values []T, sizes []int) {
	t.Helper()
	for b, err := range ds.Batches(p) {
		require.NoError(t, err)
		x, ok := b.Field("x")
		require.True(t, ok)
		require.Equal(t, b.Size, x.Shape[0])
		values, sizes = append(values, x.Values.([]T)...), append(sizes, b.Size)
	}
	return values, sizes
}

func someDigits(t testing.TB, n int) *data.InMemory {
	t.Helper()
	train, _, err := data.Builtin("digits")
	require.NoError(t, err)
	some, _, err := train.Split(float64(n)/float64(train.Len()), 1)
	require.NoError(t, err)
	return some
}

func TestPreprocessing(t *testing.T) {
	ds, err := data.New("grid",
		data.Field{Name: "x", Array: data.Array{Shape: []int{3, 2}, Values: []uint8{1, 2, 3, 4, 5, 6}}},
		data.Field{Name: "y", Array: data.Array{Shape: []int{3}, Values: []int64{7, 8, 9}}})
	require.NoError(t, err)
	mirrored := floats().Constant("axis", tfbind.Int32, little(1), 1).
		Add("y", "ReverseV2", graphdef.Attrs{"T": graphdef.Type(tfbind.Float32), "Tidx": graphdef.Type(tfbind.Int32)}, "x",
			"axis")
	other := floats().Constant("sizes", tfbind.Int32, little(-1, 1, 2, 1), 4).
		Add("image", "Reshape", graphdef.Attrs{"T": graphdef.Type(tfbind.Float32), "Tshape": graphdef.Type(tfbind.Int32)},
			"x", "sizes").
		Add("y", "Cast", graphdef.Attrs{"SrcT": graphdef.Type(tfbind.Float32), "DstT": graphdef.Type(tfbind.Int16)}, "image")
	for _, c := range []struct {
		name  string
		graph *graphdef.Graph
		spec  data.FieldSpec
		want  any
	}{
		{"identity", floats().Add("y", "Identity", typed(tfbind.Float32), "x"),
			data.FieldSpec{Name: "x", Shape: []int{2}, Type: "float32"}, []float32{1, 2, 3, 4, 5, 6}},
		{"flip", mirrored, data.FieldSpec{Name: "x", Shape: []int{2}, Type: "float32"}, []float32{2, 1, 4, 3, 6, 5}},
		{"other shape and type", other, data.FieldSpec{Name: "x", Shape: []int{1, 2, 1}, Type: "int16"},
			[]int16{1, 2, 3, 4, 5, 6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := preprocess(t, ds, c.graph, session.PreprocessingOptions{})
			require.Equal(t, "grid", got.Name())
			require.Equal(t, 3, got.Len())
			require.Equal(t, []data.FieldSpec{c.spec, {Name: "y", Shape: []int{}, Type: "int64"}}, got.Fields())
			for _, ahead := range []int{0, 2} {
				for epoch := range 3 {
					var all any
					var sizes []int
					pass := data.Pass{Batch: 2, Epoch: epoch}
					if c.spec.Type == "int16" {
						all, sizes = fieldOf[int16](t, data.Prefetch(got, ahead), pass)
					} else {
						all, sizes = fieldOf[float32](t, data.Prefetch(got, ahead), pass)
					}
					require.Equal(t, c.want, all)
					require.Equal(t, []int{2, 1}, sizes)
				}
			}
			var labels []int64
			for b, err := range got.Batches(data.Pass{Batch: 2}) {
				require.NoError(t, err)
				y, _ := b.Field("y")
				labels = append(labels, y.Values.([]int64)...)
			}
			require.Equal(t, []int64{7, 8, 9}, labels, "other fields pass")
			raw, _ := fieldOf[uint8](t, ds, data.Pass{Batch: 2})
			require.Equal(t, []uint8{1, 2, 3, 4, 5, 6}, raw, "the source is left as it is")
		})
	}
}

// All batches of a pass use the same memory.
func TestPreprocessingReusesMemory(t *testing.T) {
	got := preprocess(t, someDigits(t, 64), floats().Add("y", "Identity", typed(tfbind.Float32), "x"),
		session.PreprocessingOptions{})
	fields, values := map[*data.Field]bool{}, map[*float32]bool{}
	for b, err := range got.Batches(data.Pass{Batch: 16}) {
		require.NoError(t, err)
		x, _ := b.Field("x")
		fields[&b.Fields[0]], values[&x.Values.([]float32)[0]] = true, true
	}
	require.Len(t, fields, 1)
	require.Len(t, values, 1)
}

func TestPreprocessingErrors(t *testing.T) {
	ctx := t.Context()
	float := graphdef.Type(tfbind.Float32)
	sum := graphdef.Attrs{"T": float, "Tidx": graphdef.Type(tfbind.Int32)}
	axis := func() *graphdef.Graph { return floats().Constant("axis", tfbind.Int32, little(0), 1) }
	ds := digits(t)
	for _, c := range []struct {
		name  string
		graph *graphdef.Graph
		o     session.PreprocessingOptions
		is    error
		says  []string
	}{
		{"no input", floats(), session.PreprocessingOptions{Name: "g", Field: "x", Input: "images", Output: "x"}, tfbind.ErrNotFound, []string{`tensor "images"`}},
		{"no output", floats(), session.PreprocessingOptions{Name: "g", Field: "x", Input: "x", Output: "y"}, tfbind.ErrNotFound, []string{`tensor "y"`}},
		{"no seed", floats(), session.PreprocessingOptions{Name: "g", Field: "x", Input: "x", Output: "x", SeedInput: "s"}, tfbind.ErrNotFound, []string{`tensor "s"`}},
		{"own random numbers", axis().Add("y", "RandomUniform",
			graphdef.Attrs{"dtype": float, "T": graphdef.Type(tfbind.Int32)}, "axis"),
			session.PreprocessingOptions{Name: "g", Field: "x", Input: "x", Output: "y"}, nil,
			[]string{cannotPreprocess, "operation y (RandomUniform) draws random numbers", "SeedInput"}},
	} {
		def, err := c.graph.Bytes()
		require.NoError(t, err)
		_, _, err = session.Preprocess(ctx, ds, def, c.o)
		if c.is != nil {
			require.ErrorIs(t, err, c.is, c.name)
		}
		require.Error(t, err, c.name)
		for _, text := range c.says {
			require.ErrorContains(t, err, text, c.name)
		}
	}
	_, _, err := session.Preprocess(ctx, ds, []byte("this is no graph"),
		session.PreprocessingOptions{Name: "g", Field: "x", Input: "x", Output: "y"})
	require.ErrorContains(t, err, "16 bytes are not a valid GraphDef")
	ended, end := context.WithCancel(ctx)
	end()
	_, _, err = session.Preprocess(ended, ds, nil, session.PreprocessingOptions{Field: "x"})
	require.ErrorIs(t, err, context.Canceled)

	fails := func(ds data.Dataset, field string, g *graphdef.Graph) error {
		def, err := g.Bytes()
		require.NoError(t, err)
		_, _, err = session.Preprocess(ctx, ds, def, session.PreprocessingOptions{Name: "g", Field: field, Input: "x", Output: "y"})
		return err
	}
	lost := axis().Add("y", "Sum", sum, "x", "axis")
	err = fails(ds, "x", lost)
	require.ErrorContains(t, err, cannotPreprocess)
	require.ErrorContains(t, err, `builtin:digits-train: batch 0: field "x": []uint8 of shape [2 64] through the preprocessing graph x -> y`)
	require.ErrorContains(t, err, "2 samples went in, and values of shape [64] came out")
	err = fails(ds, "pixels", lost)
	require.ErrorIs(t, err, data.ErrField)
	require.ErrorContains(t, err, `no field "pixels"`)

	err = fails(ds, "x", floats().Constant("weights", tfbind.Float32, make([]byte, 4*63*2), 63, 2).
		Add("y", "MatMul", typed(tfbind.Float32), "x", "weights"))
	require.ErrorIs(t, err, tfbind.ErrInvalidArgument)
	require.ErrorContains(t, err, `field "x": []uint8 of shape [2 64] through the preprocessing graph x -> y`)
	require.ErrorContains(t, err, "[63,2]")

	same := floats().Add("y", "Identity", typed(tfbind.Float32), "x")
	words, err := data.New("words", data.Field{Name: "x", Array: data.Array{Shape: []int{1}, Values: []string{"text"}}})
	require.NoError(t, err)
	require.ErrorIs(t, fails(words, "x", same), tfbind.ErrType)
	def, err := same.Bytes()
	require.NoError(t, err)
	got, closed, err := session.Preprocess(ctx, ds, def, session.PreprocessingOptions{Name: "g", Field: "x", Input: "x", Output: "y"})
	require.NoError(t, err)
	require.NoError(t, closed())
	require.NoError(t, closed())
	for _, err = range got.Batches(data.Pass{Batch: 2}) {
		break
	}
	require.ErrorIs(t, err, tfbind.ErrClosed)
}

// Calls, conditions and loops run functions of the graph's library.
func TestPreprocessingWithFunctions(t *testing.T) {
	float := graphdef.Type(tfbind.Float32)
	call := graphdef.Attrs{
		"Tin": graphdef.Types([]tfbind.DType{tfbind.Float32}), "Tout": graphdef.Types([]tfbind.DType{tfbind.Float32}),
		"f": {Value: &tfproto.AttrValue_Func{Func: &tfproto.NameAttrList{Name: "inner"}}},
	}
	graph := func(nodes ...*tfproto.NodeDef) []byte {
		def, err := floats().Add("y", "StatefulPartitionedCall", call, "x").Bytes()
		require.NoError(t, err)
		var g tfproto.GraphDef
		require.NoError(t, proto.Unmarshal(def, &g))
		arg := func(name string) []*tfproto.OpDef_ArgDef {
			return []*tfproto.OpDef_ArgDef{{Name: name, Type: tfproto.DataType_DT_FLOAT}}
		}
		g.Library = &tfproto.FunctionDefLibrary{Function: []*tfproto.FunctionDef{{
			Signature: &tfproto.OpDef{Name: "inner", InputArg: arg("a"), OutputArg: arg("b")},
			NodeDef:   nodes, Ret: map[string]string{"b": "last:output:0"},
		}}}
		def, err = proto.Marshal(&g)
		require.NoError(t, err)
		return def
	}
	o := session.PreprocessingOptions{Name: "g", Field: "x", Input: "x", Output: "y"}
	ds, err := data.New("two", data.Field{Name: "x", Array: data.Array{Shape: []int{2}, Values: []float32{3, 4}}})
	require.NoError(t, err)
	got, closed, err := session.Preprocess(t.Context(), ds,
		graph(&tfproto.NodeDef{Name: "last", Op: "Identity", Input: []string{"a"}, Attr: typed(tfbind.Float32)}), o)
	require.NoError(t, err)
	values, _ := fieldOf[float32](t, got, data.Pass{Batch: 2})
	require.Equal(t, []float32{3, 4}, values)
	require.NoError(t, closed())

	_, _, err = session.Preprocess(t.Context(), ds, graph(
		&tfproto.NodeDef{Name: "shape", Op: "Shape", Input: []string{"a"},
			Attr: graphdef.Attrs{"T": float, "out_type": graphdef.Type(tfbind.Int32)}},
		&tfproto.NodeDef{Name: "last", Op: "RandomUniform", Input: []string{"shape:output:0"},
			Attr: graphdef.Attrs{"dtype": float, "T": graphdef.Type(tfbind.Int32)}}), o)
	require.ErrorContains(t, err, cannotPreprocess)
	require.ErrorContains(t, err, "operation last (RandomUniform) draws random numbers")
}

// Random numbers depend only on the seed, the epoch and the batch, not on earlier or concurrent
// runs.
func TestPreprocessingDrawsByPosition(t *testing.T) {
	ds := someDigits(t, 100)
	seeded := func(seed int64) data.Dataset {
		return preprocess(t, ds, noisy(), session.PreprocessingOptions{Field: "x", SeedInput: "seed", Seed: seed})
	}
	one := seeded(1)
	first, _ := fieldOf[float32](t, one, data.Pass{Batch: 30})
	second, _ := fieldOf[float32](t, one, data.Pass{Batch: 30, Epoch: 1})
	require.NotEqual(t, first, second)
	later, _ := fieldOf[float32](t, one, data.Pass{Batch: 30, Epoch: 1, Skip: 2})
	require.Equal(t, second[60*64:], later)
	require.NotEqual(t, first[:30*64], first[30*64:60*64])
	again, _ := fieldOf[float32](t, data.Prefetch(seeded(1), 3), data.Pass{Batch: 30})
	require.Equal(t, first, again)
	other, _ := fieldOf[float32](t, seeded(2), data.Pass{Batch: 30})
	require.NotEqual(t, first, other)

	var wg sync.WaitGroup
	results := make([][]float32, 4)
	for i := range results {
		wg.Go(func() {
			for b, err := range one.Batches(data.Pass{Batch: 30, Epoch: i % 2}) {
				if err != nil {
					return // the comparison below then fails
				}
				results[i] = append(results[i], b.Fields[0].Values.([]float32)...)
			}
		})
	}
	wg.Wait()
	for i, r := range results {
		require.Equal(t, [][]float32{first, second}[i%2], r)
	}
}

// A resumed training on preprocessed data continues as if it had not been interrupted. A
// different graph or seed is an error.
func TestResumeWithPreprocessing(t *testing.T) {
	train := func(seed int64, name string) data.Dataset {
		return data.Prefetch(preprocess(t, someDigits(t, 400).Shuffle(3), noisy(),
			session.PreprocessingOptions{Name: name, SeedInput: "seed", Seed: seed}), 2)
	}
	run := func(ctx context.Context, ds data.Dataset, dir string, step func(*fit.State)) ([]float64, error) {
		loop := fit.Loop{Session: open(t, "digits", session.Options{}), Batch: 100, Epochs: 3, Resume: dir}
		if dir != "" {
			loop.Hook(fit.Checkpoint{Folder: dir}.Hook())
		}
		loop.Hook(fit.Hook{Name: "count", Step: func(_ context.Context, s *fit.State) error {
			step(s)
			return nil
		}})
		h, err := loop.Run(ctx, ds)
		var losses []float64
		if h != nil {
			for _, r := range h.Records {
				loss, _ := r.Metrics.Get("loss")
				losses = append(losses, loss)
			}
		}
		return losses, err
	}
	want, err := run(t.Context(), train(1, "noise"), "", func(*fit.State) {})
	require.NoError(t, err)
	require.Len(t, want, 3)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err = run(ctx, train(1, "noise"), dir, func(s *fit.State) {
		if s.Step == 6 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)

	for says, ds := range map[string]data.Dataset{"seed 2": train(2, "noise"), `graph "other"`: train(1, "other")} {
		_, err = run(t.Context(), ds, dir, func(*fit.State) {})
		require.ErrorIs(t, err, session.ErrMismatch)
		require.ErrorContains(t, err, says)
	}

	var steps []int64
	got, err := run(t.Context(), train(1, "noise"), dir, func(s *fit.State) { steps = append(steps, s.Step) })
	require.NoError(t, err)
	require.Equal(t, want[len(want)-2:], got[len(got)-2:])
	require.Equal(t, int64(7), slices.Min(steps))
}
