package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/dtype"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
	"steadyfit/train"
)

// TestMain checks that no native object and no goroutine is left.
func TestMain(m *testing.M) {
	if _, err := tfbind.Load(""); err != nil {
		fmt.Fprintf(os.Stderr, "these tests need TensorFlow: %v\n", err)
		os.Exit(1)
	}
	if dir := os.Getenv(trainerEnv); dir != "" {
		fmt.Fprintln(os.Stderr, writeVersions(dir))
		os.Exit(1)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if live := tfbind.Live(); live != (tfbind.Counts{}) && code == 0 {
		fmt.Fprintf(os.Stderr, "left behind: %+v\n", live)
		_ = pprof.Lookup("tfbind").WriteTo(os.Stderr, 1)
		code = 1
	}
	os.Exit(code)
}

// digit is an image of the built-in digits.
type digit struct {
	Pixels []float32 `tensor:"x"`
}

type answer struct {
	Class         int64
	Probabilities [10]float32
	Scores        []float32 `tensor:"logits"`
}

func digits(t testing.TB) (model *savedmodels.Model, images []digit) {
	t.Helper()
	model, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	_, test, err := data.Builtin("digits")
	require.NoError(t, err)
	for b, err := range test.Batches(data.Pass{Batch: 64}) {
		require.NoError(t, err)
		x, _ := b.Field("x")
		pixels, ok := x.Values.([]uint8)
		require.True(t, ok)
		for i := range b.Size {
			image := digit{make([]float32, 64)}
			for at, v := range pixels[64*i : 64*i+64] {
				image.Pixels[at] = float32(v)
			}
			images = append(images, image)
		}
		break
	}
	return model, images
}

func open(t testing.TB, dir string, o Options) *Predictor {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	p, err := Open(t.Context(), dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// expected returns the probabilities that a session computes for the images, in one batch.
func expected(t testing.TB, model *savedmodels.Model, images []digit) [][10]float32 {
	t.Helper()
	s, err := session.OpenModel(t.Context(), model, session.Options{ReadOnly: true})
	require.NoError(t, err)
	defer s.Close()
	step, err := s.Prepare("predict")
	require.NoError(t, err)
	defer step.Close()
	var pixels []float32
	for _, image := range images {
		pixels = append(pixels, image.Pixels...)
	}
	require.NoError(t, step.Feed(data.Batch{Size: len(images), Fields: []data.Field{
		{Name: "x", Array: data.Array{Shape: []int{len(images), 64}, Values: pixels}}}}))
	require.NoError(t, step.Run(t.Context()))
	var a data.Array
	require.NoError(t, step.Read("probabilities", &a))
	found := make([][10]float32, len(images))
	for i := range found {
		copy(found[i][:], a.Values.([]float32)[10*i:])
	}
	return found
}

func TestPredictsStructs(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{})
	assert.Zero(t, p.Version())
	var one answer
	require.NoError(t, p.Predict(t.Context(), &images[3], &one))
	assert.Equal(t, expected(t, model, images[3:4])[0], one.Probabilities)
	require.Len(t, one.Scores, 10)
	for class, score := range one.Scores {
		assert.LessOrEqual(t, score, one.Scores[one.Class], class)
	}

	var all []answer
	require.NoError(t, p.Predict(t.Context(), images, &all))
	require.Len(t, all, len(images))
	for i, want := range expected(t, model, images) {
		assert.Equal(t, want, all[i].Probabilities, i)
	}
	memory := &all[0]
	require.NoError(t, p.Predict(t.Context(), images[:2], &all))
	assert.Len(t, all, 2)
	assert.Same(t, memory, &all[0])
}

func TestPredictsBatches(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{})
	pixels := append(append([]float32{}, images[0].Pixels...), images[1].Pixels...)
	wide := make([]float64, len(pixels))
	for i, v := range pixels {
		wide[i] = float64(v)
	}
	want := expected(t, model, images[:2])
	for _, values := range []any{pixels, wide} { // other types are converted
		in := data.Batch{Size: 2, Fields: []data.Field{{Name: "x", Array: data.Array{Shape: []int{2, 64}, Values: values}}}}
		var out data.Batch
		require.NoError(t, p.Predict(t.Context(), &in, &out))
		assert.Equal(t, 2, out.Size)
		found, ok := out.Field("probabilities")
		require.True(t, ok)
		assert.Equal(t, []int{2, 10}, found.Shape)
		assert.Equal(t, append(append([]float32{}, want[0][:]...), want[1][:]...), found.Values)
		var rows []answer
		require.NoError(t, p.Predict(t.Context(), &in, &rows))
		require.Len(t, rows, 2)
		assert.Equal(t, want[1], rows[1].Probabilities)
	}
}

func TestPredictAllocatesNothing(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{Parallel: 1, Batch: 8})
	var one answer
	var out data.Batch
	ctx := context.Background()
	call := func() {
		if err := errors.Join(p.Predict(ctx, &images[0], &one), p.Predict(ctx, &images[1], &out)); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		call()
	}
	assert.Zero(t, testing.AllocsPerRun(100, call))
}

// Calls of several goroutines run together once they have Options.Batch samples, here never before.
func TestCallsRunTogether(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{Parallel: 2, Batch: 16, Delay: time.Hour})
	want := expected(t, model, images[:16])
	var group sync.WaitGroup
	for round := range 3 {
		for i := range 14 {
			group.Go(func() {
				var one answer
				if err := p.Predict(t.Context(), &images[i], &one); err != nil {
					t.Errorf("round %d, image %d: %v", round, i, err)
				}
				assert.InDeltaSlice(t, want[i][:], one.Probabilities[:], 1e-6, i)
			})
		}
		group.Go(func() {
			var two []answer
			if err := p.Predict(t.Context(), images[14:16], &two); err != nil {
				t.Error(err)
				return
			}
			assert.InDeltaSlice(t, want[15][:], two[1].Probabilities[:], 1e-6)
		})
		group.Wait()
	}
}

// A call whose values are wrong fails alone, though it runs together with others.
func TestWrongCallFailsAlone(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{Parallel: 1, Batch: 2, Delay: time.Hour})
	var group sync.WaitGroup
	var one answer
	var short struct{ Probabilities [9]float32 }
	group.Go(func() { assert.NoError(t, p.Predict(t.Context(), &images[0], &one)) })
	group.Go(func() {
		err := p.Predict(t.Context(), &images[1], &short)
		assert.ErrorIs(t, err, ErrInput)
		assert.ErrorContains(t, err, "9 values, and a sample of output probabilities has the shape [10]")
		assert.NoError(t, p.Predict(t.Context(), &images[1], new(answer)))
	})
	group.Wait()
	assert.NotZero(t, one.Probabilities)
}

func TestWaitingCallEndsWithItsContext(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{Parallel: 1, Batch: 3, Delay: time.Hour})
	waits, cancel := context.WithCancelCause(t.Context())
	var group sync.WaitGroup
	group.Go(func() { assert.NoError(t, p.Predict(t.Context(), &images[0], new(answer))) })
	require.Eventually(t, func() bool { return locked(p, func() bool { return p.gathering != nil }) }, time.Minute, time.Millisecond)
	reason := errors.New("the client is gone")
	group.Go(func() { assert.ErrorIs(t, p.Predict(waits, &images[1], new(answer)), reason) })
	require.Eventually(t, func() bool { return locked(p, func() bool { return len(p.waiting) == 1 }) }, time.Minute, time.Millisecond)
	cancel(reason)
	require.Eventually(t, func() bool { return locked(p, func() bool { return len(p.waiting) == 0 }) }, time.Minute, time.Millisecond)
	assert.ErrorIs(t, p.Predict(waits, &images[1], new(answer)), reason, "before it begins")
	require.NoError(t, p.Predict(t.Context(), images[:2], new([]answer)), "it completes the run")
	group.Wait()
}

func locked(p *Predictor, f func() bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return f()
}

func TestErrorsOfCalls(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{})
	type nameless struct{ Pixels []float32 }
	type integers struct {
		X []int64
	}
	type mistaken struct {
		X []float32 `tensor:"pixels"`
	}
	type twice struct {
		A []float32 `tensor:"x"`
		B []float32 `tensor:"x"`
	}
	type hidden struct {
		a []float32 `tensor:"x"`
	}
	row := data.Array{Shape: []int{1, 64}, Values: images[0].Pixels}
	for _, c := range []struct {
		in, out any
		says    string
	}{
		{images[0], new(answer), "expected a pointer to a struct, a slice of structs, a *data.Batch or JSON, got serve.digit"},
		{[]digit{}, new([]answer), "there are no samples"},
		{&nameless{}, new(answer), "serve.nameless has no field for the input x; give one the tag `tensor:\"x\"`"},
		{&integers{}, new(answer), "field X of serve.integers: expected float32, a slice or an array of it for input x, got []int64"},
		{&mistaken{}, new(answer), `field X of serve.mistaken: it has the tag "pixels", and the model has the inputs x`},
		{&digit{make([]float32, 63)}, new(answer), "sample 0: a sample of input x has the shape [64], got 63 values"},
		{images[:2], new(answer), "there are 2 samples, and the result *serve.answer has one; use a pointer to a slice"},
		{&images[0], answer{}, "expected a pointer to a struct or to a slice of structs, or a *data.Batch for the result, got serve.answer"},
		{&images[0], new(struct{ Text string }), "has no field for the output class"},
		{&twice{}, new(answer), `field B of serve.twice: it has the tag "x", and another field has it, too`},
		{&hidden{}, new(answer), `field a of serve.hidden: it has the tag "x", and the field is not exported`},
		{&data.Batch{Size: 2, Fields: []data.Field{{Name: "x", Array: row}}}, new(answer), "field x has the shape [1 64], and the batch has 2 samples"},
		{&data.Batch{Size: -1}, new(answer), "there are no samples"},
		{JSON(nil), new(answer), "it has no rows"},
		{JSON(`{"pixels": [1]}`), new(answer), "sample 0, input x: no value for x; found: pixels"},
		{JSON(`{"x": [1]} {`), new(answer), "sample 0: found more after the object, expected one JSON object"},
		{&data.Batch{Size: 1}, new(answer), "signature predict takes x"},
		{nil, nil, "got <nil>"},
		{(*data.Batch)(nil), nil, "the batch is nil"},
		{&images[0], (*data.Batch)(nil), "got *data.Batch"},
	} {
		err := p.Predict(t.Context(), c.in, c.out)
		require.ErrorIs(t, err, ErrInput, c.says)
		require.ErrorContains(t, err, c.says)
	}
	empty := t.TempDir()
	_, err := Open(t.Context(), empty, Options{})
	require.ErrorIs(t, err, savedmodels.ErrNotSavedModel)
	require.ErrorContains(t, err, "there are no numbered versions in it either")
	assert.Equal(t, 1, strings.Count(err.Error(), empty))
	training := filepath.Join("..", "savedmodels", "testdata", "twoinputs")
	_, err = Open(t.Context(), training, Options{})
	require.EqualError(t, err, training+`: no such signature: "predict"; there are apply, gradients, train`)
	_, err = Open(t.Context(), model.Dir, Options{Signature: "nosuch"})
	require.ErrorIs(t, err, savedmodels.ErrNoSignature)
	closed := open(t, model.Dir, Options{})
	require.NoError(t, closed.Close())
	require.ErrorIs(t, closed.Predict(t.Context(), &images[0], new(answer)), ErrClosed)
	require.ErrorIs(t, closed.Refresh(t.Context()), ErrClosed)
	assert.Nil(t, closed.Model())
	_ = hidden{}.a
}

// The tag of a field counts more than the name of another one, and - hides a field.
func TestTagsOfFields(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{})
	in := struct {
		X      []float32 `tensor:"-"`
		Pixels []float32 `tensor:"x"`
	}{nil, images[0].Pixels}
	var out struct {
		Class  string `tensor:"-"`
		Number int64  `tensor:"class"`
	}
	var want answer
	require.NoError(t, errors.Join(p.Predict(t.Context(), &in, &out), p.Predict(t.Context(), &images[0], &want)))
	assert.Equal(t, want.Class, out.Number)
}

// An input that has one value for all samples takes no field of a struct.
func TestInputOfTheWholeBatch(t *testing.T) {
	p := open(t, filepath.Join("..", "savedmodels", "testdata", "constants", "training"), Options{})
	require.NotNil(t, p.Model())
	in := struct {
		X        []float32
		Training bool
	}{[]float32{1, 2}, true}
	err := p.Predict(t.Context(), &in, new(struct{ Y []float32 }))
	require.ErrorIs(t, err, ErrInput)
	require.ErrorContains(t, err, "input training has the shape []")
}

// A value that is not an index of a table of embeddings is an error of the call, with the name of its input.
func TestIndicesOutsideOfTheirTable(t *testing.T) {
	model := &savedmodels.Model{Metadata: &savedmodels.Metadata{Inputs: map[string]savedmodels.InputMetadata{"words": {Rows: 100}}}}
	s := &slot{version: &version{model: model, inputs: []port{{Tensor: savedmodels.Tensor{Name: "words"}}}}}
	for _, values := range []any{[]int32{3, 100}, []int64{-100, 100, -101}} {
		b := data.Batch{Size: 1, Fields: []data.Field{{Name: "words", Array: data.Array{Values: values}}}}
		err := s.feedBatch(b)
		require.ErrorIs(t, err, ErrInput)
		require.ErrorContains(t, err, "input words: expected indices of a table of 100 rows, -100 to 99, got 100")
	}
	for _, values := range []any{[]int32{0, 99, -1}, []int64{-100}, []float64{100}} {
		assert.NoError(t, s.version.checkIndices(data.Batch{Fields: []data.Field{{Name: "words", Array: data.Array{Values: values}}}}))
	}
}

// An input with an open dimension may have no values.
func TestColumnWithoutValues(t *testing.T) {
	c := column{kind: dtype.For[float32]()}
	c.add(nil, 0)
	assert.Equal(t, []float32{}, c.view())
}

// A call that cannot join a run ends the wait of that run for more calls.
func TestCallThatCannotJoinWaitsForNoDelay(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{Parallel: 1, Batch: 4, Delay: time.Hour})
	var group sync.WaitGroup
	group.Go(func() { assert.NoError(t, p.Predict(t.Context(), images[:3], new([]answer))) })
	require.Eventually(t, func() bool { return locked(p, func() bool { return p.gathering != nil }) }, time.Minute, time.Millisecond)
	require.NoError(t, p.Predict(t.Context(), images[:4], new([]answer)))
	group.Wait()
}

// versions writes n versions of digits with different weights, and returns the first probability for an image in each.
func versions(t testing.TB, n int, image digit) (dir string, answers map[float32]int64) {
	t.Helper()
	model, _ := digits(t)
	images, _, err := data.Builtin("digits")
	require.NoError(t, err)
	s, err := session.OpenModel(t.Context(), model, session.Options{})
	require.NoError(t, err)
	defer s.Close()
	dir, answers = filepath.Join(t.TempDir(), "versions"), map[float32]int64{}
	for i := range n {
		path, err := writeVersion(t.Context(), s, images, dir)
		require.NoError(t, err)
		written, err := savedmodels.Open(path)
		require.NoError(t, err)
		answers[expected(t, written, []digit{image})[0][0]] = int64(i + 1)
	}
	require.Len(t, answers, n, "all versions differ")
	return dir, answers
}

// Under load, each answer is that of one version, and a version that cannot be loaded changes nothing.
func TestSwapsUnderLoad(t *testing.T) {
	_, images := digits(t)
	dir, answers := versions(t, 3, images[0])
	hidden := t.TempDir()
	hide := func(version string) {
		require.NoError(t, os.Rename(filepath.Join(dir, version), filepath.Join(hidden, version)))
	}
	show := func(version string) {
		require.NoError(t, os.Rename(filepath.Join(hidden, version), filepath.Join(dir, version)))
	}
	hide("2")
	hide("3")
	p := open(t, dir, Options{Parallel: 2, Batch: 1})
	assert.EqualValues(t, 1, p.Version())

	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			last := int64(0)
			for ctx.Err() == nil {
				before := p.Version()
				var one answer
				if err := p.Predict(t.Context(), &images[0], &one); err != nil {
					t.Error(err)
					return
				}
				version := answers[one.Probabilities[0]]
				if version == 0 {
					t.Errorf("%v is the answer of no version", one.Probabilities[0])
				}
				if last <= before && version < before && p.Version() == before {
					t.Errorf("version %d answered a call that began after version %d", version, before)
				}
				last = version
			}
		})
	}
	for range 3 {
		show("2")
		require.NoError(t, p.Refresh(t.Context()))
		assert.EqualValues(t, 2, p.Version())

		require.NoError(t, os.MkdirAll(filepath.Join(dir, "4"), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "4", "saved_model.pb"), []byte("damaged"), 0o666))
		show("3")
		require.ErrorIs(t, p.Refresh(t.Context()), savedmodels.ErrNotSavedModel)
		assert.EqualValues(t, 3, p.Version(), "the largest that can be loaded")
		require.NoError(t, p.Refresh(t.Context()), "a version that failed is tried once")

		require.NoError(t, os.RemoveAll(filepath.Join(dir, "4")))
		hide("3")
		require.NoError(t, p.Refresh(t.Context()))
		assert.EqualValues(t, 2, p.Version(), "the largest that is left")
		hide("2")
		require.NoError(t, p.Refresh(t.Context()))
		assert.EqualValues(t, 1, p.Version())
	}
	stop()
	group.Wait()
}

// A version whose files are still being copied is refused, and loaded once they are complete.
func TestVersionThatIsBeingCopied(t *testing.T) {
	_, images := digits(t)
	dir, answers := versions(t, 2, images[0])
	whole := filepath.Join(t.TempDir(), "2")
	require.NoError(t, os.Rename(filepath.Join(dir, "2"), whole))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "2"), 0o777))
	for _, name := range []string{"SHA256SUMS", "saved_model.pb"} {
		content, err := os.ReadFile(filepath.Join(whole, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "2", name), content, 0o666))
	}
	p := open(t, dir, Options{})
	assert.EqualValues(t, 1, p.Version(), "the newest that is complete")
	require.NoError(t, os.CopyFS(filepath.Join(dir, "2", "variables"), os.DirFS(filepath.Join(whole, "variables"))))
	require.ErrorContains(t, p.Refresh(t.Context()), "missing: assets.extra/steadyfit.json")
	require.NoError(t, p.Refresh(t.Context()), "nothing was written since then")
	assert.EqualValues(t, 1, p.Version())
	require.NoError(t, os.CopyFS(filepath.Join(dir, "2", "assets.extra"), os.DirFS(filepath.Join(whole, "assets.extra"))))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Refresh(ended), context.Canceled, "this says nothing about the version")
	require.NoError(t, p.Refresh(t.Context()))
	assert.EqualValues(t, 2, p.Version())
	var one answer
	require.NoError(t, p.Predict(t.Context(), &images[0], &one))
	assert.EqualValues(t, 2, answers[one.Probabilities[0]])
}

// A model that cannot be loaded is moved back. Promote removes the oldest versions, and Rollback goes back to one.
func TestPromoteAndRollback(t *testing.T) {
	_, images := digits(t)
	dir, answers := versions(t, 3, images[0])
	hidden := t.TempDir()
	for _, version := range []string{"2", "3"} {
		require.NoError(t, os.Rename(filepath.Join(dir, version), filepath.Join(hidden, version)))
	}
	var calls, failed int
	p := open(t, dir, Options{Keep: 2, Observe: func(took time.Duration, err error) {
		calls++
		if assert.Positive(t, took); err != nil {
			failed++
		}
	}})
	serves := func(number, of int64) {
		t.Helper()
		assert.Equal(t, number, p.Version())
		var one answer
		require.NoError(t, p.Predict(t.Context(), &images[0], &one))
		assert.Equal(t, of, answers[one.Probabilities[0]])
	}
	require.NoError(t, p.Promote(t.Context(), filepath.Join(hidden, "2"), 2))
	serves(2, 2)
	damaged := filepath.Join(hidden, "damaged")
	require.NoError(t, os.Mkdir(damaged, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(damaged, "saved_model.pb"), []byte("damaged"), 0o666))
	for range 2 { // also a second time
		require.ErrorIs(t, p.Promote(t.Context(), damaged, 3), savedmodels.ErrNotSavedModel)
		assert.DirExists(t, damaged)
	}
	third := filepath.Join(hidden, "3")
	require.ErrorContains(t, p.Promote(t.Context(), third, 2), "promote "+third+": expected a number above 2, which serves, got 2")
	serves(2, 2)
	require.NoError(t, p.Promote(t.Context(), filepath.Join(hidden, "3"), 7))
	serves(7, 3)
	assert.NoDirExists(t, filepath.Join(dir, "1"))
	require.NoError(t, p.Rollback(t.Context(), filepath.Join(hidden, "7")))
	serves(2, 2)
	require.ErrorIs(t, p.Rollback(t.Context(), filepath.Join(hidden, "8")), ErrNoVersion)
	require.ErrorIs(t, p.Predict(t.Context(), images[0], new(answer)), ErrInput)
	assert.Equal(t, []int{5, 1}, []int{calls, failed})
}

// Versions that cannot be loaded, above and below the one that serves, change nothing. They do not count for Keep.
func TestPromoteAndRollbackBesideDamagedVersions(t *testing.T) {
	_, images := digits(t)
	dir, _ := versions(t, 4, images[0])
	hidden := t.TempDir()
	for _, version := range []string{"3", "4"} {
		require.NoError(t, os.Rename(filepath.Join(dir, version), filepath.Join(hidden, version)))
	}
	damage := func(version string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, version), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, version, "saved_model.pb"), []byte("damaged"), 0o666))
	}
	damage("9")
	p := open(t, dir, Options{Keep: 2})
	require.NoError(t, p.Promote(t.Context(), filepath.Join(hidden, "3"), 3))
	assert.EqualValues(t, 3, p.Version())
	assert.DirExists(t, filepath.Join(dir, "3"))
	assert.DirExists(t, filepath.Join(dir, "2"), "one of two that can be loaded")
	assert.NoDirExists(t, filepath.Join(dir, "1"))
	damage("8")
	require.NoError(t, p.Rollback(t.Context(), filepath.Join(hidden, "3")), "8 is not the version that serves")
	assert.EqualValues(t, 2, p.Version())
	assert.DirExists(t, filepath.Join(hidden, "3"))

	require.NoError(t, os.RemoveAll(filepath.Join(dir, "8")))
	require.NoError(t, p.Promote(t.Context(), filepath.Join(hidden, "3"), 4))
	require.NoError(t, p.Promote(t.Context(), filepath.Join(hidden, "4"), 5))
	damage("4")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "2")))
	require.Error(t, p.Rollback(t.Context(), filepath.Join(hidden, "5")))
	assert.DirExists(t, filepath.Join(dir, "5"), "no version before it can be loaded")
	assert.EqualValues(t, 5, p.Version())
}

// Rollback goes back to the newest version that can be loaded, and Promote fails if a larger number serves then.
func TestMovesAreJudgedByTheVersionThatServes(t *testing.T) {
	_, images := digits(t)
	dir, _ := versions(t, 4, images[0])
	hidden := t.TempDir()
	require.NoError(t, os.Rename(filepath.Join(dir, "4"), filepath.Join(hidden, "4")))
	p := open(t, dir, Options{})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "2", "saved_model.pb"), []byte("damaged"), 0o666))
	require.NoError(t, p.Rollback(t.Context(), filepath.Join(hidden, "3")))
	assert.EqualValues(t, 1, p.Version())
	assert.DirExists(t, filepath.Join(hidden, "3"))

	require.NoError(t, os.Rename(filepath.Join(hidden, "4"), filepath.Join(dir, "4")))
	require.ErrorContains(t, p.Promote(t.Context(), filepath.Join(hidden, "3"), 3), "was moved back, because version 4 serves")
	assert.DirExists(t, filepath.Join(hidden, "3"))
	assert.EqualValues(t, 4, p.Version())
}

// Promote refuses a taken number, a model with other inputs and a folder without a model before it moves them.
func TestPromoteRefusesBeforeItMoves(t *testing.T) {
	_, images := digits(t)
	dir, _ := versions(t, 2, images[0])
	model := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.Rename(filepath.Join(dir, "2"), model))
	p := open(t, dir, Options{})
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "4"), 0o777)) // of a program that copies a version
	require.ErrorContains(t, p.Promote(t.Context(), model, 4), "promote "+model+": rename ")
	require.ErrorContains(t, p.Promote(t.Context(), model, 4), "file exists; choose one that is not taken")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "2"), 0o777))
	require.NoError(t, p.Promote(t.Context(), model, 0))
	assert.EqualValues(t, 3, p.Version(), "the next free number")

	other, empty := filepath.Join(t.TempDir(), "other"), t.TempDir()
	require.NoError(t, os.CopyFS(other, os.DirFS(filepath.Join("..", "savedmodels", "testdata", "keras"))))
	err := p.Promote(t.Context(), other, 0)
	require.EqualError(t, err, "promote "+other+": the model takes x (float32 [-1 3]), and version 3, which serves, takes x (float32 [-1 64])")
	assert.DirExists(t, other)
	err = p.Promote(t.Context(), empty, 0)
	require.ErrorIs(t, err, savedmodels.ErrNotSavedModel)
	require.NotContains(t, err.Error(), "moved back")

	single := open(t, filepath.Join(dir, "3"), Options{})
	require.EqualError(t, single.Promote(t.Context(), other, 0), "promote "+other+": "+single.dir+" is a single model; open the folder of its versions")
	require.ErrorContains(t, single.Rollback(t.Context(), filepath.Join(empty, "3")), "is a single model")
	require.ErrorContains(t, p.Rollback(t.Context(), filepath.Join(empty, "no", "3")), "rollback "+dir+": rename ")
}

func TestFollowsAFolder(t *testing.T) {
	_, images := digits(t)
	dir, answers := versions(t, 2, images[0])
	away := filepath.Join(t.TempDir(), "2")
	require.NoError(t, os.Rename(filepath.Join(dir, "2"), away))
	p := open(t, dir, Options{Every: time.Millisecond})
	require.NoError(t, os.Rename(away, filepath.Join(dir, "2")))
	require.Eventually(t, func() bool { return p.Version() == 2 }, time.Minute, time.Millisecond)
	var one answer
	require.NoError(t, p.Predict(t.Context(), &images[0], &one))
	assert.EqualValues(t, 2, answers[one.Probabilities[0]])
}

// JSON is read with the columns, the categories and the classes of the training.
func TestPredictsJSON(t *testing.T) {
	dir := t.TempDir()
	table := "b,kind,a,label\n1,cat,10,0.5\n2,dog,20,0.25\n3,cat,30,1\n4,dog,40,2\n"
	csv, schema := filepath.Join(dir, "d.csv"), filepath.Join(dir, "schema.json")
	require.NoError(t, os.WriteFile(csv, []byte(table), 0o666))
	require.NoError(t, os.WriteFile(schema, []byte(`{"columns": {"b": {"type": "float"}, "kind": {"type": "category", "values": {"cat": 0, "dog": 1}}, "a": {"type": "float"}, "label": {"type": "float"}}}`), 0o666))
	rules, err := data.ReadSchema(schema)
	require.NoError(t, err)
	_, err = train.Run(t.Context(), train.Config{Model: filepath.Join("..", "savedmodels", "testdata", "keras"),
		Data: train.Data{Path: csv, Schema: rules}, Loop: fit.Loop{Batch: 2, Epochs: 1, Log: slog.New(slog.DiscardHandler)},
		Out: filepath.Join(dir, "out")})
	require.NoError(t, err)
	p := open(t, filepath.Join(dir, "out"), Options{Batch: 8})
	type row struct {
		X [3]float32
	}
	var want, found []struct{ Y float32 }
	require.NoError(t, p.Predict(t.Context(), []row{{[3]float32{1, 0, 10}}, {[3]float32{2, 1, 20}}}, &want))
	require.NoError(t, p.Predict(t.Context(), JSON(`{"a": 10, "kind": "cat", "b": 1, "id": 7}`+"\n"+`{"a": 20, "kind": "dog", "b": 2, "id": 8}`), &found))
	assert.Equal(t, want, found)
	found = nil
	require.NoError(t, p.Predict(t.Context(), JSON(`[{"a": 10, "kind": "cat",
		"b": 1}, {"a": 20, "kind": "dog", "b": 2}]`), &found))
	assert.Equal(t, want, found)
	err = p.Predict(t.Context(), JSON(`{"a": 10, "kind": "cow", "b": 1}`), &found)
	require.ErrorIs(t, err, ErrInput)
	require.ErrorContains(t, err, `"cow"`)
}

// The memory stays flat over a million predictions and a thousand swaps. Garbage of Go, and stacks that its profiler
// records, would hide slow growth. The budget is for new threads of Go, in each of which malloc and TensorFlow keep about
// 0.4 MiB.
//
//lane:run soak
func TestMemoryOfPredictionsAndSwaps(t *testing.T) {
	if os.Getenv("STEADYFIT_TEST_SOAK") == "" {
		t.Skip("takes minutes: set STEADYFIT_TEST_SOAK")
	}
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 0
	_, images := digits(t)
	dir, answers := versions(t, 2, images[0])
	p := open(t, dir, Options{Batch: 8})
	away := filepath.Join(t.TempDir(), "2")
	sampler, err := memory.NewSampler(0)
	require.NoError(t, err)
	defer sampler.Close()
	var series memory.Series
	var sample memory.Sample
	for step := range 1000 {
		from, to := filepath.Join(dir, "2"), away
		if step%2 == 0 {
			from, to = to, from
		}
		if step > 0 {
			require.NoError(t, os.Rename(from, to))
		}
		require.NoError(t, p.Refresh(t.Context()))
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				var one answer
				for range 125 {
					if err := p.Predict(t.Context(), &images[0], &one); err != nil || answers[one.Probabilities[0]] == 0 {
						t.Errorf("%v, answer of version %d", err, answers[one.Probabilities[0]])
						return
					}
				}
			})
		}
		group.Wait()
		debug.FreeOSMemory()
		require.NoError(t, sampler.Sample(step, &sample))
		series.Append(&sample)
	}
	verdict := series.Judge(memory.Criteria{Budget: 512})
	t.Logf("memory: %v, slope %+v", verdict, verdict.Slope)
	assert.NotEqual(t, memory.Leak, verdict.Kind)
}

// Adapters share one model. Each call gets the weights of its adapter, also if the calls of others run in between.
func TestPredictsWithAdapters(t *testing.T) {
	dir := filepath.Join("..", "savedmodels", "testdata", "keras")
	model, err := savedmodels.Open(dir)
	require.NoError(t, err)
	s, err := session.OpenModel(t.Context(), model, session.Options{})
	require.NoError(t, err)
	defer s.Close()
	type row struct{ X [3]float32 }
	type result struct{ Y float32 }
	in := row{[3]float32{1, -2, 3}}
	p := open(t, dir, Options{Parallel: 1, Batch: 4})
	adapters, want := []*session.Adapter{nil}, make([]result, 4)
	require.NoError(t, p.Predict(t.Context(), &in, &want[0]))
	step, err := s.Prepare(model.Roles.Predict)
	require.NoError(t, err)
	defer step.Close()
	out := make([]float64, len(s.TrainMetrics()))
	for i := 1; i < len(want); i++ {
		b := data.Batch{Size: 1, Fields: []data.Field{{Name: "x", Array: data.Array{Shape: []int{1, 3}, Values: in.X[:]}},
			{Name: "y", Array: data.Array{Shape: []int{1, 1}, Values: []float32{float32(i)}}}}}
		require.NoError(t, s.Train(t.Context(), int64(i-1), b, out))
		b.Fields = b.Fields[:1]
		require.NoError(t, step.Feed(b))
		require.NoError(t, step.Run(t.Context()))
		var y data.Array
		require.NoError(t, step.Read("y", &y))
		want[i].Y = y.Values.([]float32)[0]
		assert.NotEqual(t, want[i-1], want[i])
		a, err := s.Adapter(t.Context())
		require.NoError(t, err)
		adapters = append(adapters, a)
	}
	var group sync.WaitGroup
	for i, a := range adapters {
		for range 2 {
			group.Go(func() {
				for range 20 {
					var found result
					assert.NoError(t, p.PredictWith(t.Context(), a, &in, &found))
					assert.InDelta(t, want[i].Y, found.Y, 1e-5, i)
				}
			})
		}
	}
	group.Wait()
	wrong := &session.Adapter{Base: "another"}
	require.ErrorIs(t, p.PredictWith(t.Context(), wrong, &in, new(result)), session.ErrMismatch)
	require.NoError(t, p.Predict(t.Context(), &in, &want[1]))
	assert.Equal(t, want[0], want[1], "the weights are still those of a call")
	require.ErrorContains(t, open(t, dir, Options{Parallel: 2}).PredictWith(t.Context(), wrong, &in, new(result)), "Options.Parallel")
}
