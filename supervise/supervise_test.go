//go:build linux

package supervise

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/child"
	"steadyfit/internal/tfprocess"
)

// The test binary is also the program that runs a task: with scriptEnv set, main only calls Init and Run, and
// never loads TensorFlow.
const (
	scriptEnv = "STEADYFIT_TEST_SCRIPT"
	dirEnv    = "STEADYFIT_TEST_DIR"
	optionEnv = "STEADYFIT_TEST_OPTIONS"
	groupEnv  = "STEADYFIT_TEST_GROUP"
	notifyEnv = "STEADYFIT_TEST_NOTIFY"
	killsEnv  = "STEADYFIT_TEST_KILLS"
)

func TestMain(m *testing.M) {
	tasks := map[string]Task{}
	for name, s := range scripts {
		tasks[name] = s.task
	}
	tasks["nan"] = func(context.Context, *Worker, []byte) (any, error) { return math.NaN(), nil }
	tasks["nan fails"] = func(context.Context, *Worker, []byte) (any, error) {
		return math.NaN(), &Error{Code: failCode, Text: "no space is left"}
	}
	Init(tasks)
	if name := os.Getenv(scriptEnv); name != "" {
		os.Exit(play(name))
	}
	os.Exit(m.Run())
}

// task runs a script in a child. The result is the number of the attempt.
func (s script) task(ctx context.Context, w *Worker, _ []byte) (any, error) {
	err := s(ctx, w)
	failed := &Error{Code: failCode, Err: err}
	switch {
	case err == nil:
		return w.Status().Attempt, nil
	case errors.Is(err, ErrRestart):
		return nil, err
	case errors.Is(err, ErrRetry):
		failed.Code, failed.Text = retryCode, err.Error()
	case errors.Is(err, context.Canceled):
		failed.Code, failed.Text = 130, err.Error()
	default:
		failed.Text = "text: " + err.Error()
	}
	return w.Status().Attempt, failed
}

// play is the program that runs the task.
func play(name string) int {
	if group := os.Getenv(groupEnv); group != "" {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0o666); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 9
		}
	}
	var o Options
	if text := os.Getenv(optionEnv); text != "" {
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 9
		}
	}
	ctx := context.Background()
	if os.Getenv(notifyEnv) != "" {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(ctx, stop)
	}
	err := Run(ctx, o, name, nil)
	if err != nil {
		say("%v", err)
	}
	return ExitCode(err)
}

const (
	failCode  = 4
	retryCode = 5
)

type script func(ctx context.Context, w *Worker) error

// say writes a line that tests wait for.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func leave(name, format string, args ...any) error {
	path := filepath.Join(os.Getenv(dirEnv), name)
	if err := os.WriteFile(path+".tmp", fmt.Appendf(nil, format, args...), 0o666); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func die(s syscall.Signal) {
	_ = syscall.Kill(os.Getpid(), s)
	select {}
}

// firstCrashes returns a training whose first process crashes after step 5.
func firstCrashes(crash func()) script {
	return func(_ context.Context, w *Worker) error {
		if w.Status().Attempt > 1 {
			s := w.Status()
			say("resumes at step %d, reason %s", s.Step, s.Reason)
			w.Alive(6)
			return nil
		}
		w.Alive(5)
		crash()
		return nil
	}
}

var scripts = map[string]script{
	"finishes": func(_ context.Context, w *Worker) error {
		s := w.Status()
		say("attempt %d, resumes %v, reason %q, marked %q", s.Attempt, s.Step > 0, s.Reason, os.Getenv(child.SupervisedEnv))
		w.Alive(1)
		return nil
	},
	"done": func(_ context.Context, w *Worker) error {
		w.Alive(1)
		w.Done(7)
		w.Alive(2)
		w.Done(8)
		switch os.Getenv(killsEnv) {
		case "1":
			die(syscall.SIGKILL)
		case "0":
			return errors.New("a rank was lost")
		}
		return nil
	},
	"fails":   func(context.Context, *Worker) error { return errors.New("the data is bad") },
	"nests":   func(ctx context.Context, _ *Worker) error { return Run(ctx, Options{}, "fails", nil) },
	"killed":  firstCrashes(func() { die(syscall.SIGKILL) }),
	"faults":  firstCrashes(func() { die(syscall.SIGSEGV) }),
	"panics":  firstCrashes(func() { var p *int; *p = 1 }),
	"exits":   firstCrashes(func() { os.Exit(0) }),
	"stopped": firstCrashes(func() { say("hangs"); die(syscall.SIGSTOP) }),
	"hangs":   firstCrashes(func() { say("hangs"); select {} }),
	"aborts": firstCrashes(func() {
		say("F0000 00:00:00 check.cc:1] Check failed: x == y\nmore")
		die(syscall.SIGABRT)
	}),
	"writesdies": func(_ context.Context, w *Worker) error {
		if w.Status().Attempt > 1 {
			return leave("again", "%d", w.Status().Attempt)
		}
		w.Alive(1)
		say("a last word")
		die(syscall.SIGKILL)
		return nil
	},
	"unread": func(_ context.Context, w *Worker) error {
		if w.Status().Attempt > 1 {
			say("nobody reads this either")
			return cmp.Or(leave("again", "%d", w.Status().Attempt), errors.New("the loss is NaN"))
		}
		w.Alive(1)
		say("ready")
		if _, err := os.ReadFile(filepath.Join(os.Getenv(dirEnv), "closed")); err != nil {
			return err
		}
		say("nobody reads this")
		die(syscall.SIGKILL)
		return nil
	},
	"never":    func(context.Context, *Worker) error { die(syscall.SIGKILL); return nil },
	"samestep": func(_ context.Context, w *Worker) error { w.Alive(7); die(syscall.SIGKILL); return nil },
	"long": func(_ context.Context, w *Worker) error {
		began := make(chan struct{})
		go func() {
			for n := 0; ; n++ {
				if n == 1 {
					close(began)
				}
				w.first.Store(false)
				w.Alive(1)
			}
		}()
		<-began
		return errors.New(longText)
	},
	"alwaysagain": func(_ context.Context, w *Worker) error { return w.Restart("reset") },
	"alwaysretry": func(context.Context, *Worker) error { return fmt.Errorf("no memory: %w", ErrRetry) },
	"progresses": func(_ context.Context, w *Worker) error {
		w.Alive(int64(w.Status().Attempt))
		if w.Status().Attempt < 6 {
			die(syscall.SIGKILL)
		}
		return nil
	},
	// The first two processes run out of memory at step 1, the third at step 9, and the fourth is
	// killed at step 10.
	"nomemory": func(_ context.Context, w *Worker) error {
		say("memory crashes %d", w.Status().MemoryCrashes)
		switch w.Status().Attempt {
		case 1, 2:
			w.Alive(1)
		case 3:
			w.Alive(9)
		case 4:
			w.Alive(10)
			die(syscall.SIGKILL)
		default:
			return nil
		}
		say("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc")
		die(syscall.SIGABRT)
		return nil
	},
	"again": func(_ context.Context, w *Worker) error {
		if w.Status().Attempt == 1 {
			w.Alive(4)
			w.Alive(5) // too early to be sent
			return w.Restart("reset after 5 steps")
		}
		w.Alive(6)
		s := w.Status()
		say("resumes %v, reason %s", s.Step > 0, s.Reason)
		return nil
	},
	"waits": func(ctx context.Context, w *Worker) error {
		got := make(chan os.Signal, 8)
		signal.Notify(got, endSignals()...)
		w.Alive(1)
		say("ready")
		<-ctx.Done()
		say("asked to end by %v: %v", <-got, len(got))
		return ctx.Err()
	},
	"stubborn": func(ctx context.Context, w *Worker) error {
		if err := leave("pid", "%d", os.Getpid()); err != nil {
			return err
		}
		say("ready")
		<-ctx.Done()
		say("asked")
		select {}
	},
	"orphan": func(ctx context.Context, w *Worker) error {
		say("ready")
		<-ctx.Done()
		say("nobody reads this")
		return leave("cause", "%v", context.Cause(ctx))
	},
	"grandchild": firstCrashes(func() {
		cmd := exec.Command("sleep", "1000")
		cmd.Stderr = os.Stderr // keeps the log open
		if err := errors.Join(cmd.Start(), leave("pid", "%d", cmd.Process.Pid)); err != nil {
			say("%v", err)
		}
		die(syscall.SIGKILL)
	}),
	// The first process crashes like a kernel of TensorFlow that runs out of memory.
	"kernel": func(_ context.Context, w *Worker) error {
		if w.Status().Attempt > 1 {
			say("memory crashes %d", w.Status().MemoryCrashes)
			return nil
		}
		say("epoch 1\nE0000 00:00:1.1 2790 a.cc:1] an error")
		if os.Getenv(tfprocess.LogLevel) <= tfprocess.LogWarnings {
			say("2026-11-22 20:14:33.473431: W tensorflow/core/framework/op_kernel.cc:1842] OP_REQUIRES failed at " +
				"conv.cc:1 : RESOURCE_EXHAUSTED: OOM when allocating tensor with shape[8]")
		}
		fmt.Fprint(os.Stderr, "no end")
		die(syscall.SIGSEGV)
		return nil
	},
	"hog": func(_ context.Context, w *Worker) error {
		if w.Status().Attempt > 1 {
			say("%s", w.Status().Reason)
			return nil
		}
		w.Alive(1)
		for {
			hogged = append(hogged, bytes.Repeat([]byte{1}, 8<<20))
		}
	},
}

var (
	hogged   [][]byte
	longText = strings.Repeat("long ", 1<<20)
)

// sink is a Stderr that tests can wait for.
type sink struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await returns when the word has been written.
func (s *sink) await(t *testing.T, word string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(s.String(), word) }, time.Minute, time.Millisecond, word)
}

// trial supervises a script in this process, with a fake clock.
type trial struct {
	Options
	task   string
	dir    string
	ctx    context.Context
	sink   *sink
	log    *sink
	waits  []time.Duration
	onWait func()
}

func newTrial(t *testing.T, name string) *trial {
	t.Helper()
	tr := &trial{task: name, dir: t.TempDir(), ctx: t.Context(), sink: new(sink), log: new(sink)}
	tr.Options = Options{
		args: os.Args[:1], Env: []string{dirEnv + "=" + tr.dir},
		Stderr: tr.sink, Log: slog.New(slog.NewTextHandler(tr.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Grace: time.Hour,
		after: func(d time.Duration) <-chan time.Time {
			switch d {
			case time.Hour:
				return nil // Grace never ends
			case tr.Grace:
				return time.After(d)
			}
			tr.waits = append(tr.waits, d)
			if tr.onWait != nil {
				tr.onWait()
			}
			due := make(chan time.Time)
			close(due)
			return due
		},
	}
	return tr
}

func (tr *trial) run() error { return Run(tr.ctx, tr.Options, tr.task, nil) }

func TestSuperviseFinishes(t *testing.T) {
	tr := newTrial(t, "finishes")
	result := 0
	tr.Result = &result
	require.NoError(t, tr.run())
	assert.Equal(t, "attempt 1, resumes false, reason \"\", marked \"\"\n", tr.sink.String())
	assert.Equal(t, 1, result)
	assert.Empty(t, tr.waits)
	assert.NotContains(t, tr.log.String(), "WARN")
}

// A child that has reported the end of the training is not started again if it crashes. An error that it
// returns replaces the report.
func TestSuperviseDone(t *testing.T) {
	for _, kills := range []string{"", "0", "1"} {
		t.Setenv(killsEnv, kills)
		tr := newTrial(t, "done")
		result := 0
		tr.Result = &result
		err := tr.run()
		if kills == "0" {
			require.ErrorContains(t, err, "a rank was lost")
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, 7, result)
		assert.Empty(t, tr.waits)
	}
}

// The training is not repeated for a result that has no JSON form or cannot be decoded, and its own error is kept.
func TestSuperviseResultWithoutJSON(t *testing.T) {
	for _, task := range []string{"nan", "nan fails"} {
		tr := newTrial(t, task)
		err := tr.run()
		assert.ErrorContains(t, err, "supervise: the result cannot be sent: json: unsupported value: NaN")
		assert.Equal(t, task == "nan fails", ExitCode(err) == failCode)
		assert.Equal(t, task == "nan fails", strings.Contains(err.Error(), "no space is left\n"))
		assert.Empty(t, tr.waits)
	}
	tr := newTrial(t, "fails")
	tr.Result = new(string)
	err := tr.run()
	assert.Equal(t, failCode, ExitCode(err))
	assert.ErrorContains(t, err, "text: the data is bad\nsupervise: the result of the child cannot be read")
}

// A message that is longer than the buffer of a pipe is not mixed with signs of life.
func TestSuperviseLongOutcome(t *testing.T) {
	assert.EqualError(t, newTrial(t, "long").run(), "text: "+longText)
}

func TestSuperviseDoesNotRetryAnOrdinaryError(t *testing.T) {
	for name, text := range map[string]string{"fails": "the data is bad", "nests": "was called in a child process"} {
		tr := newTrial(t, name)
		var failed *Error
		err := tr.run()
		require.ErrorAs(t, err, &failed)
		assert.Equal(t, failCode, failed.Code)
		assert.Regexp(t, "^text: .*"+text, err)
		assert.Empty(t, tr.sink.String(), "the parent reports the error")
		assert.Empty(t, tr.waits)
	}
}

func TestSuperviseRestartsAfterEveryKindOfCrash(t *testing.T) {
	for name, cause := range map[string]string{
		"killed":     "killed by SIGKILL",
		"faults":     "crashed with exit code 2: SIGSEGV",
		"panics":     "crashed with exit code 2: panic: runtime error: invalid memory address",
		"aborts":     "crashed with exit code 2: F0000 00:00:00 check.cc:1] Check failed: x == y",
		"exits":      "crashed with exit code 0",
		"grandchild": "killed by SIGKILL",
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, name)
			require.NoError(t, tr.run())
			assert.Contains(t, tr.sink.String(), "resumes at step 5, reason restart 1: "+cause)
			assert.Equal(t, []time.Duration{time.Second}, tr.waits)
			assert.Contains(t, tr.log.String(), "step=5")
			if name == "grandchild" {
				assert.True(t, ended(readPID(t, tr)), "what the child had started goes on")
			}
		})
	}
}

func readPID(t *testing.T, tr *trial) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(tr.dir, "pid"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(string(text))
	require.NoError(t, err)
	return pid
}

// startedPID returns the ID of the child that was started last, or 0.
func startedPID(tr *trial) (pid int) {
	text := tr.log.String()
	if i := strings.LastIndex(text, " pid="); i >= 0 {
		_, _ = fmt.Sscanf(text[i:], " pid=%d", &pid)
	}
	return pid
}

// procState returns the letter of a process's state in /proc, or "" if there is no process.
func procState(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(text), ") ")
	return after[:min(1, len(after))]
}

// ended reports whether a process has ended, even if its parent has not waited for it yet.
func ended(pid int) bool { s := procState(pid); return s == "" || s == "Z" }

func TestSuperviseKillsWhatHangs(t *testing.T) {
	for _, name := range []string{"hangs", "stopped"} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, name)
			tr.Deadline = time.Minute
			clock, died := make(chan time.Time), make(chan struct{})
			// A process does not stop at once when the signal is sent.
			stopped := func() bool { return name == "hangs" || procState(startedPID(tr)) == "T" }
			tr.tick = func(time.Duration) (<-chan time.Time, func()) { return clock, func() {} }
			tr.onWait = sync.OnceFunc(func() { close(died) })
			done := make(chan error, 1)
			go func() { done <- tr.run() }()
			tr.sink.await(t, "hangs")
			require.Eventually(t, stopped, time.Minute, time.Millisecond)
			for dead := false; !dead; {
				select {
				case clock <- time.Time{}:
				case <-died:
					dead = true
				}
			}
			require.NoError(t, <-done)
			// The clock may be faster than the message about the first step.
			assert.Regexp(t, "resumes at step 5, reason restart 1: hang: no sign of life for 10?m0s", tr.sink.String())
		})
	}
}

// stuckWriter blocks until it is released.
type stuckWriter struct{ letGo chan struct{} }

func (w stuckWriter) Write(b []byte) (int, error) {
	<-w.letGo
	return len(b), nil
}

// Output beyond the size of the queue blocks the child until it ends. The deadline does not count meanwhile.
func TestPassingOnWithoutAReader(t *testing.T) {
	p := newParent(Options{Deadline: time.Minute})
	clock, exited, out := make(chan time.Time), make(chan struct{}), make(chan func(), 2)
	p.tick = func(time.Duration) (<-chan time.Time, func()) { return clock, func() {} }
	stderr := &relay{w: new(sink), out: out, ended: make(chan struct{})}
	var tail child.Tail
	w := io.MultiWriter(&tail, stderr) // like child.Process
	for range 2 {
		_, err := w.Write([]byte("a"))
		require.NoError(t, err)
	}
	assert.False(t, stderr.stuck.Load())
	written, watched := make(chan struct{}), make(chan struct{})
	go func() { defer close(written); _, _ = w.Write([]byte("b")) }()
	require.Eventually(t, stderr.stuck.Load, time.Minute, time.Millisecond)
	a := &attempt{stepped: true} // it has no process that could be killed
	go func() { defer close(watched); p.watch(t.Context(), a, nil, exited, stderr) }()
	for range 3 * ticks {
		clock <- time.Time{}
	}
	close(exited)
	<-watched
	close(stderr.ended)
	<-written
	assert.False(t, stderr.stuck.Load())
	assert.Len(t, out, 2)
	assert.Equal(t, "aab", tail.String())
}

func TestSuperviseGraceCoversTheDeadline(t *testing.T) {
	for _, c := range []struct{ deadline, grace, want time.Duration }{
		{0, 0, 5 * time.Minute}, {time.Second, 0, 5 * time.Minute}, {time.Hour, 0, time.Hour},
		{5 * time.Minute, time.Second, time.Second},
	} {
		p := newParent(Options{Deadline: c.deadline, Grace: c.grace})
		assert.Equal(t, c.want, p.Grace)
		assert.Equal(t, c.want, p.next.Grace)
	}
}

// pipedWorker returns a worker, and the pipe to which it sends signs of life.
func pipedWorker(t *testing.T) (w *Worker, r *os.File) {
	t.Helper()
	var fds [2]int
	require.NoError(t, syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK))
	r = os.NewFile(uintptr(fds[0]), "parent")
	t.Cleanup(func() { _ = r.Close(); _ = syscall.Close(fds[1]) })
	return &Worker{began: time.Now(), fd: fds[1]}, r
}

func TestBusy(t *testing.T) {
	w, r := pipedWorker(t)
	done := w.Busy()
	const sign = "{\"step\":0}\n"
	buffer := make([]byte, 3*len(sign)) // a read may return several
	_, err := io.ReadFull(r, buffer)
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat(sign, 3), string(buffer))
	done()
}

func TestSuperviseGivesUpWithoutProgress(t *testing.T) {
	for name, want := range map[string]struct {
		code  int
		cause string
	}{
		"never":       {1, "step 0"},
		"samestep":    {1, "step 7"},
		"alwaysagain": {1, "reset"},
		"alwaysretry": {5, "no memory"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, name)
			tr.Restarts, tr.Backoff = 3, 20*time.Second
			var failed *Error
			err := tr.run()
			require.ErrorAs(t, err, &failed)
			assert.Equal(t, want.code, failed.Code)
			require.Len(t, failed.Crashes, 4)
			assert.Equal(t, []time.Duration{20 * time.Second, 40 * time.Second, time.Minute}, tr.waits)
			assert.Equal(t, 4, strings.Count(err.Error(), want.cause))
			assert.Contains(t, err.Error(), "attempt 4")
		})
	}
}

func TestSuperviseProgressForgives(t *testing.T) {
	tr := newTrial(t, "progresses")
	tr.Restarts = 1
	require.NoError(t, tr.run())
	assert.Equal(t, slices.Repeat([]time.Duration{time.Second}, 5), tr.waits)
}

// Crashes for lack of memory are counted until a later step is reached.
func TestSuperviseCountsMemoryCrashes(t *testing.T) {
	tr := newTrial(t, "nomemory")
	require.NoError(t, tr.run())
	var counts []string
	for line := range strings.Lines(tr.sink.String()) {
		if text, ok := strings.CutPrefix(line, "memory crashes "); ok {
			counts = append(counts, strings.TrimSpace(text))
		}
	}
	assert.Equal(t, []string{"0", "1", "2", "1", "0"}, counts)
}

// The lack of memory of a kernel is noticed at each level of TensorFlow's log, and the output has the lines of the level.
func TestSuperviseCrashOfAKernelAtEachLogLevel(t *testing.T) {
	for level, shown := range map[string][2]bool{"0": {true, true}, "1": {true, true}, "2": {false, true}, "3": {}} {
		for _, env := range [][]string{nil, {tfprocess.LogLevel + "=" + level}} {
			tr := newTrial(t, "kernel")
			t.Setenv(tfprocess.LogLevel, level)
			if tr.Env = append(tr.Env, env...); env != nil {
				t.Setenv(tfprocess.LogLevel, "0")
			}
			require.NoError(t, tr.run())
			text := tr.sink.String()
			assert.Contains(t, text, "memory crashes 1\n")
			assert.Equal(t, shown, [2]bool{strings.Contains(text, "OOM"), strings.Contains(text, "an error")}, level)
			assert.Contains(t, text, "epoch 1\n")
			assert.Contains(t, text, "no end")
		}
	}
}

func TestSuperviseAgainStartsAtOnce(t *testing.T) {
	tr := newTrial(t, "again")
	tr.Restarts = -1
	require.NoError(t, tr.run())
	assert.Equal(t, "resumes true, reason reset after 5 steps\n", tr.sink.String())
	assert.Contains(t, tr.log.String(), "continues in another process")
	assert.Contains(t, tr.log.String(), "step=5")
	assert.Equal(t, []time.Duration{0}, tr.waits)
}

// A child that crashes while nobody reads its output is restarted. A signal ends the wait for a reader of the last
// output.
func TestSuperviseBehindAStuckTerminal(t *testing.T) {
	tr := newTrial(t, "writesdies")
	stuck := stuckWriter{make(chan struct{})}
	defer close(stuck.letGo)
	tr.Stderr, tr.Log = stuck, slog.New(slog.NewTextHandler(stuck, nil))
	p := newParent(tr.Options)
	p.next.Task = tr.task
	done := make(chan error, 1)
	go func() { done <- p.run(t.Context()) }()
	path := filepath.Join(tr.dir, "again")
	require.Eventually(t, func() bool { _, err := os.Stat(path); return err == nil }, time.Minute, time.Millisecond)
	for {
		select {
		case p.signals <- syscall.SIGTERM: // the first signals may still go to the child
		case <-done:
			return
		}
	}
}

func TestSuperviseCannotStart(t *testing.T) {
	tr := newTrial(t, "finishes")
	tr.args = []string{filepath.Join(t.TempDir(), "missing")}
	require.ErrorIs(t, tr.run(), os.ErrNotExist)
	assert.Empty(t, tr.waits)
}

func TestSuperviseContextEnds(t *testing.T) {
	for _, name := range []string{"waits", "stubborn"} {
		tr := newTrial(t, name)
		ctx, cancel := context.WithCancel(t.Context())
		tr.ctx = ctx
		if name == "stubborn" {
			tr.Grace = time.Millisecond
		}
		done := make(chan error, 1)
		go func() { done <- tr.run() }()
		tr.sink.await(t, "ready")
		cancel()
		err := <-done
		if name == "stubborn" {
			require.ErrorIs(t, err, context.Canceled)
			assert.ErrorContains(t, err, "it had not ended after 1ms")
			assert.True(t, ended(readPID(t, tr)))
			continue
		}
		var failed *Error
		require.ErrorAs(t, err, &failed)
		assert.Equal(t, 130, failed.Code)
		assert.Contains(t, tr.sink.String(), "asked to end by terminated: 0")
	}
}

// startParent starts a supervising process for a script. The tests send signals to this process.
func startParent(t *testing.T, name string, o Options, env ...string) (cmd *exec.Cmd, out *sink, dir string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"Grace": o.Grace, "KillOrphan": o.KillOrphan})
	require.NoError(t, err)
	dir, out = t.TempDir(), new(sink)
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), scriptEnv+"="+name, dirEnv+"="+dir, optionEnv+"="+string(text)), env...)
	cmd.Stderr = out
	require.NoError(t, cmd.Start())
	return cmd, out, dir
}

// A signal is passed once, and a second interrupt kills the child. A main that handles signals cancels the context
// of Run, and Run treats the signal and the cancellation as one request.
func TestSupervisePassesSignalsOnce(t *testing.T) {
	type end struct {
		env  string
		s    os.Signal
		says string
	}
	ends := []end{{notifyEnv + "=1", os.Interrupt, "asked to end by (interrupt|terminated): 0"}}
	for _, s := range endSignals() { // under nohup, this process ignores SIGHUP
		ends = append(ends, end{notifyEnv + "=", s, fmt.Sprintf("asked to end by %v: 0", s)})
	}
	for _, e := range ends {
		cmd, out, _ := startParent(t, "waits", Options{}, e.env)
		out.await(t, "ready")
		require.NoError(t, cmd.Process.Signal(e.s))
		assert.Error(t, cmd.Wait())
		assert.Equal(t, 130, cmd.ProcessState.ExitCode(), "%s", out)
		assert.Regexp(t, e.says, out.String())
	}
	cmd, out, _ := startParent(t, "stubborn", Options{})
	out.await(t, "ready")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	out.await(t, "asked")
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	assert.Error(t, cmd.Wait())
	assert.Equal(t, 130, cmd.ProcessState.ExitCode(), "%s", out)
}

// When the reader of the parent's output ends, such as a pager, the training continues and its child is
// restarted. The exit code is that of the training, although main cannot print its error.
func TestSuperviseOutlivesTheReaderOfItsLog(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	require.NoError(t, syscall.Mkfifo(closed, 0o666))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), scriptEnv+"=unread", dirEnv+"="+dir, optionEnv+`={"Backoff":1}`)
	cmd.Stderr = w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	require.NoError(t, r.Close())
	require.NoError(t, os.WriteFile(closed, nil, 0))
	assert.Error(t, cmd.Wait())
	assert.Equal(t, failCode, cmd.ProcessState.ExitCode())
	text, err := os.ReadFile(filepath.Join(dir, "again"))
	require.NoError(t, err)
	assert.Equal(t, "2", string(text))
}

func TestSuperviseOrphanEndsItself(t *testing.T) {
	cmd, out, dir := startParent(t, "orphan", Options{})
	out.await(t, "ready")
	require.NoError(t, cmd.Process.Kill())
	assert.Error(t, cmd.Wait())
	var cause []byte
	require.Eventually(t, func() (ok bool) {
		var err error
		cause, err = os.ReadFile(filepath.Join(dir, "cause"))
		return err == nil
	}, time.Minute, time.Millisecond)
	assert.Equal(t, errOrphaned.Error(), string(cause))
}

func TestSuperviseStubbornOrphanIsKilled(t *testing.T) {
	for _, o := range []Options{{Grace: time.Millisecond}, {KillOrphan: true}} {
		cmd, out, dir := startParent(t, "stubborn", o)
		out.await(t, "ready")
		text, err := os.ReadFile(filepath.Join(dir, "pid"))
		require.NoError(t, err)
		pid, err := strconv.Atoi(string(text))
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Kill())
		assert.Error(t, cmd.Wait())
		// Grace is a minute otherwise
		require.Eventually(t, func() bool { return ended(pid) }, 50*time.Second, time.Millisecond)
	}
}

// The crash of a child that the kernel kills for lack of memory in its control group is reported as
// such.
func TestSuperviseReportsTheOOMKiller(t *testing.T) {
	c, limit := cgroup.Find(os.DirFS("/"), "self", "memory"), "memory.max"
	if c.Version == 1 {
		limit = "memory.limit_in_bytes"
	}
	if len(c.Dirs) == 0 {
		t.Skip("needs a control group for memory")
	}
	group, err := os.MkdirTemp(c.Dirs[0], "steadyfit-test-")
	if err != nil {
		t.Skipf("needs the right to make a control group: %v", err)
	}
	t.Cleanup(func() { assert.NoError(t, os.Remove(group)) })
	file, err := os.OpenFile(filepath.Join(group, limit), os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs a control group that can limit memory: %v", err)
	}
	_, err = file.WriteString(strconv.Itoa(128 << 20))
	require.NoError(t, errors.Join(err, file.Close()))
	cmd, out, _ := startParent(t, "hog", Options{}, groupEnv+"="+group)
	require.NoError(t, cmd.Wait(), "%s", out)
	assert.Contains(t, out.String(), "restart 1: killed by the kernel because memory ran out")
}

func TestUnsupervised(t *testing.T) {
	var w *Worker
	w.Alive(1)
	w.Busy()()
	assert.Zero(t, w.Status())
	require.Error(t, w.Restart("reset"))
	assert.NotErrorIs(t, w.Restart("reset"), ErrRestart)
}

func TestSuperviseMarkedByHand(t *testing.T) {
	for _, text := range []string{"1", `{"attempt":1,"task":"finishes"}`} {
		t.Setenv(child.SupervisedEnv, text)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), scriptEnv+"=finishes")
		assert.Error(t, cmd.Run())
		assert.Equal(t, 1, cmd.ProcessState.ExitCode())
	}
}

func TestAliveCostsLittle(t *testing.T) {
	w, r := pipedWorker(t)
	step := int64(0)
	n := testing.AllocsPerRun(100_000, func() { step++; w.Alive(step) })
	assert.Zero(t, n)
	most := 2 + int(time.Since(w.began)/aliveEvery)
	buffer := make([]byte, 1<<16)
	got, err := r.Read(buffer)
	require.NoError(t, err)
	assert.LessOrEqual(t, bytes.Count(buffer[:got], []byte{'\n'}), most)
	assert.True(t, bytes.HasPrefix(buffer, []byte("{\"step\":1}\n")), "the first step is reported at once")

	// A parent that does not read does not block the child.
	for filled := false; !filled; {
		_, err := syscall.Write(w.fd, buffer)
		filled = errors.Is(err, syscall.EAGAIN)
	}
	for range 100 {
		w.sent.Store(0)
		w.Alive(step)
	}
}

func TestErrorOutOfMemory(t *testing.T) {
	memory, crashed := Crash{OutOfMemory: true, Cause: "killed by the kernel because memory ran out"}, Crash{Cause: "crashed"}
	for _, c := range []struct {
		crashes []Crash
		want    bool
	}{
		{nil, false}, {[]Crash{crashed}, false}, {[]Crash{memory}, true}, {[]Crash{memory, crashed}, false},
		{[]Crash{memory, crashed, memory}, true},
	} {
		err := &Error{Code: 1, Text: "text", Crashes: c.crashes}
		assert.Equal(t, c.want, err.OutOfMemory(), c.crashes)
		assert.Equal(t, c.want, strings.Contains(err.Error(), "the training needs more memory than is available"))
	}
}

func TestRunWithoutAContext(t *testing.T) {
	var none context.Context
	assert.ErrorContains(t, Run(none, Options{}, "fails", nil), "the context is nil")
	assert.ErrorContains(t, Run(t.Context(), Options{}, "other", nil), "call supervise.Init")
	assert.ErrorContains(t, Run(t.Context(), Options{}, "fails", math.NaN()), "the specification of the task")
}

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{ErrRestart, 0},
		{errors.New("other"), 1},
		{fmt.Errorf("job a: %w", context.Canceled), 130},
		{&Error{Code: 130}, 130},
		{&Error{Code: 1}, 1},
	} {
		assert.Equal(t, c.want, ExitCode(c.err), "%v", c.err)
	}
}
