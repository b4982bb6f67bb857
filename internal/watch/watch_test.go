package watch

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
)

func TestMain(m *testing.M) {
	if kind := os.Getenv("STEADYFIT_TEST_MARKS"); kind != "" {
		grow(kind)
		return
	}
	os.Exit(m.Run())
}

// grow is a Go program that keeps memory in each step.
func grow(kind string) {
	var kept [][]byte
	for range 100 {
		kept = append(kept, []byte(strings.Repeat("x", 200_000)))
		memory.Mark(context.Background(), kind)
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // a mark is read at most 20 times a second
	}
	_, _ = os.Stdout.WriteString(string(kept[0][:1]))
}

func python(t *testing.T) string {
	path, err := filepath.Abs("../../.runtime/venv/bin/python")
	require.NoError(t, err)
	_, err = os.Stat(path)
	require.NoError(t, err, "run make venv")
	return path
}

// run watches a program, and returns what it printed.
func run(t *testing.T, o Options, command ...string) (*Report, string) {
	dir := t.TempDir()
	stdout, err := os.Create(filepath.Join(dir, "stdout"))
	require.NoError(t, err)
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	require.NoError(t, err)
	t.Cleanup(func() {
		stdout.Close()
		stderr.Close()
	})
	o.Command, o.Stdout, o.Stderr = command, stdout, stderr
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	text, err := os.ReadFile(stdout.Name())
	require.NoError(t, err)
	log, err := os.ReadFile(stderr.Name())
	require.NoError(t, err)
	if t.Failed() {
		t.Logf("%s", log)
	}
	t.Logf("%s: %v, %s", r.Headline(), r.Why, r.Layers[0].Text)
	return r, string(text)
}

//lane:skip race (the time goes to Python)
func TestWatchRetracing(t *testing.T) {
	r, _ := run(t, Options{}, python(t), "testdata/retraces.py")
	require.Equal(t, Leak, r.Verdict)
	assert.Equal(t, "retracing", r.Cause)
	assert.Equal(t, "training step", r.Unit)
	assert.Equal(t, 80, r.Steps)
	assert.Contains(t, r.Why.Evidence, "argument step was")
	assert.Contains(t, r.Why.Evidence, "a Python int")
	assert.True(t, strings.HasSuffix(r.Why.Place, "retraces.py:17"), r.Why.Place)
}

//lane:skip race (the time goes to Python)
func TestWatchContainer(t *testing.T) {
	r, _ := run(t, Options{}, python(t), "testdata/hoards.py")
	require.Equal(t, Leak, r.Verdict)
	assert.Equal(t, "arrays kept in a list in Python", r.Cause)
	assert.Equal(t, "Hoard.rows[...]", r.Why.Variable)
	assert.True(t, strings.HasSuffix(r.Why.Place, "hoards.py:12"), r.Why.Place)
	assert.InDelta(t, 1, r.Why.Share, 0.3)
	assert.Equal(t, 8000, r.Steps)
	assert.Equal(t, 40, r.Epochs)
}

// At the end of a program, its main module has no file any more.
func TestWatchEnd(t *testing.T) {
	r, _ := run(t, Options{}, python(t), "testdata/keeps.py")
	require.Equal(t, Leak, r.Verdict)
	assert.Equal(t, "objects kept in a list in Python", r.Cause)
	assert.Equal(t, "round", r.Unit)
	assert.Equal(t, "kept", r.Why.Variable)
	assert.True(t, strings.HasSuffix(r.Why.Place, "keeps.py:7"), r.Why.Place)
}

// A program without steps is asked by a signal, also while its main thread waits for another, and in its child processes.
func TestWatchPlain(t *testing.T) {
	for kind, variable := range map[string]string{
		"thread": "Store.seen", "calls": "the cache of load", "workers": "cache",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r, _ := run(t, Options{}, python(t), "testdata/plain.py", kind)
			require.Equal(t, Leak, r.Verdict)
			assert.Regexp(t, "^objects kept in a (list|dict) in Python$", r.Cause)
			assert.Equal(t, variable, r.Why.Variable)
			assert.Contains(t, r.Why.Place, "plain.py:")
			assert.Zero(t, r.Exit)
		})
	}
}

// Requests by a signal reach neither calls of C code that do not expect a signal, nor a handler of the program.
func TestWatchLeavesSignals(t *testing.T) {
	_, out := run(t, Options{}, python(t), "testdata/calls.py")
	assert.Equal(t, "0\n[]\n", out)
}

func TestWatchNativeStacks(t *testing.T) {
	if _, err := tfprocess.FindAllocator(tfprocess.Jemalloc); err != nil {
		t.Skip(err)
	}
	r, _ := run(t, Options{NativeStacks: true}, python(t), "testdata/native.py")
	require.Equal(t, Leak, r.Verdict)
	require.NotEmpty(t, r.Stacks, r.Notes)
	assert.Regexp(t, "strdup$", r.Stacks[0].Functions[0])
	assert.InDelta(t, 20_000, float64(r.Stacks[0].Growth), 12_000) // an estimate from about 80 samples
}

// The graph of a tensor counts as a container.
//
//lane:skip race (the time goes to Python)
func TestWatchGraphOfTensor(t *testing.T) {
	r, _ := run(t, Options{}, python(t), "testdata/torch/adds.py")
	require.Equal(t, Leak, r.Verdict)
	assert.Equal(t, "operations kept in a graph in Python", r.Cause)
	assert.Equal(t, "total", r.Why.Variable)
	assert.True(t, strings.HasSuffix(r.Why.Place, "adds.py:11"), r.Why.Place)
	assert.Equal(t, "training step", r.Unit)
}

//lane:skip race (the time goes to Python)
func TestWatchModels(t *testing.T) {
	r, _ := run(t, Options{}, python(t), "testdata/rebuilds.py")
	require.Equal(t, Leak, r.Verdict)
	assert.Equal(t, "models built again", r.Cause)
	assert.True(t, strings.HasSuffix(r.Why.Place, "rebuilds.py:7"), r.Why.Place)
}

// The probe does not change what a program computes.
//
//lane:skip race (the time goes to Python)
func TestWatchLevel(t *testing.T) {
	r, watched := run(t, Options{}, python(t), "testdata/level.py")
	assert.NotEqual(t, Leak, r.Verdict)
	assert.Equal(t, 20, r.Epochs)
	assert.Equal(t, 1800, r.Steps)
	assert.NotContains(t, strings.Join(r.Notes, "\n"), "could not follow")
	_, alone := run(t, Options{}, "env", "-u", "PYTHONPATH", python(t), "testdata/level.py")
	assert.Equal(t, alone, watched)
}

func TestWatchWithoutProbe(t *testing.T) {
	r, out := run(t, Options{}, python(t), "-I", "testdata/grows.py", "700")
	assert.Equal(t, Leak, r.Verdict)
	assert.Equal(t, perMinute, r.Unit)
	assert.Contains(t, strings.Join(r.Notes, "\n"), "No process has a probe")
	assert.Contains(t, out, "round 699\n")
}

func TestWatchMarksOfOutput(t *testing.T) {
	r, out := run(t, Options{Mark: regexp.MustCompile(`^round \d+`)}, python(t), "-I", "testdata/grows.py", "200")
	assert.Equal(t, Leak, r.Verdict)
	assert.Equal(t, "mark", r.Unit)
	assert.Equal(t, 200, r.Steps)
	assert.InEpsilon(t, 200_000, r.Slope.Estimate, 0.2)
	assert.Equal(t, 200, strings.Count(out, "round "))
}

func TestWatchMarksOfGo(t *testing.T) {
	t.Setenv("STEADYFIT_TEST_MARKS", "request")
	t.Setenv("GOGC", "20") // a growth of Go's heap is a leak once a collection has confirmed it
	r, out := run(t, Options{}, os.Args[0])
	assert.Equal(t, Leak, r.Verdict)
	assert.Equal(t, "request", r.Unit)
	assert.InDelta(t, 100, r.Steps, 5) // the last ones may follow the last mark
	assert.Equal(t, "x", out)
}

// Processes that follow each other are one program.
func TestWatchSeveralProcesses(t *testing.T) {
	t.Setenv("STEADYFIT_TEST_MARKS", "request")
	r, out := run(t, Options{}, "sh", "-c", `"$0"; "$0"`, os.Args[0])
	assert.Equal(t, "request", r.Unit)
	assert.InDelta(t, 200, r.Steps, 10) // the last ones of each may follow its last mark
	assert.Equal(t, "xx", out)
	assert.Contains(t, strings.Join(r.Notes, "\n"), "several processes")
}

// Descriptors of the program are not written to, and a child after fork has a connection of its own.
//
//lane:skip race (the time goes to Python)
func TestWatchClosedDescriptors(t *testing.T) {
	r, out := run(t, Options{}, python(t), "testdata/closes.py", filepath.Join(t.TempDir(), "file"))
	assert.Equal(t, "0 0\n", out)
	assert.Zero(t, r.Exit)
}

// The probe does not touch tuples that a thread builds, nor the local variables of functions.
//
//lane:skip race (the time goes to Python)
func TestWatchChangesNothing(t *testing.T) {
	_, out := run(t, Options{}, python(t), "testdata/tuples.py")
	assert.Equal(t, "['kept']\n0\n", out)
}

func TestWatchOwnSitecustomize(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte("own = 'mine'\n"), 0o600))
	t.Setenv("PYTHONPATH", dir)
	_, out := run(t, Options{}, python(t), "-c", "import sitecustomize; print(sitecustomize.own, sitecustomize.__file__)")
	assert.Equal(t, "mine "+filepath.Join(dir, "sitecustomize.py")+"\n", out)
}

func TestWatchExit(t *testing.T) {
	r, out := run(t, Options{}, "sh", "-c", "echo out; exit 7")
	assert.Equal(t, 7, r.Exit)
	assert.Equal(t, "out\n", out)
	assert.Equal(t, Undecided, r.Verdict)
	r, _ = run(t, Options{}, "sh", "-c", "kill -KILL $$")
	assert.Equal(t, 137, r.Exit)
	_, err := Run(t.Context(), Options{Command: []string{"no-such-program"}})
	assert.ErrorIs(t, err, ErrNotFound)
}

// The program gets the signals, and decides when it ends.
func TestWatchSignals(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	require.NoError(t, syscall.Mkfifo(ready, 0o600))
	go func() {
		if _, err := os.ReadFile(ready); err == nil {
			_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1) // Run passes it on
		}
	}()
	r, out := run(t, Options{}, "sh", "-c", "trap 'echo saved; exit 3' USR1; echo > "+ready+"; while :; do sleep 0.1; done")
	assert.Equal(t, "saved\n", out)
	assert.Equal(t, 3, r.Exit)
	assert.Empty(t, r.Ended)
}

func TestWatchWithin(t *testing.T) {
	r, _ := run(t, Options{Within: time.Second}, "sleep", "1000")
	assert.Equal(t, "the time is over", r.Ended)
}

func TestWatchAttach(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	r, err := Attach(ctx, []int{os.Getpid()}, Options{Within: 100 * time.Millisecond})
	require.NoError(t, err)
	assert.Equal(t, []int{os.Getpid()}, r.PIDs)
	assert.Equal(t, perMinute, r.Unit)
	assert.Positive(t, r.Peak)
	_, err = Attach(ctx, []int{1 << 30}, Options{})
	assert.ErrorIs(t, err, ErrNotFound)
}

func TestWatchRule(t *testing.T) {
	leak := &Report{Verdict: Leak, Unit: "training step", Slope: memory.Interval{Estimate: 2e6, Low: 1.9e6, High: 2.1e6}, Peak: memory.GiB}
	for text, fails := range map[string]bool{
		"leak": true, "slope>1MiB/step": true, "slope>2MiB/step": false, "peak>512MiB": true, "peak>2GiB": false,
	} {
		rule, err := ParseRule(text)
		require.NoError(t, err, text)
		assert.Equal(t, fails, rule.Check(leak) != nil, text)
	}
	minute, err := ParseRule("slope>1MiB/minute")
	require.NoError(t, err)
	leak.StepSeconds = 10
	assert.NoError(t, minute.Check(&Report{Unit: perMinute, Slope: memory.Interval{Low: 1e6}}))
	assert.Error(t, minute.Check(leak), "11 MB per minute")
	leak.Unit = perMinute
	step, err := ParseRule("slope>1MiB/step")
	require.NoError(t, err)
	assert.ErrorContains(t, step.Check(leak), "no steps were seen")
	for _, text := range []string{"", "slope", "slope>1MiB", "slope>x/step", "peak>1MiB/step", "level>1MiB"} {
		_, err := ParseRule(text)
		assert.Error(t, err, text)
	}
}

// Samples that come more often at first do not make a curve that levels off a leak.
func TestWatchEven(t *testing.T) {
	var s memory.Series
	add := func(step int) {
		held := memory.Bytes(min(step, 1000)) * 40 * memory.KiB
		s.Append(&memory.Sample{Step: step, Values: []memory.Value{{Layer: Total, Reading: memory.Known(200*memory.MiB + held)}}})
	}
	for step := 0; step < 1000; step += 15 {
		add(step)
	}
	for step := 1000; step < 8000; step += 400 {
		add(step)
	}
	v := even(&s, "train").Judge(memory.Criteria{Layer: Total, Budget: stepBudget})
	assert.Equal(t, Level, verdict(v), v.String())
}

// Malloc in use decides whether memory leaks whose sum flattens. The samples are of a function that XLA compiles for
// each shape.
func TestWatchMallocDecides(t *testing.T) {
	f, err := os.Open("testdata/compiles.csv")
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	var s memory.Series
	for _, row := range rows[1:] {
		var v [4]int64
		for i := range v {
			v[i], err = strconv.ParseInt(row[i], 10, 64)
			require.NoError(t, err)
		}
		s.Append(&memory.Sample{Step: int(v[0]), Values: []memory.Value{
			{Layer: Total, Reading: memory.Known(memory.Bytes(v[1]))},
			{Layer: memory.Anon, Reading: memory.Known(memory.Bytes(v[1]))},
			{Layer: memory.MallocFree, Reading: memory.Known(memory.Bytes(v[2]))},
			{Layer: memory.MallocUsed, Reading: memory.Known(memory.Bytes(v[3]))},
		}})
	}
	v := judge(&s, criteria(&s, "call"))
	assert.Equal(t, Leak, verdict(v), v.String())
}

// Memory that grows during a few seconds is not called level, nor a leak while a program with a probe loads packages.
func TestWatchShortGrowth(t *testing.T) {
	growing := func(samples int, each, files memory.Bytes) *recorder {
		r := newRecorder(nil, os.Getpid())
		t.Cleanup(func() { r.tree.close() })
		r.series[byTime] = &memory.Series{}
		began := time.Now()
		for i := range samples {
			s := memory.Sample{At: began.Add(time.Duration(i) * 100 * time.Millisecond)}
			s.Set(Total, memory.Known(memory.GiB+memory.Bytes(i)*each))
			s.Set(memlayer.File, memory.Known(memory.GiB+memory.Bytes(i)*files))
			r.series[byTime].Append(&s)
		}
		return r
	}
	report := growing(60, 50*memory.KiB, 0).report()
	assert.Equal(t, Undecided, report.Verdict)
	assert.Contains(t, report.Reason(), "5 minutes")
	assert.Equal(t, Undecided, growing(200, 150*memory.KiB, 0).report().Verdict)
	assert.Equal(t, Undecided, growing(25, 5*memory.MiB, 0).report().Verdict)
	for files, verdict := range map[memory.Bytes]string{0: Leak, memory.MiB: Undecided} {
		r := growing(60, 5*memory.MiB, files)
		assert.Equal(t, Leak, r.report().Verdict)
		r.peers = []*peer{{}}
		assert.Equal(t, verdict, r.report().Verdict)
	}
	assert.Contains(t, report.Reason(), "5 minutes")
}

func TestWatchBaseline(t *testing.T) {
	report := func(verdict string, slope float64, steps int, peak memory.Bytes) *Report {
		return &Report{Unit: "training step", Verdict: verdict, Steps: steps, Peak: peak,
			Slope: memory.Interval{Estimate: slope, Low: slope - 10, High: slope + 10}}
	}
	earlier := report(Leak, 1000, 100, memory.GiB)
	for _, c := range []struct {
		of    *Report
		worse bool
		text  string
	}{
		{report(Leak, 1015, 100, memory.GiB), false, "the slope of"},
		{report(Leak, 1021, 100, memory.GiB), true, " is above the earlier "},
		{report(Level, 1021, 100, memory.GiB), false, "is no leak, compared with"},
		{report(Leak, 10, 105, memory.GiB+40*memory.MiB), false, "the peak of 1.0 GiB is not above"},
		{report(Leak, 10, 95, memory.GiB+60*memory.MiB), true, "the peak of 1.1 GiB is above"},
		{report(Leak, 10, 200, 2*memory.GiB), false, "not compared"},
	} {
		text, err := c.of.Compare(earlier)
		assert.Equal(t, c.worse, errors.Is(err, ErrWorse), text)
		assert.Contains(t, text, c.text)
	}
}

func TestSure(t *testing.T) {
	r := Report{Verdict: Level, kind: "train", Samples: 100, Seconds: 50, From: 10, to: 100}
	for high, sure := range map[float64]bool{1000: true, 10_000: false} { // bytes per step
		r.Slope = memory.Interval{High: high}
		assert.Equal(t, sure, r.sure(), high)
	}
	// Memory that malloc had free hides the growth at first.
	r.Slope, r.hidden = memory.Interval{}, true
	assert.False(t, r.sure())
	r.Verdict, r.Cause = Leak, unknown
	assert.True(t, r.sure())
	r.Samples = 20
	assert.False(t, r.sure())
}

// Growth that nothing explains is a leak only if it looks like a line. A count explains growth that goes with it, and
// several containers explain it together.
func TestDecide(t *testing.T) {
	series := &memory.Series{}
	for i := range 100 {
		s := memory.Sample{Step: i, At: time.Now().Add(time.Duration(i-100) * time.Second)}
		s.Set(Total, memory.Known(100*memory.MiB+memory.Bytes(i)*100*memory.KiB))
		s.Set("model count", memory.Known(memory.Bytes(i)))
		s.Set("dataset count", memory.Known(memory.Bytes(i/10)))
		series.Append(&s)
	}
	line := memory.Interval{Estimate: 100 * 1024, Low: 90 * 1024, High: 110 * 1024}
	wide := memory.Interval{Estimate: 100 * 1024, Low: 60 * 1024, High: 140 * 1024}
	each := memory.Interval{Estimate: 1, Low: 1, High: 1}
	for _, c := range []struct {
		slope       memory.Interval
		trends      []memory.Trend
		lists       int
		verdict, is string
	}{
		{line, nil, 0, Leak, unknown},
		{wide, nil, 0, Undecided, ""},
		{wide, []memory.Trend{{Layer: "python block count", Slope: memory.Interval{Estimate: 1000, Low: 900, High: 1100}}}, 0,
			Leak, keptInPython},
		{wide, []memory.Trend{{Layer: "model count", Slope: each}}, 0, Leak, "models built again"},
		{line, []memory.Trend{{Layer: "dataset count", Slope: memory.Interval{Estimate: 0.1, Low: 0.1, High: 0.1}}}, 0, Leak,
			unknown},
		{line, nil, 1, Leak, unknown},
		{wide, nil, 3, Leak, "objects kept in a list in Python"},
	} {
		r := newRecorder(nil)
		r.main, r.series["train"] = &peer{}, series
		for i := range c.lists {
			r.follow(container{ID: int64(i), Type: "list", Own: true, Length: 100, Seconds: 100, Bytes: 20 * 1024}, r.main)
		}
		out := &Report{kind: "train", series: series, Unit: "training step", Layers: []Layer{{}, {}}}
		v := memory.Verdict{Kind: memory.Leak, Slope: c.slope, To: 100, Level: 110 * memory.MiB, Trends: c.trends}
		r.decide(out, v, stepBudget)
		assert.Equal(t, c.verdict, out.Verdict)
		assert.Equal(t, c.verdict, out.Layers[0].Verdict)
		assert.Equal(t, c.is, out.Cause)
	}
}

// A leak may begin after the training, and the program may close the descriptor of the probe.
func TestWatchChanges(t *testing.T) {
	r, _ := run(t, Options{}, python(t), "testdata/later.py")
	assert.Equal(t, Leak, r.Verdict)
	assert.Equal(t, "prediction step", r.Unit)
	assert.Equal(t, "kept", r.Why.Variable)
	r, _ = run(t, Options{}, python(t), "testdata/later.py", "closes")
	assert.Equal(t, perMinute, r.Unit)
	assert.Contains(t, r.Notes, "The program has closed the connection of the probe, so time counts instead of steps.")
}

// A connection may end before its first message.
func TestWatchEndedConnection(t *testing.T) {
	r := newRecorder(nil)
	r.receive(message{from: &peer{}, ended: true})
	assert.Empty(t, r.peers)
	first, second := &peer{}, &peer{}
	for _, p := range []*peer{first, second} {
		hello := message{from: p}
		require.NoError(t, json.Unmarshal([]byte(`{"hello": {}}`), &hello))
		r.receive(hello)
	}
	for _, p := range []*peer{first, second} {
		r.receive(message{from: p, ended: true})
	}
	assert.Equal(t, []*peer{first}, r.peers)
}

// A connection may be lost before a sample.
func TestWatchLostConnection(t *testing.T) {
	r := newRecorder(nil)
	r.lost = true
	assert.Zero(t, r.report().Samples)
}

// A program that is ended leaves no process behind.
func TestWatchEndsAll(t *testing.T) {
	r, text := run(t, Options{Within: 2 * time.Second}, "sh", "-c",
		`sh -c 'trap "" TERM; echo $$; while :; do sleep 0.1; done'; true`)
	assert.Equal(t, "the time is over", r.Ended)
	command, _ := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(text), "cmdline")) // it has ended
	assert.Empty(t, command)
}
