package data

import (
	"errors"
	"iter"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is a dataset of one sample per batch that counts what was drawn from
// it, fails at one batch, and may promise something else than it gives.
type source struct {
	n, failAt int
	promised  []FieldSpec
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
		value := make([]int32, 1)
		for i := range s.n {
			if i == s.failAt {
				yield(Batch{}, errSource)
				return
			}
			s.drawn++
			value[0] = int32(i)
			if !yield(Batch{Fields: []Field{{"x", Array{[]int{1}, value}}}, Size: 1, Index: i}, nil) {
				return
			}
		}
	}
}

func newSource(n int) *source {
	return &source{n: n, failAt: -1, promised: []FieldSpec{{"x", nil, "int32"}}}
}

func TestPrefetchKeepsOrder(t *testing.T) {
	m := counted(t, 100).Shuffle(3)
	for _, n := range []int{-1, 0, 1, 2, 50} {
		ds := Prefetch(m, n)
		for epoch := range 3 {
			p := Pass{Batch: 7, Epoch: epoch}
			require.Equal(t, samples(t, m, p), samples(t, ds, p))
		}
	}
	require.Same(t, m, Prefetch(m, 0))
	require.Equal(t, Describe(m), Describe(Prefetch(m, 1)))
}

// However long the consumer takes, n batches are ready, one more is on its way
// at most, and all of them lie in n+1 buffers.
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
			synctest.Wait() // until the goroutine can get no further
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

func TestPrefetchDeliversErrorsInOrder(t *testing.T) {
	for _, n := range []int{1, 2, 30} {
		s := newSource(20)
		s.failAt = 10
		good := 0
		var failed error
		for b, err := range Prefetch(s, n).Batches(Pass{Batch: 1}) {
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
	leave := func(s *source, at int, how func()) {
		defer func() { _ = recover() }()
		taken := 0
		for _, err := range Prefetch(s, 2).Batches(Pass{Batch: 1}) {
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
			leave(s, at, how)
			require.True(t, s.ended, "the goroutine still reads after the loop was left")
			goleak.VerifyNone(t)
		}
	}
}

func TestPrefetchChecksPromises(t *testing.T) {
	for name, promised := range map[string][]FieldSpec{
		"another type":    {{"x", nil, "float32"}},
		"another name":    {{"z", nil, "int32"}},
		"another shape":   {{"x", []int{2}, "int32"}},
		"another field":   {{"x", nil, "int32"}, {"y", nil, "int32"}},
		"no such type":    {{"x", nil, "complex64"}},
		"no such size":    {{"x", []int{-1}, "int32"}},
		"not addressable": {{"x", []int{1 << 40, 1 << 40}, "int32"}},
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
