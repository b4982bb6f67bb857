package data

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a dataset with one sample per batch. It counts the batches drawn from it, can fail at one
// batch, and can contradict its declared fields.
type source struct {
	n, failAt int
	promised  []FieldSpec
	slow      chan struct{} // if not nil, each batch waits for it
	value     []int32       // of the newest batch
	drawn     int
	ended     bool
}

var errSource = errors.New("disk on fire")

func (s *source) Name() string        { return "source" }
func (s *source) Len() int            { return s.n }
func (s *source) Fields() []FieldSpec { return s.promised }

func (s *source) Batches(p Pass) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		defer func() { s.ended = true }()
		s.value = make([]int32, 1)
		for i := range s.n {
			if s.slow != nil {
				<-s.slow
			}
			if i == s.failAt {
				yield(Batch{}, errSource)
				return
			}
			s.drawn++
			s.value[0] = int32(i)
			if !yield(Batch{Fields: []Field{{"x", Array{[]int{1}, s.value}}}, Size: 1, Index: i}, nil) {
				return
			}
		}
	}
}

func newSource(n int) *source {
	return &source{n: n, failAt: -1, promised: []FieldSpec{{Name: "x", Shape: nil, Type: "int32"}}}
}

// Without reading ahead, batches are neither read early nor copied.
func TestPrefetchOfNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{0, -1, math.MinInt} {
			s := newSource(5)
			ds := Prefetch(s, n)
			require.Zero(t, ds.Ahead())
			taken := 0
			for b, err := range ds.Batches(Pass{Batch: 1}) {
				require.NoError(t, err)
				taken++
				synctest.Wait()
				require.Equal(t, taken, s.drawn)
				require.Same(t, &s.value[0], &b.Fields[0].Values.([]int32)[0])
			}
			require.Equal(t, 5, taken)
		}
	})
}

// At any speed of the consumer, n batches are ready and at most one more is being read, in n+1
// buffers.
func TestPrefetchIsBounded(t *testing.T) {
	const n = 3
	synctest.Test(t, func(t *testing.T) {
		s := newSource(50)
		buffers := make(map[*int32]bool)
		taken := 0
		for b, err := range Prefetch(s, n).Batches(Pass{Batch: 1}) {
			require.NoError(t, err)
			value := b.Fields[0].Values.([]int32)
			require.EqualValues(t, taken, value[0])
			buffers[&value[0]] = true
			taken++
			synctest.Wait() // until the goroutine waits
			require.Equal(t, min(s.n, taken+n+1), s.drawn)
			require.EqualValues(t, taken-1, value[0], "the consumer's batch was overwritten")
		}
		require.Equal(t, 50, taken)
		require.Len(t, buffers, n+1)
	})
}

func TestPrefetchReusesBuffersOfThePassBefore(t *testing.T) {
	ds := Prefetch(newSource(5), 2)
	buffers := make(map[*int32]bool)
	for range 10 {
		for b, err := range ds.Batches(Pass{Batch: 1}) {
			require.NoError(t, err)
			buffers[&b.Fields[0].Values.([]int32)[0]] = true
		}
	}
	require.Len(t, buffers, 3)
}

// PassBytes returns the size of the values in the batches of a pass.
func TestPassBytes(t *testing.T) {
	var fields []Field
	for i, v := range []any{
		make([]float32, 10), make([]float64, 20), make([]int8, 30), make([]int16, 10), make([]int32, 10), make([]int64, 10),
		make([]uint8, 10), make([]uint16, 10), make([]uint32, 10), make([]uint64, 10), make([]bool, 10), make([]string, 10),
	} {
		fields = append(fields, Field{fmt.Sprint(i), Array{[]int{10, reflect.ValueOf(v).Len() / 10}, v}})
	}
	m := dataset(t, "types", fields...)
	ds := Prefetch(m, 1)
	for _, batch := range []int{1, 4, 10, 11, math.MaxInt} {
		for b, err := range ds.Batches(Pass{Batch: batch}) {
			require.NoError(t, err)
			var held int64
			for _, f := range b.Fields {
				v := reflect.ValueOf(f.Values)
				held += int64(v.Len()) * int64(v.Type().Elem().Size())
			}
			require.Equal(t, 2*held, ds.PassBytes(batch), "batches of %d", batch)
			break
		}
	}
	require.EqualValues(t, 2*(4+16+3+2+4+8+1+2+4+8+1+16), ds.PassBytes(1))
	require.Zero(t, ds.PassBytes(0))
	require.Zero(t, ds.PassBytes(-1))
	for _, promised := range []FieldSpec{{Name: "x", Shape: nil, Type: "complex64"},
		{Name: "x", Shape: []int{-1}, Type: "int32"}, {Name: "x", Shape: []int{1 << 61, 1}, Type: "float64"}} {
		s := newSource(3)
		s.promised = []FieldSpec{{Name: "y", Shape: nil, Type: "int32"}, promised}
		require.Zero(t, Prefetch(s, 1).PassBytes(1), "%v", promised)
	}
}

// With many batches ahead, workers wait until half of them are consumed. A pass must end for any
// number of batches.
func TestPrefetchComesToItsEnd(t *testing.T) {
	for _, ahead := range []int{1, 2, 3, 7, 64} {
		for _, wrap := range []func(Dataset) Dataset{
			func(ds Dataset) Dataset { return ds },
			func(ds Dataset) Dataset { return struct{ Dataset }{ds} }, // not an InMemory
		} {
			ds := Prefetch(wrap(counted(t, 500)), ahead)
			for epoch := range 3 {
				n := 0
				for b, err := range ds.Batches(Pass{Batch: 3, Epoch: epoch}) {
					require.NoError(t, err)
					require.Equal(t, n, b.Index)
					n++
				}
				require.Equal(t, 167, n, "%d ahead", ahead)
			}
		}
	}
}

func TestPrefetchDeliversErrorsInOrder(t *testing.T) {
	for _, n := range []int{1, 2, 30} {
		s := newSource(20)
		s.failAt = 10
		good := 0
		var failed error
		ds := Prefetch(s, n)
		for b, err := range ds.Batches(Pass{Batch: 1}) {
			require.NoError(t, failed, "nothing comes after an error")
			if err != nil {
				failed = err
				continue
			}
			require.Equal(t, good, b.Index)
			good++
		}
		require.Equal(t, 10, good)
		require.ErrorIs(t, failed, errSource)
	}
}

func TestPrefetchStopsWithItsConsumer(t *testing.T) {
	leave := func(ds *Prefetched, at int, how func()) {
		defer func() { _ = recover() }()
		taken := 0
		for _, err := range ds.Batches(Pass{Batch: 1}) {
			require.NoError(t, err)
			if taken++; taken == at {
				how()
				return
			}
		}
	}
	for _, at := range []int{1, 2, 19, 20} {
		for _, how := range []func(){func() {}, func() { panic("in the loop's body") }} {
			s := newSource(20)
			ds := Prefetch(s, 2)
			leave(ds, at, how)
			require.True(t, s.ended, "the goroutine still reads after the loop was left")
			goleak.VerifyNone(t)
			require.Len(t, ds.idle.next.slabs, 3)
			next := 0
			for b, err := range ds.Batches(Pass{Batch: 1}) {
				require.NoError(t, err)
				require.Equal(t, next, b.Index)
				require.EqualValues(t, next, b.Fields[0].Values.([]int32)[0])
				next++
			}
			require.Equal(t, 20, next)
		}
	}
}

func TestPrefetchChecksPromises(t *testing.T) {
	for name, promised := range map[string][]FieldSpec{
		"another type":    {{Name: "x", Shape: nil, Type: "float32"}},
		"another name":    {{Name: "z", Shape: nil, Type: "int32"}},
		"another shape":   {{Name: "x", Shape: []int{2}, Type: "int32"}},
		"another field":   {{Name: "x", Shape: nil, Type: "int32"}, {Name: "y", Shape: nil, Type: "int32"}},
		"no such type":    {{Name: "x", Shape: nil, Type: "complex64"}},
		"no such size":    {{Name: "x", Shape: []int{-1}, Type: "int32"}},
		"not addressable": {{Name: "x", Shape: []int{1 << 40, 1 << 40}, Type: "int32"}},
	} {
		s := newSource(3)
		s.promised = promised
		calls := 0
		for _, err := range Prefetch(s, 1).Batches(Pass{Batch: 1}) {
			require.Error(t, err, name)
			calls++
		}
		require.Equal(t, 1, calls, name)
	}
}
