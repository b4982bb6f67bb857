package fit

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"steadyfit/data"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/testkit"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// TestMain asserts that no goroutine and no native object is left.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if live := tfbind.Live(); live != (tfbind.Counts{}) && code == 0 {
			fmt.Fprintf(os.Stderr, "left behind: %+v\n", live)
			_ = pprof.Lookup("tfbind").WriteTo(os.Stderr, 1)
			code = 1
		}
		os.Exit(code)
	}))
}

// linear is a Session whose model is y = w·x + b, trained with momentum and some noise that depends
// on the step's number, like dropout. All operations have a fixed order, so that runs can be
// compared bit for bit.
type linear struct {
	Plain
	w, v  [3]float64 // w has the weights and the bias; v has their momentum
	rate  float64
	seed  string
	names []string
	// precision is part of the identity unless it is empty.
	precision string

	// If beside is true, checkpoints are written while steps run, from copies of this size.
	beside     bool
	size       int64
	noEvaluate bool
	quiet      bool      // do not allocate
	steps      []int64   // the step numbers of Train calls
	rates      []float64 // the rates that were set
	validated  int       // evaluation calls

	// These fields simulate failures.
	onTrain    func(step int64) error
	onEvaluate func() error
	onSave     func(prefix string) error
	lossAt     map[int64]float64 // losses by step, from 1
	valLoss    float64           // a NaN or infinite loss of Evaluate
}

func newLinear() *linear { return &linear{rate: 0.05, seed: "1", names: []string{"loss", "mae"}} }

// newBeside returns a session whose checkpoints are written while steps run.
func newBeside() *linear {
	l := newLinear()
	l.beside = true
	return l
}

// eachWay has a constructor of a session for each way of writing checkpoints: while training waits,
// and while steps run.
var eachWay = []func() *linear{newLinear, newBeside}

func (l *linear) TrainMetrics() []string { return l.names }

func (l *linear) EvaluateMetrics() []string {
	if l.noEvaluate {
		return nil
	}
	return []string{"loss", "mae"}
}

func (l *linear) forward(b data.Batch, gradient *[3]float64) (loss, mae float64) {
	x, _ := b.Field("x")
	y, _ := b.Field("y")
	xs, ys := x.Values.([]float32), y.Values.([]float32)
	for i := range b.Size {
		x0, x1 := float64(xs[2*i]), float64(xs[2*i+1])
		e := l.w[0]*x0 + l.w[1]*x1 + l.w[2] - float64(ys[i])
		loss += e * e / float64(b.Size)
		mae += math.Abs(e) / float64(b.Size)
		if gradient != nil {
			gradient[0] += 2 * e * x0 / float64(b.Size)
			gradient[1] += 2 * e * x1 / float64(b.Size)
			gradient[2] += 2 * e / float64(b.Size)
		}
	}
	return loss, mae
}

func (l *linear) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	if ctx.Err() != nil {
		return errors.New("the session's context was cancelled")
	}
	if l.onTrain != nil {
		if err := l.onTrain(step); err != nil {
			return err
		}
	}
	if !l.quiet {
		l.steps = append(l.steps, step)
	}
	var g [3]float64
	loss, mae := l.forward(b, &g)
	if v, ok := l.lossAt[step+1]; ok {
		loss = v
	}
	var source rand.PCG
	source.Seed(7, uint64(step))
	for i := range l.w {
		noise := float64(source.Uint64()>>40) / (1 << 40)
		l.v[i] = 0.9*l.v[i] - l.rate*(g[i]+noise)
		l.w[i] += l.v[i]
	}
	out[0] = loss
	if len(out) > 1 {
		out[1] = mae
	}
	if len(out) > 2 {
		out[2] = math.NaN()
	}
	return nil
}

func (l *linear) Evaluate(ctx context.Context, b data.Batch, out []float64) error {
	if ctx.Err() != nil {
		return errors.New("the session's context was cancelled")
	}
	l.validated++
	if l.onEvaluate != nil {
		if err := l.onEvaluate(); err != nil {
			return err
		}
	}
	out[0], out[1] = l.forward(b, nil)
	if l.valLoss != 0 {
		out[0] = l.valLoss
	}
	return nil
}

// Freeze returns a copy of the state if beside is set, and nil otherwise.
func (l *linear) Freeze(context.Context) (session.Frozen, error) {
	if !l.beside {
		return nil, nil
	}
	return &frozenLinear{linear{w: l.w, v: l.v, onSave: l.onSave, size: l.size}}, nil
}

type frozenLinear struct{ of linear }

func (f *frozenLinear) Bytes() int64             { return f.of.size }
func (f *frozenLinear) Save(prefix string) error { return f.of.Save(context.Background(), prefix) }
func (f *frozenLinear) Close() error             { return nil }

func (l *linear) Save(_ context.Context, prefix string) error {
	if l.onSave != nil {
		if err := l.onSave(prefix); err != nil {
			return err
		}
	}
	values, err := binary.Append(nil, binary.LittleEndian, [][3]float64{l.w, l.v})
	if err != nil {
		return err
	}
	if err := os.WriteFile(prefix+".data-00000-of-00001", values, 0o666); err != nil {
		return err
	}
	return os.WriteFile(prefix+".index", []byte("w v\n"), 0o666)
}

func (l *linear) Restore(_ context.Context, prefix string) error {
	if _, err := os.Stat(prefix + ".index"); err != nil {
		return err
	}
	values, err := os.ReadFile(prefix + ".data-00000-of-00001")
	if err != nil {
		return err
	}
	var both [2][3]float64
	if _, err := binary.Decode(values, binary.LittleEndian, &both); err != nil {
		return err
	}
	l.w, l.v = both[0], both[1]
	return nil
}

func (l *linear) SetLearningRate(rate float64) error {
	l.rate = rate
	l.rates = append(l.rates, rate)
	return nil
}

func (l *linear) Identity() map[string]string {
	id := map[string]string{"model": "linear", "seed": l.seed}
	if l.precision != "" {
		id["precision"] = l.precision
	}
	return id
}

// state returns the state that a resume must restore bit for bit.
func (l *linear) state() [2][3]uint64 {
	var bits [2][3]uint64
	for i := range l.w {
		bits[0][i], bits[1][i] = math.Float64bits(l.w[i]), math.Float64bits(l.v[i])
	}
	return bits
}

// samples returns a dataset of y = 2a - b + 1.
func samples(t testing.TB, n int) *data.InMemory {
	xs, ys := make([]float32, 0, 2*n), make([]float32, 0, n)
	source := rand.New(rand.NewPCG(3, uint64(n)))
	for range n {
		a, b := source.Float32(), source.Float32()
		xs, ys = append(xs, a, b), append(ys, 2*a-b+1)
	}
	ds, err := data.New(fmt.Sprintf("line%d", n),
		data.Field{Name: "x", Array: data.Array{Shape: []int{n, 2}, Values: xs}},
		data.Field{Name: "y", Array: data.Array{Shape: []int{n}, Values: ys}})
	require.NoError(t, err)
	return ds
}

// brokenData is a dataset that fails or ends after some batches.
type brokenData struct {
	data.Dataset
	after int
	err   error
}

func (d brokenData) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		for b, err := range d.Dataset.Batches(p) {
			if b.Index == d.after {
				if d.err != nil {
					yield(data.Batch{}, d.err)
				}
				return
			}
			if !yield(b, err) {
				return
			}
		}
	}
}

// clock is a clock that advances with each reading.
type clock struct {
	at   time.Time
	step time.Duration
}

func (c *clock) now() time.Time {
	c.at = c.at.Add(c.step)
	return c.at
}

// outcome is the part of a result that a resumed run shares with an uninterrupted one: the
// history without times and memory, and the model.
type outcome struct {
	History string
	Model   [2][3]uint64
}

func outcomeOf(t testing.TB, h *History, l *linear) outcome {
	var b strings.Builder
	for _, r := range h.Records {
		r.Seconds, r.SamplesPerSecond, r.StepsPerSecond, r.DataWait, r.CheckpointPause = 0, 0, 0, nil, 0
		r.Memory.RSS.OK, r.Memory.Anon.OK, r.Memory.File.OK, r.Memory.Peak.OK = false, false, false, false
		line, err := json.Marshal(r)
		require.NoError(t, err)
		b.Write(append(line, '\n'))
	}
	return outcome{b.String(), l.state()}
}

// tempDir returns a folder in memory if possible, since these tests sync thousands of files.
func tempDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "fit-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// names returns the names of the files in a folder, without the lock.
func names(t testing.TB, dir string) []string {
	return slices.DeleteFunc(testkit.FileNames(t, dir), func(name string) bool { return name == lockName })
}

func copyDir(t testing.TB, from string) string {
	to := tempDir(t)
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.MkdirAll(filepath.Join(to, relative), 0o777)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, relative), content, 0o666)
	})
	require.NoError(t, err)
	return to
}

// The names of files in a folder of checkpoints.
const (
	lockName  = ".lock"
	bestFile  = "best.json"
	stateFile = "state.json"
)

func checkpointName(step int64) string { return fmt.Sprintf("ckpt-%d", step) }

func readState(path string) (state savedState, err error) {
	text, err := os.ReadFile(filepath.Join(path, stateFile))
	if err == nil {
		_, err = checkpoint.Decode(text, &state)
	}
	return state, err
}

func verify(path string) (savedState, error) {
	found, err := checkpoint.List(filepath.Dir(path))
	for _, c := range found {
		if c.Path == path && c.Err != nil {
			return savedState{}, c.Err
		}
	}
	if err != nil {
		return savedState{}, err
	}
	return readState(path)
}

func checksum(text []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}

// complete runs a loop with more hooks, which must succeed.
func complete(t testing.TB, l *Loop, ds data.Dataset, hooks ...Hook) *History {
	t.Helper()
	l.Hook(hooks...)
	h, err := l.Run(t.Context(), ds)
	require.NoError(t, err)
	return h
}

// before returns a function linear.onTrain that calls f before a train step, counted from 0.
func before(step int64, f func()) func(int64) error {
	return func(at int64) error {
		if at == step {
			f()
		}
		return nil
	}
}

// failing returns a function linear.onTrain that returns an error at a train step, counted from 0.
func failing(step int64, err error) func(int64) error {
	return func(at int64) error {
		if at == step {
			return err
		}
		return nil
	}
}

// atStep returns a function Hook.Step that calls f after a train step, counted from 1.
func atStep(step int64, f func()) func(context.Context, *State) error {
	return func(_ context.Context, s *State) error {
		if s.Step == step {
			f()
		}
		return nil
	}
}

// stopAt returns a hook that stops the run after a train step.
func stopAt(step int64) Hook {
	return Hook{Name: "stop", Step: func(_ context.Context, s *State) error {
		if s.Step == step {
			s.Stop("enough")
		}
		return nil
	}}
}

// interrupt runs a loop until its context ends after a train step; 0 is none.
func interrupt(t testing.TB, l *Loop, ds data.Dataset, step int64) (*History, error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l.Hook(Hook{Name: "interrupt", Step: atStep(step, cancel), StepEvery: AnyStep})
	return l.Run(ctx, ds)
}

// listed returns the checkpoints of a folder.
func listed(t testing.TB, dir string) []checkpoint.Info {
	t.Helper()
	found, err := checkpoint.List(dir)
	require.NoError(t, err)
	return found
}

// contentOf returns the content of a file.
func contentOf(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return content
}
