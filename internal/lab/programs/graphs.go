package programs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/program"
	"steadyfit/tfbind"
)

func (b *run) identity(dtype dtype.DType) (s *tfbind.Session, in, out tfbind.Output) {
	s = b.graph(new(graphdef.Graph).Placeholder("x", dtype).Add("y", "Identity", graphdef.Attrs{"T": graphdef.Type(dtype)},
		"x"))
	xy := outputs(s, "x", "y")
	return s, xy[0], xy[1]
}

// constFloats is the number of values of 4 KiB.
const constFloats = 4 << 10 / 4

// newW5 adds a constant of 4 KiB and an Identity of it to the graph in each step.
func newW5(_ context.Context, b *run) *program.Loop {
	sealed := b.Choice("graph", "grow", "sealed") == "sealed"
	s := b.graph(new(graphdef.Graph))
	raw := make([]byte, constFloats*4)
	var out []tfbind.Output
	grow := func(n int) {
		binary.LittleEndian.PutUint32(raw, uint32(n)) // different constants
		id := strconv.Itoa(n)
		def := program.Must(new(graphdef.Graph).Constant("c"+id, dtype.Float32, raw, constFloats).
			Add("i"+id, "Identity", graphdef.Attrs{"T": graphdef.Type(dtype.Float32)}, "c"+id).Bytes())
		program.Check(s.Graph().Import(def, ""))
		out = outputs(s, "i"+id)
	}
	if sealed {
		grow(0)
	}
	return &program.Loop{Untrained: true, Step: func(ctx context.Context, n int) float64 {
		if !sealed {
			grow(n)
		}
		program.Check(program.Must(s.Run(ctx, nil, out)).Close())
		return 0
	}}
}

// fetchable is the number of outputs in W6, which fetches all nonempty sets of them.
const fetchable = 14

// newW6 fetches a different set of outputs in each step.
func newW6(_ context.Context, b *run) *program.Loop {
	fixed := b.Choice("fetches", "varying", "fixed") == "fixed"
	g := new(graphdef.Graph).Placeholder("x", dtype.Float32)
	names := []string{"x"}
	for i := range fetchable {
		names = append(names, "y"+strconv.Itoa(i))
		g.Add(names[i+1], "AddV2", graphdef.Attrs{"T": graphdef.Type(dtype.Float32)}, "x", "x")
	}
	s := b.graph(g)
	in := program.Must(tfbind.NewTensor(make([]float32, 16), 16))
	b.OnClose(in.Close)
	all := outputs(s, names...)
	// The sets are bit masks, in an order without a trend in their size.
	sets := rand.New(rand.NewPCG(uint64(b.Seed), 6)).Perm(1<<fetchable - 1)
	return &program.Loop{Untrained: true, Step: func(ctx context.Context, n int) float64 {
		which := 0
		if !fixed {
			which = n % len(sets)
		}
		var fetch []tfbind.Output
		for i, o := range all[1:] {
			if (sets[which]+1)&(1<<i) != 0 {
				fetch = append(fetch, o)
			}
		}
		program.Check(program.Must(s.Run(ctx, tfbind.Feeds{all[0]: in}, fetch)).Close())
		return 0
	}}
}

const (
	stringCount = 1000
	stringShort = 10
	stringLong  = 200
)

// newW12 passes string tensors through a graph and closes them.
func newW12(_ context.Context, b *run) *program.Loop {
	s, in, fetch := b.identity(dtype.String)
	var pool []string // more strings than in a tensor
	rng := rand.New(rand.NewPCG(uint64(b.Seed), 12))
	for range 2 * stringCount {
		n := stringShort + rng.IntN(stringLong-stringShort+1)
		pool = append(pool, strings.Repeat(string(rune('a'+rng.IntN(26))), n))
	}
	return &program.Loop{Untrained: true, Step: func(ctx context.Context, n int) float64 {
		from := n * 7 % stringCount
		values := pool[from : from+stringCount]
		x := program.Must(tfbind.NewTensor(values, stringCount))
		defer x.Close()
		out := program.Must(s.Run(ctx, tfbind.Feeds{in: x}, []tfbind.Output{fetch}))
		defer out.Close()
		if back := program.Must(out[0].Slice(nil)).([]string); !slices.Equal(back, values) {
			program.Check(errors.New("the strings of the output differ from those of the input"))
		}
		return 0
	}}
}

// All goroutines together create a burst, so that the size of a burst does not depend on the number
// of goroutines.
const (
	burstWorkers   = 8
	burstTensors   = 320
	burstSurvivors = 10            // one of this many tensors lives until the next burst
	burstSmall     = 64 << 10 / 4  // floats
	burstLarge     = 256 << 10 / 4 // floats
)

// burster creates and closes tensors on a thread of its own, because malloc has an arena per thread.
type burster struct {
	rng    *rand.Rand
	values []float32 // of the tensors
	kept   tensors   // the survivors of the last burst
	work   chan func()
}

// newW8 creates bursts of tensors on several threads and closes them out of order.
func newW8(_ context.Context, b *run) *program.Loop {
	n := b.Int("goroutines", burstWorkers)
	if n < 1 || n > 64 {
		program.Refuse(program.NotApplicable, "goroutines", strconv.Itoa(n), "expected 1 to 64")
	}
	var all []*burster
	for i := range n {
		w := &burster{rng: rand.New(rand.NewPCG(uint64(b.Seed), uint64(i))), values: make([]float32, burstLarge),
			work: make(chan func())}
		all = append(all, w)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			for burst := range w.work {
				burst()
			}
		}()
		b.OnClose(func() error {
			close(w.work)
			w.kept.close()
			return nil
		})
	}
	return &program.Loop{Untrained: true, Step: func(context.Context, int) float64 {
		others, errs := make([]tensors, n), make([]error, n)
		for i := range all {
			others[i] = all[(i+n-1)%n].kept // so that another thread frees the memory
		}
		var done sync.WaitGroup
		done.Add(n)
		for i, w := range all {
			w.work <- func() {
				defer done.Done()
				errs[i] = w.burst(burstTensors/n, others[i])
			}
		}
		done.Wait()
		program.Check(errors.Join(errs...))
		return 0
	}}
}

// burst creates tensors. Halfway it closes those of another burster, and at the end most of its
// own in random order.
func (w *burster) burst(count int, others tensors) (err error) {
	var mine tensors
	for i := range count {
		if i == count/2 {
			others.close()
		}
		n := burstSmall + w.rng.IntN(burstLarge-burstSmall+1)
		x, failed := tfbind.NewTensor(w.values[:n], int64(n))
		if failed != nil {
			err = fmt.Errorf("tensor %d of a burst: %w", i, failed)
			break
		}
		mine = append(mine, x)
	}
	w.rng.Shuffle(len(mine), func(a, b int) { mine[a], mine[b] = mine[b], mine[a] })
	keep := len(mine) / burstSurvivors
	w.kept = mine[:keep:keep]
	mine[keep:].close()
	return err
}
