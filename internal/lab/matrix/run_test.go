package matrix

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/testkit"
	"steadyfit/internal/tfprocess"
	"steadyfit/internal/watch"
	"steadyfit/memory"
)

// The test binary is also a program of the matrix, without TensorFlow.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		if err := play(os.Args[1], os.Args[2:]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const leakedPerStep = 64 << 10

var keep [][]byte

// allocate takes memory outside the Go heap, as a native library does.
func allocate(size, kind int) []byte {
	b := program.Must(syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|kind))
	for i := 0; i < size; i += os.Getpagesize() {
		b[i] = 1
	}
	return b
}

// mended is an error until the file TEST_MENDED exists.
func mended(err error) {
	if _, missing := os.Stat(os.Getenv("TEST_MENDED")); missing != nil {
		program.Check(err)
	}
}

func play(name string, args []string) error {
	p, err := program.New(args, os.Stdout)
	if err != nil {
		return err
	}
	return p.Run(context.Background(), func(context.Context) *program.Loop {
		release := p.Option("release", "keep")
		l := &program.Loop{Untrained: true}
		switch name {
		case "loads":
			program.Check(syscall.Munmap(allocate(96<<20, syscall.MAP_PRIVATE)))
		case "handover":
			l.Epoch = func(_ context.Context, n int) {
				if n == p.Steps/2 {
					program.Check(program.ErrSaved)
				}
			}
		case "traced":
			p.Fact("traced", p.Option("trace", "0"))
			if p.Option("trace", "") != "" {
				for fact, value := range map[string]int{"pool mklcpu": 4 << 20, "pool gpu_host_bfc": 1 << 20, "pool GPU_0_bfc": 7 << 20,
					program.FactFloat16: 0, program.FactBFloat16: map[bool]int{true: 0, false: 3}[release == "keep"]} {
					p.Fact(fact, strconv.Itoa(value))
				}
			}
		}
		l.Step = func(_ context.Context, n int) float64 {
			step(p, name, n, release)
			return 0
		}
		return l
	}, nil)
}

// step does a step of a program.
func step(p *program.Program, name string, n int, release string) {
	switch name {
	case "leak":
		if release == "keep" {
			keep = append(keep, allocate(leakedPerStep, syscall.MAP_PRIVATE))
		}
	case "pinned":
		keep = append(keep, allocate(leakedPerStep, syscall.MAP_SHARED))
	case "killed":
		if n == p.Steps/2 {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	case "aborts":
		os.Stderr.WriteString("F0000 check.cc:1] Check failed: x == y\nmore\n")
		syscall.Kill(os.Getpid(), syscall.SIGABRT)
	case "hangs":
		<-time.After(time.Hour) // the Go runtime would end a process that waits forever
	case "mute":
		os.Exit(0)
	case "terminated":
		if _, err := os.Stat(os.Getenv("TEST_MENDED")); err != nil {
			syscall.Kill(os.Getpid(), syscall.SIGTERM)
			<-time.After(time.Hour)
		}
	case "disk":
		mended(errors.New("write /out/x: no space left on device"))
	case "mended":
		mended(errors.New("not yet"))
	case "hog":
		keep = append(keep, allocate(8<<20, syscall.MAP_PRIVATE))
	case "exhausted":
		program.Check(errors.New("OOM when allocating"))
	case "leaves": // a process that outlives its parent
		if n == p.Steps {
			orphan := exec.Command("sleep", "1000")
			program.Check(orphan.Start())
			p.Fact("orphan", strconv.Itoa(orphan.Process.Pid))
		}
	}
}

func workload(id string, leak int64) Workload {
	return Workload{ID: id, Steps: 48, Every: 1, Epoch: 8, Batch: 8, Budget: 1024, Leak: &leak,
		Takes: map[string][]string{Go: {"release"}}}
}

func plan(t *testing.T, workloads ...Workload) Plan {
	t.Helper()
	executable, err := os.Executable()
	require.NoError(t, err)
	return Plan{Workloads: workloads, Runtimes: []string{Go}, Pairs: 2, Out: t.TempDir(), Timeout: time.Minute,
		Commands: map[string]Command{Go: {Args: []string{executable}, Identity: "test"}}}
}

func TestALeakIsFoundAndItsRemedyWorks(t *testing.T) {
	p := plan(t, workload("leak", leakedPerStep), workload("flat", 0))
	p.Remedies = []Remedy{
		{ID: "close", Goal: compare.LowerSlope, Params: map[string]string{"release": "close"}},
		{ID: "gc", Goal: compare.LowerSlope, Env: map[string]string{"GOGC": "20"}},
		{ID: "gpu", Goal: compare.LowerPeak, NeedsGPU: true},
		{ID: "fetch", Goal: compare.LowerPeak, Params: map[string]string{"fetches": "fixed"}},
	}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.True(t, r.Complete)
	effects := map[string]compare.Effect{}
	for _, c := range r.Combinations {
		effects[c.Workload+"/"+c.Remedy] = c.Effect
	}
	assert.Equal(t, compare.Works, effects["leak/close"])
	assert.Contains(t, []compare.Effect{compare.NoEffect, compare.Unclear}, effects["leak/gc"])
	assert.Equal(t, compare.CouldNotApply, effects["leak/gpu"])
	assert.Equal(t, compare.NotApplicable, effects["leak/fetch"])
	// Since other tests run at the same time, the control workload may be undecided, but must not
	// be a leak.
	require.Len(t, r.Calibration, 2)
	assert.True(t, r.Calibration[0].OK, r.Calibration[0].Text)
	assert.NotContains(t, r.Calibration[1].Kinds, memory.Leak)
	assert.InEpsilon(t, leakedPerStep, r.Calibration[0].Slope.Estimate, 0.05)

	path := filepath.Join(p.Out, "matrix.json")
	require.NoError(t, WriteFile(path, r))
	again, err := ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, r.Combinations, again.Combinations)

	// ReadFile also reads a complete compressed file.
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var small bytes.Buffer
	w := gzip.NewWriter(&small)
	_, err = w.Write(text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(path+".gz", small.Bytes(), 0o666))
	again, err = ReadFile(path + ".gz")
	require.NoError(t, err)
	assert.Equal(t, r.Combinations, again.Combinations)
	require.NoError(t, os.WriteFile(path+".gz", small.Bytes()[:small.Len()/2], 0o666))
	_, err = ReadFile(path + ".gz")
	require.ErrorContains(t, err, "matrix.json.gz")
}

// Pinned memory of the host, which GPUs use, is shared memory.
func TestALeakOfSharedMemory(t *testing.T) {
	p := plan(t, workload("pinned", leakedPerStep))
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.Len(t, r.Calibration, 1)
	assert.True(t, r.Calibration[0].OK, r.Calibration[0].Text)
}

func TestPairsAreRunForthAndBack(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.defaults()
	for _, id := range strings.Split("abcdefghi", "") {
		p.Remedies = append(p.Remedies, Remedy{ID: id})
	}
	jobs, _ := p.expand()
	order := ""
	for _, j := range jobs {
		order += strings.Replace(j.remedy.ID, Baseline, "-", 1) + strconv.Itoa(j.pair)
	}
	assert.Equal(t, "-0a0b0c0d0e0f0g0h0-0i0"+"h1g1f1e1d1c1b1a1-1i1-1", order)
}

func TestACalibrationThatFailsIsSaid(t *testing.T) {
	p := plan(t, workload("leak", 2*leakedPerStep))
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.Len(t, r.Calibration, 1)
	assert.False(t, r.Calibration[0].OK)
	assert.Contains(t, r.Calibration[0].Text, "2 of them were wrong")
}

func TestInconclusiveRunsOfACalibration(t *testing.T) {
	for _, c := range []struct {
		kinds []memory.Kind
		ok    bool
	}{
		{[]memory.Kind{memory.Flat, memory.Inconclusive, memory.Jump}, true},
		{[]memory.Kind{memory.Inconclusive, memory.Flat}, false},
		{[]memory.Kind{memory.Flat, memory.Flat, memory.Leak}, false},
	} {
		var base []*RunResult
		for _, kind := range c.kinds {
			base = append(base, &RunResult{Outcome: compare.Outcome{Verdict: memory.Verdict{Kind: kind}}})
		}
		got, ok := calibrate(Go, Workload{ID: "W0", Leak: new(int64)}, base)
		require.True(t, ok)
		assert.Equal(t, c.ok, got.OK, got.Text)
	}
}

func TestAMatrixWhoseTimeIsOver(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.Within = time.Nanosecond
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.False(t, r.Complete)
	assert.Empty(t, r.Runs)
	p.Within = time.Hour
	r, err = Run(t.Context(), p)
	require.NoError(t, err)
	assert.True(t, r.Complete)
	assert.Len(t, r.Runs, 2)
}

func TestChildrenThatDieAreResults(t *testing.T) {
	for id, want := range map[string]struct {
		failure runner.Failure
		cause   string
	}{
		"killed":    {runner.Failed, "signal: killed"},
		"aborts":    {runner.Failed, "Check failed: x == y"},
		"mute":      {runner.Failed, "ended without a step"},
		"hangs":     {runner.Failed, "no mark for"},
		"exhausted": {runner.OutOfMemory, "OOM when allocating"},
	} {
		t.Run(id, func(t *testing.T) {
			p := plan(t, workload(id, 0))
			p.Pairs = 1
			if id == "hangs" { // also before its first message
				p.Timeout = 300 * time.Millisecond
			}
			r, err := Run(t.Context(), p)
			require.NoError(t, err)
			require.Len(t, r.Runs, 1)
			assert.Equal(t, want.failure, r.Runs[0].Failure)
			assert.Contains(t, r.Runs[0].Cause, want.cause)
			assert.Equal(t, memory.Kind(memlayer.Crash), r.Runs[0].Outcome.Verdict.Kind)
			require.Len(t, r.Combinations, 1)
			assert.Len(t, r.Combinations[0].Crashes, 1)
		})
	}
}

// limited returns a plan with a memory limit. It skips the test if this process may not create a control group.
func limited(t *testing.T, id string, limit memory.Bytes) Plan {
	t.Helper()
	w := workload(id, 0)
	w.Limit = int64(limit)
	p := plan(t, w)
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	if r.Runs[0].Failure == runner.CouldNotApply {
		t.Skipf("needs the right to create a control group: %s", r.Runs[0].Cause)
	}
	return p
}

func TestAMemoryLimitEndsAChild(t *testing.T) {
	p := limited(t, "hog", 128*memory.MiB)
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, runner.OutOfMemory, r.Runs[0].Failure, "48 steps of 8 MiB do not fit into 128 MiB")
	assert.Contains(t, r.Runs[0].Cause, "128.0 MiB")
}

func TestAnotherProcessGoesOnWithARun(t *testing.T) {
	p := plan(t, workload("handover", 0))
	p.Pairs = 1
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, r.Runs[0].Failure, r.Runs[0].Cause)
	samples := r.Runs[0].Series.Samples()
	assert.Equal(t, 48, samples[len(samples)-1].Step)
}

// A limit on file sizes behaves like a full disk. It applies to the whole process, and go test
// writes a log, so the test has its own process.
func TestADiskThatIsFull(t *testing.T) {
	if os.Getenv("TEST_FULL_DISK") == "" {
		program, err := os.Executable()
		require.NoError(t, err)
		alone := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$")
		alone.Env = append(os.Environ(), "TEST_FULL_DISK=1")
		said, err := alone.CombinedOutput()
		require.NoError(t, err, "%s", said)
		return
	}
	dir := t.TempDir()
	s, err := openStore(dir)
	require.NoError(t, err)
	require.NoError(t, s.add(RunResult{Key: "a"}))
	before, err := os.ReadFile(filepath.Join(dir, runsFile))
	require.NoError(t, err)
	var old syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(len(before)) + 100, Max: old.Max}))
	err = s.add(RunResult{Key: "b", Cause: strings.Repeat("x", 200)})
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old))
	require.ErrorIs(t, err, syscall.EFBIG)
	require.ErrorContains(t, err, "finished runs are saved")
	s.close()
	s, err = openStore(dir)
	require.NoError(t, err)
	s.close()
	after, err := os.ReadFile(filepath.Join(dir, runsFile))
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

func TestAnOptionThatTheProgramDoesNotKnow(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.Workloads[0].Takes[Go] = []string{"shapes"} // the table has it, but the program has no such option
	p.Remedies = []Remedy{{ID: "pad", Goal: compare.LowerSlope, Params: map[string]string{"shapes": "pad"}}}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, compare.NotApplicable, r.Combinations[1].Effect)
	assert.Contains(t, r.Combinations[1].Reason, "shapes=pad")
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

	// The file ends in the middle of a line, as after a crash.
	file, err := os.OpenFile(filepath.Join(p.Out, runsFile), os.O_APPEND|os.O_WRONLY, 0)
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

	text, err := os.ReadFile(filepath.Join(p.Out, runsFile))
	require.NoError(t, err)
	for line := range bytes.Lines(text) {
		assert.True(t, json.Valid(line))
	}
}

func TestAChildThatCannotStart(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.Commands[Go] = Command{Args: []string{filepath.Join(t.TempDir(), "absent")}}
	_, err := Run(t.Context(), p)
	require.ErrorIs(t, err, watch.ErrNotFound)
}

func TestAnAllocatorThatIsMissing(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.Allocator = func(string) (string, error) { return "", errors.New("no libjemalloc.so.2") }
	p.Remedies = []Remedy{{ID: "jemalloc", Preload: "jemalloc"}}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, compare.CouldNotApply, r.Combinations[1].Effect)
	assert.Contains(t, r.Combinations[1].Reason, "no libjemalloc.so.2")
}

func TestAPreloadThatDidNotTake(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.Allocator = func(string) (string, error) { return "/absent/libjemalloc.so.2", nil }
	p.Remedies = []Remedy{{ID: "jemalloc", Preload: "jemalloc"}}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, compare.CouldNotApply, r.Combinations[1].Effect)
	assert.Contains(t, r.Combinations[1].Reason, "not among the mappings")
}

func TestAVariableThatTensorFlowDoesNotRead(t *testing.T) {
	library := filepath.Join(t.TempDir(), "libtensorflow.so")
	// The name is split between two reads of the file.
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
	assert.NotEqual(t, compare.CouldNotApply, r.Combinations[1].Effect, r.Combinations[1].Reason)
	assert.Equal(t, compare.CouldNotApply, r.Combinations[2].Effect)
	assert.Contains(t, r.Combinations[2].Reason, "does not read TF_LONGER")
}

func TestARewriteThatLeftNoTrace(t *testing.T) {
	p := plan(t, workload("traced", 0), workload("flat", 0))
	p.Remedies = []Remedy{
		{ID: "there", Params: map[string]string{"release": "a"}, Traced: map[string]bool{program.FactBFloat16: true}},
		{ID: "not there", Params: map[string]string{"release": "b"}, Traced: map[string]bool{program.FactFloat16: true}},
		{ID: "still there", Params: map[string]string{"release": "c"}, Traced: map[string]bool{program.FactBFloat16: false}},
		{ID: "never missing", Params: map[string]string{"release": "d"}, Traced: map[string]bool{program.FactFloat16: false}},
	}
	p.Select = func(_, workload, remedy string) bool { return workload == "traced" || remedy != "never missing" }
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	effects := map[string]compare.Effect{}
	reasons := map[string]string{}
	for _, c := range r.Combinations {
		effects[c.Workload+"/"+c.Remedy], reasons[c.Workload+"/"+c.Remedy] = c.Effect, c.Reason
	}
	assert.NotEqual(t, compare.CouldNotApply, effects["traced/there"], reasons["traced/there"])
	assert.Equal(t, compare.CouldNotApply, effects["traced/not there"])
	assert.Contains(t, reasons["traced/not there"], "has no float16 casts")
	assert.Equal(t, compare.CouldNotApply, effects["traced/still there"])
	assert.Contains(t, reasons["traced/still there"], "has 3 bfloat16 casts")
	// A remedy that a trace should show is not refused if the child traces nothing.
	assert.NotEqual(t, compare.CouldNotApply, effects["flat/not there"])
	for _, c := range r.Combinations {
		switch c.Workload + "/" + c.Remedy {
		case "flat/there", "flat/not there", "flat/still there":
			assert.Equal(t, "its step cannot be traced", c.Unverified)
		case "traced/never missing":
			assert.Equal(t, "the graph that ran without it has no float16 casts, either", c.Unverified)
		default:
			assert.Empty(t, c.Unverified, c.Remedy)
		}
	}

	base := r.Combinations[0]
	require.NotNil(t, base.Figures.Pool)
	assert.EqualValues(t, 5<<20, *base.Figures.Pool)
	require.NotNil(t, base.Figures.GPUPool)
	assert.EqualValues(t, 7<<20, *base.Figures.GPUPool)
	// GPU memory that could not be read is absent, not 0.
	assert.Nil(t, base.Figures.GPU)
}

func TestTheGPUIsSampled(t *testing.T) {
	p := plan(t, workload("flat", 0))
	p.GPUs = []string{"GPU"}
	p.GPU = func(pid int) memory.Source {
		assert.Positive(t, pid)
		return memory.Source(func(add func(memory.Layer, memory.Reading)) {
			add(memlayer.GPUProcess, memory.Known(3*memory.GiB))
		})
	}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.NotNil(t, r.Combinations[0].Figures.GPU)
	assert.EqualValues(t, 3<<30, *r.Combinations[0].Figures.GPU)
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
	require.NoError(t, os.WriteFile(filepath.Join(out, runsFile), []byte("hello\n"), 0o666))
	p := plan(t, workload("flat", 0))
	p.Out = out
	_, err = Run(t.Context(), p)
	require.ErrorContains(t, err, "line 1 is not a run")
}

// The plan of make matrix-gpu has a remedy for each row of docs/reference/devices.md that
// refers to it.
func TestMatrixGPUFillsTheDocument(t *testing.T) {
	makefile, err := os.ReadFile("../../../Makefile")
	require.NoError(t, err)
	plan := regexp.MustCompile(`(?s)MATRIX_GPU = .*?--remedies (\S+)`).FindSubmatch(makefile)
	require.NotNil(t, plan)
	var remedies []Remedy
	for id := range strings.SplitSeq(string(plan[1]), ",") {
		r, err := FindRemedy(id)
		require.NoError(t, err)
		remedies = append(remedies, r)
	}
	text, err := os.ReadFile("../../../docs/reference/devices.md")
	require.NoError(t, err)
	name, rows := regexp.MustCompile("`([A-Z]\\w+)"), 0
	for _, table := range testkit.Tables(string(text)) {
		field := slices.Index(table.Header, "Go field")
		for _, row := range table.Rows {
			if field < 0 || !slices.Contains(row, "needs a GPU: make matrix-gpu") {
				continue
			}
			rows++
			option := name.FindStringSubmatch(row[field])
			variable := name.FindStringSubmatch(row[slices.Index(table.Header, "variable")])
			assert.True(t, slices.ContainsFunc(remedies, func(r Remedy) bool {
				if option != nil && r.Device != nil && !reflect.ValueOf(*r.Device).FieldByName(option[1]).IsZero() {
					return true
				}
				return variable != nil && r.Env[variable[1]] != ""
			}), "no remedy of make matrix-gpu sets %s", row[field])
		}
	}
	assert.Greater(t, rows, 5)
}

func TestRemediesAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Remedies() {
		assert.False(t, seen[r.ID], "%s is there twice", r.ID)
		seen[r.ID] = true
		assert.NotEmpty(t, r.Title, r.ID)
		assert.Contains(t, []compare.Goal{compare.LowerSlope, compare.LowerPeak, compare.LowerReset, compare.LowerGPU}, r.Goal, r.ID)
		assert.True(t, r.NeedsGPU || r.Goal != compare.LowerGPU, r.ID)
		if r.ID != Baseline {
			assert.False(t, len(r.Env) == 0 && len(r.Params) == 0 && r.Preload == "" && r.Device == nil && r.Change == "", "%s changes nothing", r.ID)
		}
		if r.Device != nil {
			config, err := r.Device.ConfigProto()
			require.NoError(t, err, r.ID)
			assert.NotEmpty(t, config, r.ID)
			seen := len(r.Traced) > 0 || r.OtherGraph
			assert.NotEqual(t, seen, r.Unseen != "", "%s: what shows that it took?", r.ID)
		}
		for name := range r.Env {
			assert.NotEqual(t, "TF_FORCE_UNIFIED_MEMORY", name, "%s: a session does not read it", r.ID)
		}
		for runtime, a := range r.On {
			assert.Contains(t, append(Runtimes(), Program), runtime, r.ID)
			assert.False(t, len(a.Env) == 0 && len(a.Params) == 0 && a.Device == nil && a.Change == "", "%s changes nothing on %s", r.ID, runtime)
		}
		if r.Preload != "" {
			assert.Contains(t, tfprocess.Allocators, r.Preload)
		}
	}
	_, err := FindRemedy("jemaloc")
	require.ErrorIs(t, err, ErrUnknown)
	require.ErrorContains(t, err, "the help of matrix lists them")
}

// keys returns the keys of all runs of a plan.
func keys(t *testing.T, p Plan, change func(*Plan)) []string {
	t.Helper()
	if change != nil {
		change(&p)
	}
	p.defaults()
	var err error
	p.inputs, err = p.readInputs()
	require.NoError(t, err)
	jobs, _ := p.expand()
	var all []string
	for _, j := range jobs {
		run, err := p.run(j)
		require.NoError(t, err)
		key, err := p.key(j, run)
		require.NoError(t, err)
		all = append(all, key)
	}
	return all
}

// A run is reused only if nothing has changed that it depends on.
func TestWhatARunDependsOn(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		return path
	}
	w := workload(User, 0)
	w.Leak = nil
	p := plan(t, w)
	p.User, p.Data = filepath.Join(dir, "model"), write("data.npz", "1")
	write("model/variables/variables.index", "1")
	library := write("site-packages/tensorflow/libtensorflow_cc.so.2", "1")
	p.Runtimes, p.Workloads[0].Takes = []string{Keras}, map[string][]string{Keras: {"release"}}
	p.Commands[Keras] = Command{Args: p.Commands[Go].Args, Libraries: []string{library}}
	p.Remedies = []Remedy{{ID: "a", Params: map[string]string{"release": "a"}}}
	t.Setenv("TF_ENABLE_ONEDNN_OPTS", "1")
	for what, change := range map[string]func(){
		"nothing":      nil,
		"model":        func() { write("model/variables/variables.index", "2") },
		"another file": func() { write("model/assets/words", "") },
		"data":         func() { write("data.npz", "2") },
		"library":      func() { write("site-packages/tensorflow/libtensorflow_cc.so.2", "22") },
		"package":      func() { write("site-packages/keras-9.9.9.dist-info/METADATA", "") },
		"variable":     func() { t.Setenv("TF_ENABLE_ONEDNN_OPTS", "0") },
		"log":          func() { t.Setenv("TF_CPP_MIN_LOG_LEVEL", "0"); t.Setenv("NOTHING", "1") },
		"remedies":     func() { p.Remedies = append(p.Remedies, Remedy{ID: "b", Params: map[string]string{"release": "b"}}) },
		"limit":        func() { p.Workloads[0].Limit = int64(memory.GiB) },
		"machine":      func() { p.GPUs = []string{"another"} },
	} {
		t.Run(what, func(t *testing.T) {
			before := keys(t, p, nil)
			if change != nil {
				change()
			}
			after := keys(t, p, nil)
			same := what == "nothing" || what == "log"
			for _, key := range before {
				assert.Equal(t, same, slices.Contains(after, key))
			}
		})
	}
}

func TestProcessesThatAreLeft(t *testing.T) {
	p := plan(t, workload("leaves", 0))
	p.Pairs = 1
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, r.Runs[0].Failure, r.Runs[0].Cause)
	require.NotEmpty(t, r.Runs[0].Facts["orphan"])
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join("/proc", r.Runs[0].Facts["orphan"], "stat"))
		return err != nil || bytes.Contains(text, []byte(") Z "))
	}, time.Minute, time.Millisecond, "nothing of its group runs on")
}

// A failure that the machine causes ends the matrix and is not recorded as a result.
func TestFailuresOfTheMachine(t *testing.T) {
	for id, want := range map[string]error{"terminated": runner.ErrOutside, "disk": syscall.ENOSPC} {
		t.Run(id, func(t *testing.T) {
			mended := filepath.Join(t.TempDir(), "mended")
			t.Setenv("TEST_MENDED", mended)
			p := plan(t, workload("flat", 0), workload(id, 0))
			p.Pairs = 1
			r, err := Run(t.Context(), p)
			require.ErrorIs(t, err, want)
			require.Len(t, r.Runs, 1)
			assert.False(t, r.Complete)

			require.NoError(t, os.WriteFile(mended, nil, 0o666))
			r, err = Run(t.Context(), p)
			require.NoError(t, err)
			require.Len(t, r.Runs, 2)
			assert.Empty(t, r.Runs[1].Failure, r.Runs[1].Cause)
		})
	}
}

func TestFailuresAreTriedAgain(t *testing.T) {
	mended := filepath.Join(t.TempDir(), "mended")
	t.Setenv("TEST_MENDED", mended)
	p := plan(t, workload("mended", 0), workload("flat", 0))
	p.Pairs = 1
	run := func() (*Result, int) {
		var last Progress
		p.Progress = func(progress Progress) { last = progress }
		r, err := Run(t.Context(), p)
		require.NoError(t, err)
		return r, last.Reused
	}
	r, _ := run()
	require.NotEmpty(t, r.Runs[0].Failure)
	require.NoError(t, os.WriteFile(mended, nil, 0o666))
	r, reused := run()
	assert.Equal(t, 2, reused)
	assert.NotEmpty(t, r.Runs[0].Failure, "a failure is a result")
	p.Again = true
	r, reused = run()
	assert.Equal(t, 1, reused)
	assert.Empty(t, r.Runs[0].Failure, r.Runs[0].Cause)
	p.Again = false
	r, reused = run()
	assert.Equal(t, 2, reused)
	assert.Empty(t, r.Runs[0].Failure, "the later run counts")
}

func TestAFolderIsForOneMatrix(t *testing.T) {
	p := plan(t, workload("flat", 0))
	s, err := openStore(p.Out)
	require.NoError(t, err)
	_, err = Run(t.Context(), p)
	require.ErrorIs(t, err, errLocked)
	require.ErrorContains(t, err, runsFile)
	s.close()
	_, err = Run(t.Context(), p)
	require.NoError(t, err)
}

// A peak of memory during loading does not hide the peak of the steps.
func TestThePeakIsThatOfTheSteps(t *testing.T) {
	p := plan(t, workload("loads", 0))
	p.Pairs = 1
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	loaded := r.Runs[0].Phases[program.Loaded]
	assert.Greater(t, loaded.Get(memlayer.Peak).Bytes, 96*memory.MiB)
	require.NotNil(t, r.Combinations[0].Figures.Peak)
	assert.Less(t, *r.Combinations[0].Figures.Peak, int64(loaded.Get(memlayer.Peak).Bytes-64*memory.MiB))
}

// Runs with a memory limit have no traced step, which may need more memory than the limit.
func TestNoTraceUnderALimit(t *testing.T) {
	p := limited(t, "traced", 4*memory.GiB)
	p.Remedies = []Remedy{{ID: "bf16", Params: map[string]string{"release": "a"}, Traced: map[string]bool{program.FactBFloat16: true}}}
	r, err := Run(t.Context(), p)
	require.NoError(t, err)
	assert.Equal(t, "0", r.Runs[0].Facts["traced"])
	assert.Equal(t, "no step is traced under a memory limit", r.Combinations[1].Unverified)
	assert.NotEqual(t, compare.CouldNotApply, r.Combinations[1].Effect)
}

func TestTheRunThatStandsForSeveral(t *testing.T) {
	runs := func(kinds ...memory.Kind) (all []*RunResult) {
		for i, kind := range kinds {
			all = append(all, &RunResult{ID: i, Outcome: compare.Outcome{Verdict: memory.Verdict{Kind: kind, Slope: memory.Interval{Estimate: float64(i)}}}})
		}
		return all
	}
	for _, c := range []struct {
		kinds []memory.Kind
		want  int
	}{
		{[]memory.Kind{memory.Flat, memory.Plateau, memory.Flat, memory.Plateau, memory.Flat}, 2},
		{[]memory.Kind{memory.Leak, memory.Plateau, memory.Plateau, memory.Plateau, memory.Leak}, 2},
		{[]memory.Kind{memory.Flat, memory.Flat, memory.Leak, memory.Leak, memory.Jump}, 0}, // too few leaks for compare.Leaks
		{[]memory.Kind{memory.Flat, memory.Flat, memory.Leak, memory.Leak}, 2},
		{[]memory.Kind{memory.Flat, memlayer.Crash}, 1},
		{[]memory.Kind{memlayer.Crash, memory.Flat, memory.Flat}, 1},
		{[]memory.Kind{memory.Sawtooth, memory.Inconclusive, memory.Jump}, 1},
		{[]memory.Kind{memory.Leak, memory.Inconclusive, memory.Plateau}, 1}, // too few leaks for compare.Leaks
		{[]memory.Kind{memory.Leak, memory.Plateau, memory.Flat}, 1},
	} {
		assert.Equal(t, c.want, Middle(runs(c.kinds...)).ID, "%v", c.kinds)
	}
	c := (&Plan{Seed: 1}).combine(Remedy{ID: Baseline}, runs(memory.Leak, memory.Inconclusive, memory.Plateau), nil)
	assert.Equal(t, []string{"its 3 runs differ: 1 leak, 1 inconclusive, 1 plateau"}, c.Verdict.Notes)
	assert.Equal(t, 1, Middle(runs(memory.Flat, memory.Leak, memory.Leak)).ID)
}

// The baseline runs decide whether the goal of a comparison is the slope.
func TestTheGoalIsThatOfThePairs(t *testing.T) {
	p := &Plan{Seed: 1}
	run := func(id, group, pair int, remedy string, kind memory.Kind) *RunResult {
		return &RunResult{ID: id, Remedy: remedy, Pair: pair, Group: group, Outcome: compare.Outcome{Peak: memory.Known(memory.MiB),
			Verdict: memory.Verdict{Kind: kind, Slope: memory.Interval{Estimate: 100}}}}
	}
	base := []*RunResult{
		run(0, 0, 0, Baseline, memory.Plateau), run(1, 0, 1, Baseline, memory.Plateau),
		run(2, 1, 0, Baseline, memory.Leak), run(3, 1, 1, Baseline, memory.Leak),
	}
	for group, want := range []compare.Goal{compare.LowerPeak, compare.LowerSlope} {
		runs := []*RunResult{run(4, group, 0, "a", memory.Flat), run(5, group, 1, "a", memory.Flat)}
		c := p.combine(Remedy{ID: "a", Goal: compare.LowerSlope}, runs, base)
		require.NotNil(t, c.Comparison)
		assert.Equal(t, want, c.Comparison.Goal)
		c = p.combine(Remedy{ID: "a", Goal: compare.LowerGPU}, runs, base)
		assert.Equal(t, compare.LowerGPU, c.Comparison.Goal)
	}
}

func TestTheTimeThatIsLeft(t *testing.T) {
	var last Progress
	d := &doing{plan: &Plan{Progress: func(p Progress) { last = p }}, jobs: make([]job, 5),
		results: []*RunResult{{Seconds: 1}, {Seconds: 100}, {Seconds: 3}, nil, nil}, reused: []bool{1: true, 4: false}}
	d.report(RunResult{})
	assert.Equal(t, Progress{Done: 3, Total: 5, Reused: 1, Left: 4 * time.Second}, last)
	d.results[0], d.results[2] = nil, nil
	d.report(RunResult{})
	assert.Zero(t, last.Left)
}

// Remedies that divide the batch are compared by the slope per sample, not per step.
func TestPartsOfABatchAreComparedPerSample(t *testing.T) {
	p := &Plan{Seed: 1}
	run := func(id, pair int, slope float64) *RunResult {
		return &RunResult{ID: id, Pair: pair, Outcome: compare.Outcome{Verdict: memory.Verdict{Kind: memory.Leak, Slope: memory.Interval{Estimate: slope}, NoiseFloor: 10}}}
	}
	base := []*RunResult{run(0, 0, 1000), run(1, 1, 1010), run(2, 2, 990)}
	half, err := FindRemedy("batch-half")
	require.NoError(t, err)
	c := p.combine(half, []*RunResult{run(3, 0, 500), run(4, 1, 505), run(5, 2, 495)}, base)
	assert.Equal(t, compare.NoEffect, c.Effect, c.Reason)
	assert.InDelta(t, 1, c.Comparison.Slope.Estimate, 0.01)
	assert.Contains(t, c.Reason, "for as many samples")
	assert.InDelta(t, 500, c.Figures.Slope.Estimate, 10, "a step is as it was measured")
	c = p.combine(half, []*RunResult{run(3, 0, 1001), run(4, 1, 1009), run(5, 2, 992)}, base)
	assert.Equal(t, compare.NoEffect, c.Effect, "what a step leaves whatever its batch: %s", c.Reason)
	c = p.combine(half, []*RunResult{run(3, 0, 100), run(4, 1, 101), run(5, 2, 99)}, base)
	assert.Equal(t, compare.Partly, c.Effect, c.Reason)
	c = p.combine(half, []*RunResult{run(3, 0, 1060), run(4, 1, 940), run(5, 2, 1000)}, base)
	assert.Equal(t, compare.Unclear, c.Effect, "nobody can tell for a step: %s", c.Reason)
	half.Params = nil
	assert.Equal(t, compare.Partly, p.combine(half, []*RunResult{run(3, 0, 500), run(4, 1, 505), run(5, 2, 495)}, base).Effect)
}

// An operation that the baseline also runs does not show that a remedy took effect.
func TestTracesThatTellNothing(t *testing.T) {
	runs := func(counts ...string) (all []*RunResult) {
		for _, n := range counts {
			all = append(all, &RunResult{Facts: map[string]string{program.FactCalls: n}})
		}
		return all
	}
	with, without := Remedy{Traced: map[string]bool{program.FactCalls: true}}, Remedy{Traced: map[string]bool{program.FactCalls: false}}
	assert.Empty(t, unseenTrace(with, runs("0", "0")))
	assert.Contains(t, unseenTrace(with, runs("0", "2")), "the graph that ran without it has 2 function calls, too")
	assert.Empty(t, unseenTrace(without, runs("1", "2")))
	assert.Contains(t, unseenTrace(without, runs("1", "0")), "the graph that ran without it has no function calls, either")
	assert.Empty(t, unseenTrace(with, []*RunResult{{}}), "it was not traced")
}

// A remedy that changes the graph or the final loss must change it in each pair of runs.
func TestChangesThatAreNotSeen(t *testing.T) {
	run := func(facts ...string) *RunResult {
		r := &RunResult{Facts: map[string]string{}}
		for i := 0; i < len(facts); i += 2 {
			r.Facts[facts[i]] = facts[i+1]
		}
		return r
	}
	operations := func(all, oneDNN string) *RunResult {
		return run(program.FactOperations, all, program.FactOneDNN, oneDNN)
	}
	died := &RunResult{Failure: runner.Failed}
	graph := Remedy{OtherGraph: true}
	for _, c := range []struct {
		runs, base []*RunResult
		says       string
	}{
		{[]*RunResult{operations("9", "2"), operations("8", "2")}, []*RunResult{operations("8", "2"), operations("7", "2")}, ""},
		{[]*RunResult{operations("8", "3")}, []*RunResult{operations("8", "2")}, ""},
		{[]*RunResult{operations("9", "2"), operations("8", "2")}, []*RunResult{operations("8", "2"), operations("8", "2")}, "as many operations of each kind as without it"},
		{[]*RunResult{run(program.FactOperations, "8", program.FactLossLast, "0.5")}, []*RunResult{run(program.FactOperations, "8", program.FactLossLast, "0.4")}, ""},
		{[]*RunResult{run(program.FactOperations, "8", program.FactLossLast, "0.5"), run(program.FactOperations, "8", program.FactLossLast, "0.4")},
			[]*RunResult{run(program.FactOperations, "8", program.FactLossLast, "0.4"), run(program.FactOperations, "8", program.FactLossLast, "0.5")}, "as many operations"},
		{[]*RunResult{run()}, []*RunResult{run()}, "its step cannot be traced"},
		{[]*RunResult{died}, []*RunResult{operations("8", "2")}, ""},
	} {
		assert.Contains(t, unseenPairs(graph, c.runs, c.base), c.says)
		assert.Equal(t, c.says == "", unseenPairs(graph, c.runs, c.base) == "")
		assert.Empty(t, unseenPairs(Remedy{}, c.runs, c.base))
	}
	loss := func(text string) *RunResult { return run(program.FactLossLast, text) }
	numbers := Remedy{OtherLoss: true}
	for _, c := range []struct {
		runs, base []*RunResult
		says       string
	}{
		{[]*RunResult{loss("0.51"), loss("0.51")}, []*RunResult{loss("0.5"), loss("0.5")}, ""},
		{[]*RunResult{loss("0.51"), loss("0.5")}, []*RunResult{loss("0.5"), loss("0.5")}, "bit for bit"},
		{[]*RunResult{loss("0.51"), loss("0.51")}, []*RunResult{loss("0.5"), loss("0.49")}, "differ from run to run"},
		{[]*RunResult{run()}, []*RunResult{loss("0.5")}, "no loss"},
		{[]*RunResult{died}, []*RunResult{loss("0.5")}, ""},
	} {
		assert.Contains(t, unseenPairs(numbers, c.runs, c.base), c.says)
		assert.Equal(t, c.says == "", unseenPairs(numbers, c.runs, c.base) == "")
		assert.Empty(t, unseenPairs(Remedy{}, c.runs, c.base))
	}
}

func TestVariablesOfAnotherMalloc(t *testing.T) {
	p := plan(t)
	j := job{runtime: Go, remedy: Remedy{Env: map[string]string{"MALLOC_ARENA_MAX": "1"}}}
	for allocator, reason := range map[string]string{"glibc": "", "": "", "jemalloc": "MALLOC_ARENA_MAX is read by the malloc of the C library, and the process has that of jemalloc"} {
		got, unseen := p.verify(j, &runner.Observed{Facts: map[string]string{program.FactAllocator: allocator}}, variables{})
		assert.Equal(t, reason, got)
		assert.Empty(t, unseen)
	}
}

func TestVariablesWithAPrefix(t *testing.T) {
	library, allocator := filepath.Join(t.TempDir(), "libtensorflow.so"), filepath.Join(t.TempDir(), "libmimalloc.so")
	require.NoError(t, os.WriteFile(library, []byte("\x00PRIMITIVE_CACHE_CAPACITY\x00TF_KNOWN\x00"), 0o666))
	require.NoError(t, os.WriteFile(allocator, []byte("\x00mimalloc_\x00reset_delay\x00"), 0o666))
	p := plan(t)
	p.Allocator = func(string) (string, error) { return allocator, nil }
	p.Commands[Go] = Command{Libraries: []string{library}}
	p.Commands[Galeone] = Command{Libraries: []string{library + ".absent"}}
	p.Commands[Keras] = Command{}
	o := &runner.Observed{Maps: "/usr/lib/libmimalloc.so.2"}
	for _, c := range []struct {
		runtime        string
		remedy         Remedy
		reason, unseen string
	}{
		{Go, Remedy{Env: map[string]string{"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1"}}, "", ""},
		{Go, Remedy{Env: map[string]string{"DNNL_PRIMITIVE_CACHE_CAPACITY": "1"}}, "", ""},
		{Go, Remedy{Env: map[string]string{"ONEDNN_OTHER": "1"}}, "this TensorFlow does not read ONEDNN_OTHER", ""},
		{Go, Remedy{Preload: "mimalloc", Env: map[string]string{"MIMALLOC_RESET_DELAY": "0"}}, "", ""},
		{Go, Remedy{Preload: "mimalloc", Env: map[string]string{"MIMALLOC_OTHER": "0"}}, "this mimalloc does not read MIMALLOC_OTHER", ""},
		{Go, Remedy{Preload: "mimalloc", Env: map[string]string{"TF_KNOWN": "0"}}, "", ""},
		{Galeone, Remedy{Env: map[string]string{"TF_KNOWN": "1"}}, "", "whether this TensorFlow reads TF_KNOWN is not known"},
		{Keras, Remedy{Env: map[string]string{"TF_KNOWN": "1"}}, "", "no library to look into"},
	} {
		p.Remedies = []Remedy{c.remedy}
		reason, unseen := p.verify(job{runtime: c.runtime, remedy: c.remedy}, o, variables{})
		assert.Contains(t, reason, c.reason)
		assert.Equal(t, c.reason == "", reason == "", "%v: %s", c.remedy, reason)
		assert.Contains(t, unseen, c.unseen)
		assert.Equal(t, c.unseen == "", unseen == "", "%v: %s", c.remedy, unseen)
	}
}

// A remedy is applied with the settings that it has for the runtime.
func TestRemediesOnARuntimeOfTheirOwn(t *testing.T) {
	p := plan(t)
	refused := func(runtime, workload, remedy string) string {
		w, err := FindWorkload(workload)
		require.NoError(t, err)
		r, err := FindRemedy(remedy)
		require.NoError(t, err)
		_, reason := p.refuse(runtime, w.For(runtime), r.on(runtime))
		return reason
	}
	for _, remedy := range []string{"inter-1", "intra-1", "xla", "hoard", "from-generator", "mixed-fp16"} {
		assert.Empty(t, refused(Keras, "S1", remedy), remedy)
	}
	for _, remedy := range []string{"inter-1", "bf16", "xla"} {
		assert.Empty(t, refused(Go, "S1", remedy), remedy)
	}
	assert.Contains(t, refused(Keras, "S1", "bf16"), "ConfigProto")
	assert.Empty(t, refused(Program, Program, "clear-session"))
	assert.Contains(t, refused(Program, Program, "micro-2"), "does not apply")
	assert.Contains(t, refused(Keras, "W9", "xla"), "does that already")
	for _, workload := range []string{"W2", "S3", "S3a"} {
		assert.Contains(t, refused(Keras, workload, "generator"), "does that already")
		assert.Empty(t, refused(Keras, workload, "from-generator"))
	}
	assert.Empty(t, refused(Keras, "S1", "generator"))
	r, err := FindRemedy("hoard")
	require.NoError(t, err)
	w, err := FindWorkload("S1")
	require.NoError(t, err)
	p.Commands[Keras] = Command{Args: []string{"python"}, Scripts: "keras"}
	run, err := p.run(job{runtime: Keras, workload: w.For(Keras), remedy: r.on(Keras)})
	require.NoError(t, err)
	assert.Equal(t, []string{"python", "keras/fit.py", "--batch=32", "--callback=hoard", "--epoch=32", "--model=dense-100-64-1",
		"--samples=1024", "--seed=0", "--steps=3200", "--validate=1"}, run.Args)
}
