package data

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"steadyfit/internal/dtype"
)

// Workers returns the dataset with n goroutines per pass.
func (m *InMemory) Workers(n int) *InMemory {
	v := m.view()
	v.workers = n
	return v
}

func copied(t testing.TB, ds Dataset, p Pass) []Batch {
	t.Helper()
	var all []Batch
	for b, err := range ds.Batches(p) {
		require.NoError(t, err)
		var fields []Field
		for _, f := range b.Fields {
			v, err := vectorOf(f.Values)
			require.NoError(t, err)
			same := makeVector(v.kind(), v.len())
			require.NoError(t, v.copyTo(same, 0, 0, v.len()))
			fields = append(fields, Field{f.Name, Array{slices.Clone(f.Shape), same.values(0, v.len())}})
		}
		all = append(all, Batch{Fields: fields, Size: b.Size, Index: b.Index})
	}
	return all
}

// inverted inverts the images in field x.
func inverted(t testing.TB, m *InMemory) *InMemory {
	t.Helper()
	m, err := mapField(m, "x", "invert", spec(m, "x").Shape, func(dst, src []uint8) {
		for i, v := range src {
			dst[i] = math.MaxUint8 - v
		}
	})
	require.NoError(t, err)
	return m
}

// pipeline returns a dataset of images that are decoded, inverted, scaled and shuffled.
func pipeline(t testing.TB, n int) *InMemory {
	t.Helper()
	m := opened(t, imageFolder(t, n), Options{Images: ImageOptions{Size: 8}})
	m, err := inverted(t, m).Scale("x", -1, 1)
	require.NoError(t, err)
	return m.Shuffle(5)
}

// The batches depend neither on the number of workers nor on the number of batches read ahead.
func TestStreamDoesNotDependOnWorkers(t *testing.T) {
	m := pipeline(t, 47)
	train, held := split(t, m, 0.7, 3)
	// The samples are small, so workers take several at a time.
	small, err := mapField(counted(t, 1000), "x", "spread", []int{2}, func(dst []float64, src []float32) {
		for i, v := range src {
			dst[i] = float64(v) / 7
		}
	})
	require.NoError(t, err)
	for name, ds := range map[string]*InMemory{"all": m, "train": train, "held": held, "small": small.Shuffle(2)} {
		for epoch := range 3 {
			for _, p := range []Pass{{Batch: 5, Epoch: epoch}, {Batch: 5, Epoch: epoch, Skip: 3, DropRemainder: true},
				{Batch: math.MaxInt, Epoch: epoch}, {Batch: 1, Epoch: epoch}} {
				if name == "small" && p.Batch == 1 {
					continue
				}
				want := copied(t, ds.Workers(1), p)
				for _, workers := range []int{1, 2, 7} {
					view := ds.Workers(workers)
					for _, ahead := range []int{0, 1, 3} {
						require.Equal(t, want, copied(t, Prefetch(view, ahead), p), "%s, %d workers, %d ahead, %+v", name, workers, ahead,
							p)
					}
				}
			}
		}
	}
}

// A pass that is resumed in another process has the same batches.
func TestResumeInTheMiddleOfAPass(t *testing.T) {
	dir := imageFolder(t, 31)
	open := func() *InMemory {
		m := opened(t, dir, Options{Images: ImageOptions{Size: 6}})
		return inverted(t, m).Shuffle(1)
	}
	whole := copied(t, Prefetch(open().Workers(2), 2), Pass{Batch: 4, Epoch: 2})
	for skip := range len(whole) + 1 {
		rest := copied(t, Prefetch(open().Workers(3), 1), Pass{Batch: 4, Epoch: 2, Skip: skip})
		require.Equal(t, whole[skip:], append([]Batch{}, rest...))
	}
}

// Workers fill all buffers of a pass and allocate no others, for any speed of the consumer.
func TestWorkersAreBounded(t *testing.T) {
	for _, workers := range []int{1, 2, 7} {
		for _, ahead := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				const batch = 8
				var made atomic.Int64
				wide := dataset(t, "wide", Field{"x", Array{[]int{20 * batch, 1000}, make([]int32, 20*batch*1000)}})
				m, err := mapField(wide, "x", "count", []int{500}, func(_ []uint8, _ []int32) { made.Add(1) })
				require.NoError(t, err)
				ds := Prefetch(m.Workers(workers), ahead)
				taken := 0
				for range ds.Batches(Pass{Batch: batch}) {
					taken++
					synctest.Wait() // until every worker waits
					require.EqualValues(t, min(20, taken+ahead)*batch, made.Load())
					require.Nil(t, ds.idle.next)
				}
				require.Equal(t, 20, taken)
				require.Len(t, ds.idle.next.slabs, ahead+1)
				// Each worker keeps one sample per function.
				require.Len(t, ds.idle.next.workers, workers)
				for _, h := range ds.idle.next.workers {
					require.Empty(t, h.state, "the samples of the function lie in memory already")
				}
			})
		}
	}
}

// The next pass reuses the memory for the samples between two functions: one sample per worker.
func TestScratchIsReused(t *testing.T) {
	m := pipeline(t, 12).Workers(3)
	ds := Prefetch(m, 2)
	for epoch := range 3 {
		copied(t, ds, Pass{Batch: 4, Epoch: epoch})
	}
	require.Len(t, ds.idle.next.workers, 3)
	for _, h := range ds.idle.next.workers {
		require.LessOrEqual(t, len(h.state), 3, "images, changed ones, and the memory for decoding")
		for _, state := range h.state {
			if v, ok := state.(vector); ok {
				require.Equal(t, 8*8*3, v.len())
			}
		}
	}
}

// broken is a maker that fails for some rows.
type broken struct {
	fromFiles
	rows []int
}

func (b broken) describe() string { return "broken" }

func (b broken) make(_ *scratch, dst vector, at, row int) error {
	if slices.Contains(b.rows, row) {
		return fmt.Errorf("sample %d: %w", row, errSource)
	}
	dst.(vec[float32])[at] = float32(row)
	return nil
}

// failing returns a dataset in which the given rows cannot be made.
func failing(t *testing.T, n int, rows ...int) *InMemory {
	t.Helper()
	m, at, err := counted(t, n).editable("x")
	require.NoError(t, err)
	m.columns[at] = column{name: "x", width: 1, kind: dtype.For[float32](), made: broken{rows: rows}}
	return m
}

// If several samples fail, the error of the first one in the pass is returned.
func TestFirstFailureCounts(t *testing.T) {
	for _, workers := range []int{1, 2, 7} {
		for _, ahead := range []int{0, 1, 5} {
			for range 20 {
				m := failing(t, 400, 399, 203, 231, 201, 202)
				good := 0
				var failed error
				for _, err := range Prefetch(m.Workers(workers), ahead).Batches(Pass{Batch: 40}) {
					require.NoError(t, failed)
					if failed = err; err == nil {
						good++
					}
				}
				require.Equal(t, 5, good)
				require.ErrorIs(t, failed, errSource)
				require.EqualError(t, failed, "sample 201: disk on fire")
			}
		}
	}
	goleak.VerifyNone(t)
}

// Goroutines end with the pass: at its end, after an error, and when the consumer leaves the loop.
func TestWorkersEnd(t *testing.T) {
	sound := failing(t, 100)
	for _, ahead := range []int{0, 1, 4} {
		ds := Prefetch(sound.Workers(5), ahead)
		copied(t, ds, Pass{Batch: 7})
		goleak.VerifyNone(t)
		for range ds.Batches(Pass{Batch: 7}) {
			break
		}
		goleak.VerifyNone(t)
		for range Prefetch(failing(t, 100, 20).Workers(5), ahead).Batches(Pass{Batch: 7}) {
		}
		goleak.VerifyNone(t)
		next, stop := iter.Pull2(ds.Batches(Pass{Batch: 7}))
		_, _, ok := next()
		require.True(t, ok)
		stop()
		goleak.VerifyNone(t)
		// The next pass has all batches.
		require.Len(t, copied(t, ds, Pass{Batch: 7}), 15)
	}
}

func TestConcurrentPassesWithWorkers(t *testing.T) {
	m := pipeline(t, 20).Workers(3)
	ds := Prefetch(m, 2)
	var want [3][]Batch
	for epoch := range want {
		want[epoch] = copied(t, m, Pass{Batch: 4, Epoch: epoch})
	}
	var passes sync.WaitGroup
	for epoch := range want {
		for _, d := range []Dataset{m, ds} {
			passes.Go(func() {
				for b, err := range d.Batches(Pass{Batch: 4, Epoch: epoch}) {
					if err != nil || !slices.Equal(b.Fields[0].Values.([]float32), want[epoch][b.Index].Fields[0].Values.([]float32)) {
						t.Errorf("epoch %d, batch %d: another than alone, %v", epoch, b.Index, err)
					}
				}
			})
		}
	}
	passes.Wait()
}

func TestScale(t *testing.T) {
	values := make([]uint8, 256)
	for i := range values {
		values[i] = uint8(i)
	}
	m := dataset(t, "bytes", Field{"x", Array{[]int{256}, values}})
	for _, c := range [][2]float32{{0, 1}, {-1, 1}, {1, 0}} {
		scaled, err := m.Scale("x", c[0], c[1])
		require.NoError(t, err)
		got := copied(t, scaled, Pass{Batch: 256})[0].Fields[0].Values.([]float32)
		require.Equal(t, c[0], got[0])
		require.Equal(t, c[1], got[255])
		for i, v := range got {
			require.InDelta(t, c[0]+(c[1]-c[0])*float32(i)/255, v, 1e-6)
		}
	}
	unit, err := m.Scale("x", 0, 1)
	require.NoError(t, err)
	for i, v := range copied(t, unit, Pass{Batch: 256})[0].Fields[0].Values.([]float32) {
		require.Equal(t, float32(i)/255, v, "as NumPy divides float32")
	}
	_, err = unit.Scale("x", 0, 1)
	require.ErrorContains(t, err, "scale 0,1 takes elements of uint8")
	_, err = m.Scale("z", 0, 1)
	require.ErrorIs(t, err, ErrField)
	_, err = m.Scale("x", 0, float32(math.Inf(1)))
	require.ErrorContains(t, err, "finite")
}

// A check for finite floats reads the stored values, not the results of functions.
func TestCheckFiniteBeforeFunctions(t *testing.T) {
	x := make([]float32, 4*6*6)
	m := dataset(t, "set", Field{"x", Array{[]int{4, 6, 6}, x}})
	changed, err := mapField(m, "x", "zero", []int{6, 6}, func(dst, _ []float32) { clear(dst) })
	require.NoError(t, err)
	require.NoError(t, Check(changed, "", finite))
	x[2*36+7] = float32(math.NaN())
	require.EqualError(t, Check(changed.Shuffle(1), "", finite),
		"set: sample 2, column x[1,1]: found NaN, expected a finite number; fill the value in, or leave the sample out")
}
