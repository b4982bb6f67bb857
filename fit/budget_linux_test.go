package fit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/budget"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

const cannotSplit = "the batch cannot be split any further"

// heavyEnv makes the test binary run a training in a separate process. Its value is a heavyRun
// as JSON.
const heavyEnv = "STEADYFIT_TEST_HEAVY"

func init() {
	child(heavyEnv, func(r heavyRun) error { return r.train() })
}

// child calls run with the value of an environment variable and ends the process, if the variable is set.
func child[T any](variable string, run func(T) error) {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var argument T
	err := json.Unmarshal([]byte(text), &argument)
	if err == nil {
		err = run(argument)
	}
	if live := tfbind.Live(); err == nil && live != (tfbind.Counts{}) {
		err = fmt.Errorf("left behind: %+v", live)
		_ = pprof.Lookup("tfbind").WriteTo(os.Stderr, 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runChild starts a child process and decodes its output. It reads the RSS of the child every
// 10 ms.
func runChild(t *testing.T, variable string, argument, result any, env ...string) (peak memory.Bytes) {
	t.Helper()
	text, err := json.Marshal(argument)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), variable+"="+string(text)), env...)
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	require.NoError(t, cmd.Start())
	// The sampler is opened before Wait, after which another process may have the same PID.
	sampler, err := memory.NewSampler(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		require.NoError(t, errors.Join(err, cmd.Wait()), log.String())
	}
	defer sampler.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			require.NoError(t, err, log.String())
			require.NoError(t, json.Unmarshal([]byte(out.String()), result), out.String())
			return peak
		case <-tick.C:
			var sample memory.Sample
			if err := sampler.Sample(0, &sample); err == nil && sample.Get(memory.RSS).OK {
				peak = max(peak, sample.Get(memory.RSS).Bytes)
			}
		}
	}
}

// heavyRun is a training of images, digits or a dense model with large batches. No operation of the
// dense model crashes when memory runs out, unlike the gradient of max pooling.
type heavyRun struct {
	Small     bool
	Dense     bool
	Steps     int
	Budget    memory.Bytes
	OOM       bool
	Validates bool
	Ahead     int    // prefetched batches
	Dir       string // folder of checkpoints, from which it resumes
}

type heavyResult struct {
	Losses []float64
	Parts  int
	Ahead  int
	Events []string
	// Step is the median time of a step in the second half.
	Step time.Duration
	// Peak is the highest peak of the records.
	Peak memory.Bytes
	Err  string
	Need memory.Bytes
	// Opening is the peak of opening the model, from the error of the budget.
	Opening memory.Bytes
	Out     bool // out of memory
	Split   bool // batches were split as far as possible
}

const (
	heavyBatch = 32
	heavyEpoch = 4 // number of steps
)

func (r heavyRun) train() error {
	name, sample := "image-224", []int{224, 224, 3}
	batch := heavyBatch
	switch {
	case r.Small:
		name, sample = "digits", []int{64}
	case r.Dense:
		name, sample, batch = "dense-100-64-1", []int{100}, 1<<16
	}
	model, err := savedmodels.Builtin(name)
	if err != nil {
		return err
	}
	ds, err := randomSamples(2*batch, sample, r.Dense)
	if err != nil {
		return err
	}
	ctx := context.Background()
	s, err := compileAndOpen(ctx, model, session.Options{Seed: 1})
	if err != nil {
		return err
	}
	defer s.Close()
	var result heavyResult
	loop := &fit.Loop{Session: s, Batch: batch, Epochs: r.Steps / heavyEpoch, StepsPerEpoch: heavyEpoch}
	if r.Validates {
		loop.Validation = ds
	}
	if r.Dir != "" {
		loop.Hook(fit.Checkpoint{Folder: r.Dir}.Hook())
		loop.Resume = r.Dir
	}
	train := data.Prefetch(ds, r.Ahead)
	var times []time.Duration
	last := time.Now()
	loop.Hook(fit.Hook{Name: "losses", Step: func(_ context.Context, st *fit.State) error {
		result.Losses = append(result.Losses, st.Values[0])
		times = append(times, time.Since(last))
		last = time.Now()
		return nil
	}})
	if r.Budget > 0 {
		b := &budget.Budget{Limit: r.Budget, Batch: heavyBatch}
		loop.Hook(b.Hook(s))
	}
	if r.OOM {
		loop.Recover = budget.OnOutOfMemory(s, batch)
	}
	h, err := loop.Run(ctx, train)
	for _, record := range h.Records {
		result.Events = append(result.Events, record.Events...)
		result.Peak = max(result.Peak, record.Memory.Peak.Bytes)
	}
	result.Parts, result.Ahead = s.MicroBatches(), train.Ahead()
	if times = times[len(times)/2:]; len(times) > 0 {
		slices.Sort(times)
		result.Step = times[len(times)/2]
	}
	if err != nil {
		result.Err = err.Error()
		result.Out, result.Split = errors.Is(err, session.ErrOutOfMemory), strings.Contains(err.Error(), cannotSplit)
		if budget := (*budget.Error)(nil); errors.As(err, &budget) {
			result.Need, result.Opening = budget.Need, budget.Opening
		}
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// randomSamples returns n samples of a shape. Their labels are numbers, or one of ten classes.
func randomSamples(n int, shape []int, numbers bool) (*data.InMemory, error) {
	elements := 1
	for _, d := range shape {
		elements *= d
	}
	random := rand.New(rand.NewPCG(1, 2))
	x, labels, classes := make([]float32, n*elements), make([]float32, n), make([]int64, n)
	for i := range x {
		x[i] = random.Float32()
	}
	for i := range labels {
		labels[i], classes[i] = x[i*elements], int64(10*x[i*elements])
	}
	y := data.Array{Shape: []int{n}, Values: classes}
	if numbers {
		y = data.Array{Shape: []int{n, 1}, Values: labels}
	}
	return data.New("samples", data.Field{Name: "x", Array: data.Array{Shape: append([]int{n}, shape...), Values: x}},
		data.Field{Name: "y", Array: y})
}

// inChild runs the training in a child process and reads its RSS every 10 ms.
func (r heavyRun) inChild(t *testing.T, env ...string) (result heavyResult, peak memory.Bytes) {
	t.Helper()
	if instrumented {
		t.Skip("memory that this build keeps of its own would be in the figures; the tests without race " +
			"have this one")
	}
	peak = runChild(t, heavyEnv, r, &result, env...)
	return result, peak
}

// budgetRunsEnv is the variable with the number of runs of TestBudgetIsKept, each with and without a
// budget; the default is 1.
const budgetRunsEnv = "STEADYFIT_TEST_BUDGET_RUNS"

// A training keeps a budget of 70% of the memory that it takes without one, and has the losses of
// whole batches.
//
//lane:run onednn
//lane:skip check (long)
func TestBudgetIsKept(t *testing.T) {
	const steps = 16
	runs := 1
	if text := os.Getenv(budgetRunsEnv); text != "" {
		var err error
		runs, err = strconv.Atoi(text)
		require.NoError(t, err, budgetRunsEnv)
	}
	var plain, have heavyResult
	var peak, limit, most memory.Bytes
	for range runs {
		plain, peak = heavyRun{Steps: steps}.inChild(t)
		require.Empty(t, plain.Err)
		require.Len(t, plain.Losses, steps)
		limit = max(peak, plain.Peak) * 7 / 10
		have, most = heavyRun{Steps: steps, Budget: limit}.inChild(t)
		t.Logf("without a budget: peak %v, %v per step; budget %v: peak %v, %v per step, %d parts, events %v", peak,
			plain.Step, limit, most, have.Step, have.Parts, have.Events)
		require.Empty(t, have.Err)
		assert.LessOrEqual(t, most, limit)
		assert.Greater(t, have.Parts, 1)
		assert.Empty(t, have.Events)
		assert.InEpsilonSlice(t, plain.Losses, have.Losses, 1e-3)
		// Readings by another process may miss the peak, above all on a busy machine.
		assert.LessOrEqual(t, have.Peak, limit)
		assert.LessOrEqual(t, most, have.Peak+limit/20)
	}
}

// A budget is also kept with checkpoints, validations and prefetched batches, and in a resumed run.
//
//lane:skip check (long)
//lane:skip onednn (TestBudgetIsKept runs there)
func TestBudgetIsKeptWithCheckpoints(t *testing.T) {
	const steps = 16
	plain, peak := heavyRun{Steps: steps}.inChild(t)
	require.Empty(t, plain.Err)
	limit := max(peak, plain.Peak) * 9 / 10
	full := heavyRun{Steps: steps, Budget: limit, Validates: true, Ahead: 4, Dir: t.TempDir()}
	have, most := full.inChild(t)
	t.Logf("with validations, checkpoints and batches read ahead: %v, %d parts, %d ahead, events %v", most, have.Parts,
		have.Ahead, have.Events)
	require.Empty(t, have.Err)
	assert.LessOrEqual(t, most, limit)
	assert.NotContains(t, have.Events, "over_budget")
	assert.NotContains(t, have.Events, "reset")
	assert.InEpsilonSlice(t, plain.Losses, have.Losses, 1e-3)
	// The resumed run uses the chosen plan.
	full.Steps += heavyEpoch
	more, most := full.inChild(t)
	require.Empty(t, more.Err)
	assert.Len(t, more.Losses, heavyEpoch)
	assert.LessOrEqual(t, most, limit)
	assert.Equal(t, have.Parts, more.Parts)
	assert.Equal(t, have.Ahead, more.Ahead)
}

// The error of a budget that cannot be kept has a limit that is sufficient for the steps, and not far above
// what they use. Opening TensorFlow takes more than the steps of a small model.
//
//lane:run onednn
//lane:skip check (long)
func TestBudgetThatCannotBeKept(t *testing.T) {
	for _, c := range []struct {
		name  string
		small bool
		steps int
		limit memory.Bytes
	}{{"digits", true, 40, 50 * memory.MiB}, {"image-224", false, 12, 200 * memory.MiB}} {
		t.Run(c.name, func(t *testing.T) {
			have, _ := heavyRun{Small: c.small, Steps: 8, Budget: c.limit}.inChild(t)
			require.Contains(t, have.Err, "cannot be kept")
			require.Greater(t, have.Need, c.limit)
			need, opening := have.Need, have.Opening
			have, most := heavyRun{Small: c.small, Steps: c.steps, Budget: need}.inChild(t)
			t.Logf("with %v: %v, %v in records, %d parts, events %v", need, most, have.Peak, have.Parts, have.Events)
			require.Empty(t, have.Err)
			assert.Less(t, need, 3*have.Peak/2, "a limit far above the memory that is then used is no advice")
			assert.LessOrEqual(t, most, max(need, opening*11/10)) // the peak of opening TensorFlow depends on the page cache
			if c.small {
				assert.Less(t, need, opening)
			}
			assert.NotContains(t, have.Events, "over_budget")
		})
	}
}

// After the search, a stopped and resumed run equals an uninterrupted one bit for bit.
//
//lane:run onednn
//lane:skip check (long)
func TestBudgetIsResumedBitForBit(t *testing.T) {
	have, _ := heavyRun{Small: true, Steps: 8, Budget: 50 * memory.MiB}.inChild(t)
	require.NotZero(t, have.Need)
	first := heavyRun{Small: true, Steps: 32, Budget: have.Need + 8*memory.MiB, Dir: t.TempDir()}
	chosen, _ := first.inChild(t)
	require.Empty(t, chosen.Err)
	once, twice := first, first
	twice.Dir = filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.CopyFS(twice.Dir, os.DirFS(first.Dir)))

	once.Steps = 48
	want, _ := once.inChild(t)
	require.Empty(t, want.Err)
	require.Len(t, want.Losses, 16)
	assert.Equal(t, chosen.Parts, want.Parts)
	var losses []float64
	for _, steps := range []int{40, 48} {
		twice.Steps = steps
		part, _ := twice.inChild(t)
		require.Empty(t, part.Err)
		assert.Equal(t, chosen.Parts, part.Parts)
		losses = append(losses, part.Losses...)
	}
	assert.Equal(t, want.Losses, losses)
	t.Logf("%d parts", chosen.Parts)
}

// With oneDNN's pool capped below the memory of a step, the batch is split until it fits, and
// the run continues from the state before the step. TensorFlow waits 10 s for memory before it
// reports the error.
//
//lane:skip check (long)
//lane:skip onednn (sets oneDNN itself)
func TestOutOfMemoryIsSplit(t *testing.T) {
	const steps = 4
	const pool, limit = "TF_ENABLE_ONEDNN_OPTS=1", "TF_MKL_ALLOC_MAX_BYTES=40000000"
	plain, _ := heavyRun{Dense: true, Steps: steps}.inChild(t, pool)
	have, _ := heavyRun{Dense: true, Steps: steps, OOM: true}.inChild(t, pool, limit)
	require.Empty(t, have.Err)
	assert.Greater(t, have.Parts, 1)
	assert.Contains(t, have.Events, "oom")
	assert.InEpsilonSlice(t, plain.Losses, have.Losses, 1e-3)
}

//lane:skip check (long)
func TestOutOfMemoryIsDecided(t *testing.T) {
	model, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	s, err := compileAndOpen(t.Context(), model, session.Options{})
	require.NoError(t, err)
	defer s.Close()
	decide := budget.OnOutOfMemory(s, 3).Decide
	other := errors.New("something else")
	_, err = decide(t.Context(), nil, other)
	assert.Equal(t, other, err)
	for _, parts := range []int{2, 3} {
		event, err := decide(t.Context(), nil, fmt.Errorf("step 1: %w", session.ErrOutOfMemory))
		require.NoError(t, err)
		assert.Equal(t, "oom", event)
		assert.Equal(t, parts, s.MicroBatches())
	}
	_, err = decide(t.Context(), nil, session.ErrOutOfMemory)
	assert.ErrorContains(t, err, cannotSplit)
	assert.ErrorIs(t, err, session.ErrOutOfMemory)

	recovery := budget.OnOutOfMemory(s, 3)
	state, err := recovery.Save()
	require.NoError(t, err)
	require.NoError(t, s.SetMicroBatches(1))
	none, err := recovery.Save()
	require.NoError(t, err)
	assert.Nil(t, none)
	require.NoError(t, recovery.Load(state))
	assert.Equal(t, 3, s.MicroBatches())
	assert.Error(t, recovery.Load(json.RawMessage(`[]`)))
}

// After two crashes due to lack of memory, a run begins with four times as many micro-batches,
// and its checkpoints store that number.
//
//lane:skip check (long)
func TestOutOfMemorySplitsAfterCrashes(t *testing.T) {
	model, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	digits, _, err := data.Builtin("digits")
	require.NoError(t, err)
	dir := t.TempDir()
	run := func(epochs, deaths int) (parts int, events []string, err error) {
		s, err := compileAndOpen(t.Context(), model, session.Options{})
		require.NoError(t, err)
		defer s.Close()
		loop := &fit.Loop{Session: s, Batch: 6, Epochs: epochs, StepsPerEpoch: 2, Resume: dir,
			Recover: budget.OnOutOfMemory(s, 6)}
		loop.Hook(budget.SplitAfterCrashes(s, 6, deaths), fit.Checkpoint{Folder: dir}.Hook())
		h, err := loop.Run(t.Context(), digits)
		for _, r := range h.Records {
			events = append(events, r.Events...)
		}
		return s.MicroBatches(), events, err
	}
	parts, events, err := run(1, 2)
	require.NoError(t, err)
	assert.Equal(t, 4, parts)
	assert.Contains(t, events, "oom")
	parts, _, err = run(2, 0)
	require.NoError(t, err)
	assert.Equal(t, 4, parts)
	parts, _, err = run(3, 1)
	require.NoError(t, err)
	assert.Equal(t, 6, parts, "a part has one sample at least")
	parts, _, err = run(4, 1)
	require.NoError(t, err)
	assert.Equal(t, 6, parts)
}

func compileAndOpen(ctx context.Context, model *savedmodels.Model, o session.Options) (*session.Session, error) {
	plan, err := session.Compile(model, o)
	if err != nil {
		return nil, err
	}
	return session.Open(ctx, plan)
}
