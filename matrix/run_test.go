package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/matrix/cell"
	"steadyfit/memory"
)

// The test binary is the children of its own matrix: they need no TensorFlow, so
// that what the parent does with every kind of child can be tested fast.
func TestMain(m *testing.M) {
	if os.Getenv(cell.Env) != "" {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

const leakedPerStep = 64 << 10

var keep [][]byte

// allocate takes memory that the Go heap does not have, as a native library does.
func allocate(size int) []byte {
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	for i := 0; i < size; i += os.Getpagesize() {
		b[i] = 1
	}
	return b
}

func child() int {
	c, err := cell.Start()
	if err != nil {
		os.Stderr.WriteString(err.Error())
		return 2
	}
	defer c.Close()
	fail := func(err error) int {
		os.Stderr.WriteString("child: " + err.Error())
		return 1
	}
	release := c.Knob("release", "keep")
	if err := errors.Join(c.Fact("tensorflow", "none"), c.Fact("limit", os.Getenv("TEST_LIMIT")), c.Phase(cell.PhaseStart)); err != nil {
		return fail(err)
	}
	for step := c.Spec.From + 1; step <= c.Spec.Steps; step++ {
		switch c.Spec.Workload {
		case "leak":
			if release == "keep" {
				keep = append(keep, allocate(leakedPerStep))
			}
		case "killed":
			if step == c.Spec.Steps/2 {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		case "aborts":
			os.Stderr.WriteString("F0000 check.cc:1] Check failed: x == y\nmore\n")
			syscall.Kill(os.Getpid(), syscall.SIGABRT)
		case "hangs":
			// Reads what is never written: an answer that nobody was asked for.
			os.NewFile(4, "").Read(make([]byte, 1))
		case "mute":
			return 0
		case "hog":
			keep = append(keep, allocate(8<<20))
		case "babbles":
			os.NewFile(3, "").WriteString("hello\n")
		case "handover":
			if step == c.Spec.Steps/2+1 && c.Spec.From == 0 {
				if err := c.Again(step - 1); err != nil {
					return fail(err)
				}
				return 0
			}
		case "exhausted":
			if err := c.Done(errors.New("OOM when allocating"), cell.OutOfMemory); err != nil {
				return fail(err)
			}
			return 0
		}
		if err := c.Step(step); err != nil {
			return fail(err)
		}
	}
	if err := c.Phase(cell.PhaseSteady); err != nil {
		return fail(err)
	}
	if c.Spec.Workload == "traced" {
		keep = append(keep, allocate(96<<20))
		err := c.Phase(cell.PhaseTraced,
			memory.Value{Layer: memory.TFPeak.Of("mklcpu"), Reading: memory.Known(4 << 20)},
			memory.Value{Layer: memory.TFPeak.Of("cpu"), Reading: memory.Reading{}},
			memory.Value{Layer: memory.TFPeak.Of("gpu_host_bfc"), Reading: memory.Known(1 << 20)},
			memory.Value{Layer: memory.TFPeak.Of("GPU_0_bfc"), Reading: memory.Known(7 << 20)})
		if err := errors.Join(err, c.Fact(cell.FactBFloat16, "3"), c.Fact(cell.FactFloat16, "0")); err != nil {
			return fail(err)
		}
	}
	if err := errors.Join(c.Phase(cell.PhaseClosed), c.Done(nil, "")); err != nil {
		return fail(err)
	}
	return 0
}

func workload(id string, leak int64) Workload {
	return Workload{ID: id, Steps: 48, Every: 1, Epoch: 8, Batch: 8, Budget: 1024, Leak: &leak,
		Takes: map[string][]string{Go: {"release"}}}
}

func plan(t *testing.T, workloads ...Workload) Plan {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	return Plan{Workloads: workloads, Runtimes: []string{Go}, Pairs: 2, Out: t.TempDir(), Timeout: 20 * time.Second,
		Commands: map[string]Command{Go: {Args: []string{program}, Identity: "test"}}}
}

func TestALeakIsFoundAndItsRemedyWorks(t *testing.T) {
	p := plan(t, workload("leak", leakedPerStep), workload("flat", 0))
	p.Remedies = []Remedy{
		{ID: "close", Goal: memory.LowerSlope, Knobs: map[string]string{"release": "close"}},
		{ID: "gc", Goal: memory.LowerSlope, Env: map[string]string{"GOGC": "20"}},
		{ID: "gpu", Goal: memory.LowerPeak, NeedsGPU: true},
		{ID: "fetch", Goal: memory.LowerPeak, Knobs: map[string]string{"fetches": "fixed"}},
	}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.True(t, r.Complete)
	effects := map[string]memory.Effect{}
	for _, c := range r.Cells {
		effects[c.Workload+"/"+c.Remedy] = c.Effect
	}
	assert.Equal(t, memory.Works, effects["leak/close"])
	assert.Contains(t, []memory.Effect{memory.NoEffect, memory.Unclear}, effects["leak/gc"])
	assert.Equal(t, memory.CouldNotApply, effects["leak/gpu"])
	assert.Equal(t, memory.NotApplicable, effects["leak/fetch"])
	require.Len(t, r.Calibration, 2)
	for _, c := range r.Calibration {
		assert.True(t, c.OK, c.Text)
	}
	assert.InEpsilon(t, leakedPerStep, r.Calibration[0].Slope.Estimate, 0.05)

	path := filepath.Join(p.Out, ResultFile)
	require.NoError(t, WriteFile(path, r))
	again, err := ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, r.Cells, again.Cells)
}

func TestPairsAreRunForthAndBack(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.defaults()
	p.Pairs, p.Group = 2, 2
	p.Remedies = []Remedy{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	jobs, _ := p.expand()
	var order []string
	for _, j := range jobs {
		order = append(order, j.remedy.ID+strconv.Itoa(j.pair))
	}
	assert.Equal(t, []string{"none0", "a0", "b0", "none0", "c0", "b1", "a1", "none1", "c1", "none1"}, order)
}

func TestACalibrationThatFailsIsSaid(t *testing.T) {
	p := plan(t, workload("leak", 2*leakedPerStep))
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.Len(t, r.Calibration, 1)
	assert.False(t, r.Calibration[0].OK)
	assert.Contains(t, r.Calibration[0].Text, "2 of 2 runs were wrong")
}

func TestChildrenThatDieAreResults(t *testing.T) {
	for id, want := range map[string]struct {
		failure cell.Failure
		cause   string
	}{
		"killed":    {cell.Failed, "killed by signal killed"},
		"aborts":    {cell.Failed, "Check failed: x == y"},
		"mute":      {cell.Failed, "ended without a result"},
		"hangs":     {cell.Failed, "nothing heard for"},
		"babbles":   {cell.Failed, "message of the child"},
		"exhausted": {cell.OutOfMemory, "OOM when allocating"},
	} {
		t.Run(id, func(t *testing.T) {
			p := plan(t, workload(id, 0))
			p.Pairs = 1
			if id == "hangs" {
				p.Timeout = 300 * time.Millisecond
			}
			r, err := Run(t.Context(), p)
			require.NoError(t, err)
			require.Len(t, r.Runs, 1)
			assert.Equal(t, want.failure, r.Runs[0].Failure)
			assert.Contains(t, r.Runs[0].Cause, want.cause)
			assert.Equal(t, memory.Crash, r.Runs[0].Outcome.Verdict.Kind)
			require.Len(t, r.Cells, 1)
			assert.Len(t, r.Cells[0].Crashes, 1)
		})
	}
}

func TestAMemoryLimitEndsAChild(t *testing.T) {
	w := workload("hog", 0)
	w.Limit = 128 << 20
	p := plan(t, w)
	p.Pairs = 1
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	run := r.Runs[0]
	require.NotEmpty(t, run.Failure, "48 steps of 8 MiB do not fit into 128 MiB")
	assert.Contains(t, run.Cause, "128.0 MiB")
}

func TestAnotherProcessGoesOnWithARun(t *testing.T) {
	p := plan(t, workload("handover", 0))
	p.Pairs = 1
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, r.Runs[0].Failure, r.Runs[0].Cause)
	assert.Equal(t, 48, r.Runs[0].Series.Total())
}

func TestSeveralRunsAtTheSameTime(t *testing.T) {
	p := plan(t, workload("leak", leakedPerStep), workload("flat", 0))
	p.Remedies = []Remedy{{ID: "release", Goal: memory.LowerSlope, Knobs: map[string]string{"release": "now"}}}
	p.Pairs, p.Jobs = 4, 3
	done := 0
	p.Progress = func(progress Progress) {
		if progress.Run.ID >= 0 {
			done++
			assert.Equal(t, done, progress.Done)
		}
	}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, 16, done)
	assert.Equal(t, 3, r.Settings.Jobs)
	for i, run := range r.Runs {
		assert.Equal(t, i, run.ID)
	}
	assert.Equal(t, memory.Works, r.Cells[1].Effect, r.Cells[1].Reason)
	for _, c := range r.Calibration {
		assert.True(t, c.OK, c.Text)
	}

	// The same in one after the other finds all of it done.
	var last Progress
	p.Jobs, p.Progress = 0, func(progress Progress) { last = progress }
	_, err = Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, 16, last.Reused)
}

// A file that may not grow any more is what a full disk looks like.
func TestADiskThatIsFull(t *testing.T) {
	p := plan(t, workload("leak", leakedPerStep), workload("flat", 0))
	var old syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old))
	p.Progress = func(progress Progress) {
		if progress.Done != 2 {
			return
		}
		info, err := os.Stat(filepath.Join(p.Out, RunsFile))
		require.NoError(t, err)
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(info.Size()) + 100, Max: old.Max}))
	}
	r, err := Run(t.Context(), p)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old))
	require.ErrorIs(t, err, syscall.EFBIG)
	require.ErrorContains(t, err, "what was measured before is kept")
	require.ErrorContains(t, err, RunsFile)
	assert.False(t, r.Complete)
	assert.Len(t, r.Runs, 2)

	var last Progress
	p.Progress = func(progress Progress) { last = progress }
	r, err = Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, 2, last.Reused)
	assert.True(t, r.Complete)
}

func TestAKnobThatTheChildDoesNotKnow(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.Workloads[0].Takes[Go] = []string{"shapes"} // says so, but the child has no such knob
	p.Remedies = []Remedy{{ID: "pad", Goal: memory.LowerSlope, Knobs: map[string]string{"shapes": "pad"}}}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, memory.NotApplicable, r.Cells[1].Effect)
	assert.Contains(t, r.Cells[1].Reason, "shapes=pad")
}

func TestAnInterruptedMatrixGoesOn(t *testing.T) {
	p := plan(t, workload("leak", leakedPerStep), workload("flat", 0))
	ctx, cancel := context.WithCancel(t.Context())
	p.Progress = func(progress Progress) {
		if progress.Done == 2 {
			cancel()
		}
	}
	r, err := Run(ctx, p)
	require.ErrorIs(t, err, context.Canceled)
	assert.False(t, r.Complete)
	assert.Len(t, r.Runs, 2, "what was measured is in the result")

	// A crash in the middle of a line.
	file, err := os.OpenFile(filepath.Join(p.Out, RunsFile), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(`{"id":3,"runtime":"g`)
	require.NoError(t, err)
	require.NoError(t, file.Close())

	var last Progress
	p.Progress = func(progress Progress) { last = progress }
	r, err = Run(t.Context(), p)
	require.NoError(t, err)
	assert.True(t, r.Complete)
	assert.Equal(t, 2, last.Reused)
	assert.Len(t, r.Runs, 4)

	p.Commands[Go] = Command{Args: p.Commands[Go].Args, Identity: "another build"}
	_, err = Run(t.Context(), p)
	require.NoError(t, err)
	assert.Zero(t, last.Reused, "what another build measured is not taken over")

	text, err := os.ReadFile(filepath.Join(p.Out, RunsFile))
	require.NoError(t, err)
	for line := range bytes.Lines(text) {
		assert.True(t, json.Valid(line))
	}
}

func TestAChildThatCannotStart(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.Commands[Go] = Command{Args: []string{filepath.Join(t.TempDir(), "absent")}}
	_, err := Run(t.Context(), p)
	require.ErrorContains(t, err, "cannot start")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestAnAllocatorThatIsMissing(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.Allocator = func(string) (string, error) { return "", errors.New("no libjemalloc.so.2") }
	p.Remedies = []Remedy{{ID: "jemalloc", Preload: "jemalloc"}}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, memory.CouldNotApply, r.Cells[1].Effect)
	assert.Contains(t, r.Cells[1].Reason, "no libjemalloc.so.2")
}

func TestAPreloadThatDidNotTake(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.Allocator = func(string) (string, error) { return "/absent/libjemalloc.so.2", nil }
	p.Remedies = []Remedy{{ID: "jemalloc", Preload: "jemalloc"}}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, memory.CouldNotApply, r.Cells[1].Effect)
	assert.Contains(t, r.Cells[1].Reason, "not among the mappings")
}

func TestAVariableThatTensorFlowDoesNotRead(t *testing.T) {
	library := filepath.Join(t.TempDir(), "libtensorflow.so")
	// The name lies across the end of what is read at once.
	content := append(bytes.Repeat([]byte{'x'}, 4<<20-3), "TF_READ\x00TF_LONGER_NAME\x00"...)
	require.NoError(t, os.WriteFile(library, content, 0o666))
	p := plan(t, workload("flat", 0))
	command := p.Commands[Go]
	command.Libraries = []string{library}
	p.Commands[Go] = command
	p.Remedies = []Remedy{
		{ID: "known", Env: map[string]string{"TF_READ": "1"}},
		{ID: "unknown", Env: map[string]string{"TF_LONGER": "1"}},
	}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.NotEqual(t, memory.CouldNotApply, r.Cells[1].Effect, r.Cells[1].Reason)
	assert.Equal(t, memory.CouldNotApply, r.Cells[2].Effect)
	assert.Contains(t, r.Cells[2].Reason, "does not read TF_LONGER")
}

func TestARewriteThatLeftNoTrace(t *testing.T) {
	p := plan(t, workload("traced", 0), workload("flat", 0))
	p.Remedies = []Remedy{
		{ID: "there", Knobs: map[string]string{"release": "a"}, Traced: map[string]bool{cell.FactBFloat16: true}},
		{ID: "not there", Knobs: map[string]string{"release": "b"}, Traced: map[string]bool{cell.FactFloat16: true}},
		{ID: "still there", Knobs: map[string]string{"release": "c"}, Traced: map[string]bool{cell.FactBFloat16: false}},
	}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	effects := map[string]memory.Effect{}
	reasons := map[string]string{}
	for _, c := range r.Cells {
		effects[c.Workload+"/"+c.Remedy], reasons[c.Workload+"/"+c.Remedy] = c.Effect, c.Reason
	}
	assert.NotEqual(t, memory.CouldNotApply, effects["traced/there"], reasons["traced/there"])
	assert.Equal(t, memory.CouldNotApply, effects["traced/not there"])
	assert.Contains(t, reasons["traced/not there"], "has no float16 casts")
	assert.Equal(t, memory.CouldNotApply, effects["traced/still there"])
	assert.Contains(t, reasons["traced/still there"], "has 3 bfloat16 casts")
	// A child that traces nothing cannot be asked.
	assert.NotEqual(t, memory.CouldNotApply, effects["flat/not there"])

	base := r.Cells[0]
	require.NotNil(t, base.Figures.Pool)
	assert.EqualValues(t, 5<<20, *base.Figures.Pool)
	require.NotNil(t, base.Figures.GPUPool)
	assert.EqualValues(t, 7<<20, *base.Figures.GPUPool)
	// A GPU that could not be asked is absent, not empty.
	assert.Nil(t, base.Figures.GPU)
	// Tracing takes memory after all that is measured.
	require.NotNil(t, base.Figures.Peak)
	assert.Less(t, *base.Figures.Peak, int64(64<<20))
}

func TestTheGPUIsSampled(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.GPUs = []string{"GPU"}
	p.GPU = func(pid int) memory.Source {
		assert.Positive(t, pid)
		return memory.SourceFunc(func(add func(memory.Layer, memory.Reading)) {
			add(memory.GPUProcess, memory.Known(3*memory.GiB))
		})
	}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.NotNil(t, r.Cells[0].Figures.GPU)
	assert.EqualValues(t, 3<<30, *r.Cells[0].Figures.GPU)
}

func TestResultsOfAnotherKindAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"schema": 99}`), 0o666))
	_, err := ReadFile(path)
	require.ErrorContains(t, err, "schema 1")
	require.NoError(t, os.WriteFile(path, []byte(`hello`), 0o666))
	_, err = ReadFile(path)
	require.ErrorContains(t, err, "is not a matrix.json")

	out := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(out, RunsFile), []byte("hello\n"), 0o666))
	p := plan(t, workload("flat", 0))
	p.Out = out
	_, err = Run(t.Context(), p)
	require.ErrorContains(t, err, "line 1 is not a run")
}

func TestRemediesAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Remedies() {
		assert.False(t, seen[r.ID], "%s is there twice", r.ID)
		seen[r.ID] = true
		assert.NotEmpty(t, r.Title, r.ID)
		assert.Contains(t, []memory.Goal{memory.LowerSlope, memory.LowerPeak, memory.LowerReset}, r.Goal, r.ID)
		if r.ID != Baseline {
			assert.False(t, len(r.Env) == 0 && len(r.Knobs) == 0 && r.Preload == "" && r.Device == nil, "%s changes nothing", r.ID)
		}
		if r.Device != nil {
			config, err := r.Device.ConfigProto()
			require.NoError(t, err, r.ID)
			assert.NotEmpty(t, config, r.ID)
		}
		if r.Preload != "" {
			assert.Contains(t, allocators, r.Preload)
		}
	}
	_, err := FindRemedy("jemaloc")
	require.ErrorIs(t, err, ErrUnknown)
	require.ErrorContains(t, err, "jemalloc")
}
