package data

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"weak"

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

// held returns the number of buffers of passes in progress, and of the ring that the next pass will
// use.
func held(d *Prefetched) (busy, idle int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.rings {
		busy += len(r.slabs)
	}
	if d.idle != nil {
		idle = len(d.idle.slabs)
	}
	return busy, idle
}

// wide returns a dataset whose batches are large enough for separate allocations, so that a weak
// pointer shows when one is freed.
func wide(t *testing.T, n int) *InMemory {
	t.Helper()
	m, err := New("wide", Field{"x", Array{[]int{n, 1000}, make([]int32, 1000*n)}})
	require.NoError(t, err)
	return m
}

type buffers map[weak.Pointer[int32]]bool

func (s buffers) add(b Batch) { s[weak.Make(&b.Fields[0].Values.([]int32)[0])] = true }

// alive returns the number of buffers that a garbage collection does not free.
func (s buffers) alive() int {
	runtime.GC()
	n := 0
	for p := range s {
		if p.Value() != nil {
			n++
		}
	}
	return n
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
	require.Equal(t, describe(m), describe(Prefetch(m, 1)))
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
				// A pass that began without reading ahead never reads ahead.
				ds.SetAhead(2)
				synctest.Wait()
				require.Equal(t, taken, s.drawn)
				require.Same(t, &s.value[0], &b.Fields[0].Values.([]int32)[0])
				busy, idle := held(ds)
				require.Zero(t, busy+idle)
			}
			require.Equal(t, 5, taken)
			for range ds.Batches(Pass{Batch: 1}) {
				synctest.Wait()
				require.Equal(t, taken+4, s.drawn, "the next pass reads ahead")
				break
			}
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

// SetAhead does not change the batches of a pass.
func TestSetAheadKeepsOrder(t *testing.T) {
	m := counted(t, 100).Shuffle(3)
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 0))
		ds := Prefetch(m, rng.IntN(6))
		for epoch := range 6 {
			p := Pass{Batch: 1 + rng.IntN(9), Epoch: epoch, Skip: rng.IntN(3)}
			if rng.IntN(2) == 0 {
				ds.SetAhead(rng.IntN(6))
			}
			var got []int64
			for b, err := range ds.Batches(p) {
				require.NoError(t, err)
				if rng.IntN(3) == 0 {
					ds.SetAhead(rng.IntN(8) - 1)
				}
				if rng.IntN(3) == 0 {
					runtime.Gosched()
				}
				got = append(got, b.Fields[1].Values.([]int64)...)
			}
			require.Equal(t, samples(t, m, p), got, "seed %d, epoch %d", seed, epoch)
			busy, idle := held(ds)
			require.Zero(t, busy)
			require.LessOrEqual(t, idle, ds.Ahead()+1)
		}
	}
	goleak.VerifyNone(t)
}

func TestSetAheadFromOtherGoroutines(t *testing.T) {
	m := counted(t, 200).Shuffle(3)
	ds := Prefetch(m, 3)
	var passes, setters sync.WaitGroup
	done := make(chan struct{})
	for seed := range uint64(2) {
		setters.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			for {
				select {
				case <-done:
					return
				default:
				}
				ds.SetAhead(rng.IntN(6))
				if n := ds.Ahead(); n < 0 || n > 5 {
					t.Errorf("%d ahead", n)
				}
				runtime.Gosched()
			}
		})
	}
	for range 3 {
		passes.Go(func() {
			for epoch := range 10 {
				p := Pass{Batch: 3, Epoch: epoch}
				if want, got := samples(t, m, p), samples(t, ds, p); !reflect.DeepEqual(want, got) {
					t.Errorf("epoch %d: %v, where %v was expected", epoch, got, want)
				}
			}
		})
	}
	passes.Wait()
	close(done)
	setters.Wait()
}

// If the source is faster than the consumer, all buffers are filled. This happens at once after the
// number of buffers is raised, and after enough batches are consumed if the number is lowered.
func TestSetAheadIsBounded(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			s := newSource(60)
			ahead := 1 + rng.IntN(5)
			ds := Prefetch(s, ahead)
			// loaded counts the batches that have had a buffer so far. The source has drawn one more
			// batch, which waits for a buffer.
			loaded := 0
			taken := 0
			for b, err := range ds.Batches(Pass{Batch: 1}) {
				require.NoError(t, err)
				value := b.Fields[0].Values.([]int32)
				require.EqualValues(t, taken, value[0])
				taken++
				for range 2 {
					synctest.Wait()
					loaded = min(s.n, max(loaded, taken+ahead))
					require.Equal(t, min(s.n, loaded+1), s.drawn, "%d ahead", ahead)
					busy, _ := held(ds)
					require.LessOrEqual(t, busy, max(loaded-taken, ahead)+1, "%d ahead", ahead)
					require.EqualValues(t, taken-1, value[0], "the consumer's batch was overwritten")
					if rng.IntN(4) == 0 {
						ahead = rng.IntN(7)
						ds.SetAhead(ahead)
						require.Equal(t, ahead, ds.Ahead())
					}
				}
			}
			require.Equal(t, 60, taken)
		})
	}
}

// A dropped buffer becomes garbage when the consumer has used its batches.
func TestSetAheadFreesBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := Prefetch(wide(t, 60), 6)
		seen := make(buffers)
		taken := 0
		for b, err := range ds.Batches(Pass{Batch: 1}) {
			require.NoError(t, err)
			seen.add(b)
			synctest.Wait()
			switch taken++; taken {
			case 10:
				require.Equal(t, 7, seen.alive())
				ds.SetAhead(2)
				require.Equal(t, 7, seen.alive(), "a batch is in each of them")
			case 12:
				require.Equal(t, 5, seen.alive())
			case 14:
				require.Equal(t, 3, seen.alive())
			case 20:
				require.Equal(t, 3, seen.alive())
				ds.SetAhead(0)
			case 22, 30:
				require.Equal(t, 1, seen.alive())
			case 31:
				ds.SetAhead(3)
			case 40:
				require.Equal(t, 4, seen.alive())
			}
		}
		require.Equal(t, 60, taken)
	})
}

// If the consumer is faster than the source, free buffers are dropped at once.
func TestSetAheadFreesWhatIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(3)
		s.slow = make(chan struct{})
		ds := Prefetch(s, 5)
		var pass sync.WaitGroup
		taken := 0
		pass.Go(func() {
			for range ds.Batches(Pass{Batch: 1}) {
				taken++
			}
		})
		var got []int
		for _, ahead := range []int{5, 3, 4, 1, 0} {
			synctest.Wait()
			ds.SetAhead(ahead)
			busy, _ := held(ds)
			got = append(got, busy)
		}
		close(s.slow)
		pass.Wait()
		require.Equal(t, []int{6, 4, 4, 2, 1}, got, "a buffer is made when there is a batch for it")
		require.Equal(t, 3, taken)
	})
}

// After SetAhead(0), a pass continues with one buffer, and the next pass reads nothing ahead.
func TestSetAheadToNone(t *testing.T) {
	for _, at := range []int{1, 5, 20} {
		synctest.Test(t, func(t *testing.T) {
			s := newSource(20)
			ds := Prefetch(s, 3)
			taken := 0
			for b, err := range ds.Batches(Pass{Batch: 1}) {
				require.NoError(t, err)
				require.Equal(t, taken, b.Index)
				if taken++; taken == at {
					ds.SetAhead(0)
				}
				synctest.Wait()
				if busy, _ := held(ds); taken > at+3 {
					require.Equal(t, 1, busy)
				}
			}
			require.Equal(t, 20, taken)
			require.True(t, s.ended)
			busy, idle := held(ds)
			require.Zero(t, busy+idle, "nothing is kept for a pass that needs nothing")
			s.drawn = 0
			for range ds.Batches(Pass{Batch: 1}) {
				synctest.Wait()
				require.Equal(t, 1, s.drawn)
				break
			}
		})
	}
	goleak.VerifyNone(t)
}

func TestSetAheadShrinksWhatIsKept(t *testing.T) {
	ds := Prefetch(wide(t, 20), 4)
	pass := func() buffers {
		seen := make(buffers)
		for b, err := range ds.Batches(Pass{Batch: 1}) {
			require.NoError(t, err)
			seen.add(b)
		}
		return seen
	}
	first := pass()
	require.Equal(t, 5, first.alive())
	ds.SetAhead(1)
	require.Equal(t, 2, first.alive())
	second := pass()
	require.Len(t, second, 2)
	for p := range second {
		require.Contains(t, first, p, "the next pass uses what was kept")
	}
	ds.SetAhead(3)
	require.Len(t, pass(), 4)
	ds.SetAhead(0)
	require.Zero(t, first.alive())
	runtime.KeepAlive(ds)
}

// batchBytes returns the size of the values in a batch of a pass.
func TestBatchBytes(t *testing.T) {
	var fields []Field
	for i, v := range []any{
		make([]float32, 10), make([]float64, 20), make([]int8, 30), make([]int16, 10), make([]int32, 10), make([]int64, 10),
		make([]uint8, 10), make([]uint16, 10), make([]uint32, 10), make([]uint64, 10), make([]bool, 10), make([]string, 10),
	} {
		fields = append(fields, Field{fmt.Sprint(i), Array{[]int{10, reflect.ValueOf(v).Len() / 10}, v}})
	}
	m, err := New("types", fields...)
	require.NoError(t, err)
	ds := Prefetch(m, 1)
	for _, batch := range []int{1, 4, 10, 11, math.MaxInt} {
		for b, err := range ds.Batches(Pass{Batch: batch}) {
			require.NoError(t, err)
			var held int64
			for _, f := range b.Fields {
				v := reflect.ValueOf(f.Values)
				held += int64(v.Len()) * int64(v.Type().Elem().Size())
			}
			require.Equal(t, held, ds.batchBytes(batch), "batches of %d", batch)
			break
		}
	}
	require.EqualValues(t, 4+16+3+2+4+8+1+2+4+8+1+16, ds.batchBytes(1))
	require.Zero(t, ds.batchBytes(0))
	require.Zero(t, ds.batchBytes(-1))
	for _, promised := range []FieldSpec{{Name: "x", Shape: nil, Type: "complex64"}, {Name: "x", Shape: []int{-1}, Type: "int32"}, {Name: "x", Shape: []int{1 << 61, 1}, Type: "float64"}} {
		s := newSource(3)
		s.promised = []FieldSpec{{Name: "y", Shape: nil, Type: "int32"}, promised}
		require.Zero(t, Prefetch(s, 1).batchBytes(1), "%v", promised)
	}
}

// With many batches ahead, workers wait until half of them are consumed. A pass must end for any
// number of batches, also when SetAhead crosses fewAhead.
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
					if epoch == 2 && n%20 == 10 {
						ds.SetAhead([]int{64, 9, 3, 64, 8, 1, 16}[n/20%7])
					}
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
			ds.SetAhead(good % 3)
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
	leave := func(ds *Prefetched, at, set int, how func()) {
		defer func() { _ = recover() }()
		taken := 0
		for _, err := range ds.Batches(Pass{Batch: 1}) {
			require.NoError(t, err)
			ds.SetAhead(set)
			if taken++; taken == at {
				how()
				return
			}
		}
	}
	for _, at := range []int{1, 2, 19, 20} {
		for _, set := range []int{2, 0, 1, 4} {
			for _, how := range []func(){func() {}, func() { panic("in the loop's body") }} {
				s := newSource(20)
				ds := Prefetch(s, 2)
				leave(ds, at, set, how)
				require.True(t, s.ended, "the goroutine still reads after the loop was left")
				goleak.VerifyNone(t)
				busy, idle := held(ds)
				require.Zero(t, busy)
				require.LessOrEqual(t, idle, set+1)
				if set > 0 {
					require.GreaterOrEqual(t, idle, min(set, 2)+1, "a buffer was lost")
				}
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
