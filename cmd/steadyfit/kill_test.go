package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/supervise"
)

// argsEnv makes the test binary run the program, with these arguments as JSON.
const argsEnv = "STEADYFIT_TEST_ARGS"

// chosenEnv makes the program train in a child process with this configuration, as if autotune had chosen it.
const chosenEnv = "STEADYFIT_TEST_CHOSEN"

// asProgram runs the program if this process is to be the program or one of its children.
func asProgram() {
	text := os.Getenv(argsEnv)
	if text == "" {
		return
	}
	var args []string
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if len(os.Args) == 1 { // otherwise a child process of the program, such as a run of matrix
		os.Args = append(os.Args, args...)
	}
	if chosen := os.Getenv(chosenEnv); chosen != "" {
		err := supervise.Run(context.Background(), supervise.Options{Restarts: -1}, "train",
			map[string]any{"child": fitSpec{Args: args}, "chosen": json.RawMessage(chosen)})
		fmt.Fprintln(os.Stderr, err)
		os.Exit(supervise.ExitCode(err))
	}
	main()
	os.Exit(0)
}

// program returns the command with these arguments, as a child process.
func program(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(args)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), argsEnv+"="+string(text))
	return cmd
}

// start starts a command, and returns what it prints.
func start(t testing.TB, cmd *exec.Cmd) *bytes.Buffer {
	t.Helper()
	output := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = output, output
	require.NoError(t, cmd.Start())
	return output
}

// weightsOf returns the variables of a SavedModel.
func weightsOf(t *testing.T, model string) []byte {
	t.Helper()
	weights, err := os.ReadFile(filepath.Join(model, "variables", "variables.data-00000-of-00001"))
	require.NoError(t, err)
	return weights
}

// recordsOf returns the lines of a history.
func recordsOf(t *testing.T, history string) (records []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(history)
	require.NoError(t, err)
	for line := range bytes.Lines(text) {
		var r map[string]any
		require.NoError(t, json.Unmarshal(line, &r))
		records = append(records, r)
	}
	return records
}

// TestInterruptExitsWith130 asserts the exit code, which the scripts of testdata/script cannot
// see for a program in the background.
//
//lane:skip race (ends processes)
func TestInterruptExitsWith130(t *testing.T) {
	// Under nohup, programs ignore SIGHUP. Those that this process starts while it is notified do not.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for _, sent := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		dir := t.TempDir()
		cmd := program(t, "fit", "--model", "builtin:digits", "--data", "builtin:digits", "--epochs", "1000000",
			"--history", filepath.Join(dir, "history.jsonl"), "--checkpoints", filepath.Join(dir, "ckpt"))
		output := start(t, cmd)
		waitForHistory(t, filepath.Join(dir, "history.jsonl"))
		require.NoError(t, cmd.Process.Signal(sent))
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		assert.Equal(t, 130, exit.ExitCode(), "%s", output)
		assert.Contains(t, output.String(), "continue with --resume")
	}
}

// trial is a folder with runs of one training, each in its own folder.
type trial struct {
	dir   string
	model string // empty for builtin:digits-cnn
}

// loraModel has a frozen base, so that its checkpoints hold only what training changes.
const loraModel = "../../session/testdata/digits-lora"

// fit trains into the folder of that name, with a checkpoint every 3 steps.
func (r trial) fit(t *testing.T, name string, flags ...string) *exec.Cmd {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(r.dir, name), 0o777))
	return program(t, append([]string{"fit", "--model", cmp.Or(r.model, "builtin:digits-cnn"), "--data", "builtin:digits",
		"--validation", "0.2",
		"--epochs", "12", "--seed", "7", "--every", "3steps", "--resume",
		"--checkpoints", filepath.Join(r.dir, name, "ckpt"), "--history", filepath.Join(r.dir, name, "history.jsonl"),
		"--out", filepath.Join(r.dir, name, "model")}, flags...)...)
}

// outcome returns the part of a run's result that must not depend on the moments of kills.
func (r trial) outcome(t *testing.T, name string) (weights []byte, losses []string) {
	t.Helper()
	for _, r := range recordsOf(t, filepath.Join(r.dir, name, "history.jsonl")) {
		losses = append(losses, fmt.Sprint(r["epoch"], r["step"], r["loss"], r["accuracy"], r["val_loss"]))
	}
	found, err := fit.Checkpoints(filepath.Join(r.dir, name, "ckpt"))
	require.NoError(t, err)
	for _, c := range found {
		require.NoError(t, c.Err)
	}
	require.NotEmpty(t, found)
	return weightsOf(t, filepath.Join(r.dir, name, "model")), losses
}

// whole has the result of an undisturbed training, and its duration.
type whole struct {
	weights []byte
	losses  []string
	took    time.Duration
}

// requireOutcome asserts that a run has the result of an undisturbed one, bit for bit.
func (r trial) requireOutcome(t *testing.T, name string, want whole) {
	t.Helper()
	weights, losses := r.outcome(t, name)
	require.Equal(t, want.losses, losses, name)
	require.True(t, bytes.Equal(want.weights, weights), "%s: the weights differ", name)
}

var wholeRuns = map[string]whole{}

// undisturbedOn returns the undisturbed training, which runs once for all tests.
func undisturbedOn(t *testing.T, model string) whole {
	t.Helper()
	w, ok := wholeRuns[model]
	if !ok {
		wholeRuns[model] = w
		r := trial{t.TempDir(), model}
		started := time.Now()
		out, err := r.fit(t, "whole").CombinedOutput()
		require.NoError(t, err, "%s", out)
		w.took = time.Since(started)
		w.weights, w.losses = r.outcome(t, "whole")
		require.Len(t, w.losses, 12)
		wholeRuns[model] = w
	}
	require.NotEmpty(t, w.losses, "it failed in the test that ran it")
	return w
}

// TestKilledRunsResumeBitForBit kills runs with SIGKILL at random moments, from the start of the
// process to the middle of a checkpoint, and resumes them until they are done. Model and losses
// must be those of an undisturbed run, bit for bit.
//
//lane:skip race (ends processes)
//lane:run soak
func TestKilledRunsResumeBitForBit(t *testing.T) {
	kills := killsOr(t, 4)
	t.Run("whole", func(t *testing.T) { killAndResume(t, "", kills) })
	t.Run("adapter", func(t *testing.T) { killAndResume(t, loraModel, kills/2) })
}

// killsOr returns the number of kills in STEADYFIT_TEST_KILLS, or n if the variable is not set.
func killsOr(t *testing.T, n int) int {
	t.Helper()
	text := os.Getenv("STEADYFIT_TEST_KILLS")
	if text == "" {
		return n
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

func killAndResume(t *testing.T, model string, kills int) {
	r, want := trial{t.TempDir(), model}, undisturbedOn(t, model)
	d := newDisturbance(t, kills, want.took)
	for run := 0; d.killed < kills; run++ {
		name := "run" + strconv.Itoa(run)
		for done := false; !done; {
			cmd := r.fit(t, name)
			output := start(t, cmd)
			after := time.Duration(d.random.Float64() * float64(want.took) * 0.6)
			if d.killed == kills {
				after = time.Hour
			}
			timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // it may have ended
			err := cmd.Wait()
			timer.Stop()
			if done = cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL; done {
				require.NoError(t, err, "after %d kills: %s", d.killed, output)
			} else {
				d.killed++
			}
		}
		r.requireOutcome(t, name, want)
	}
}

// TestSupervisedRunsEndAsUndisturbed kills supervised runs at random moments, also in the middle
// of checkpoints: by SIGKILL, by SIGSEGV, and by SIGSTOP, which makes a hang that the deadline
// ends. Only the supervisor restarts them.
//
//lane:skip race (ends processes)
//lane:run soak
func TestSupervisedRunsEndAsUndisturbed(t *testing.T) {
	kills := killsOr(t, 3)
	t.Run("whole", func(t *testing.T) { killSupervised(t, "", kills) })
	t.Run("adapter", func(t *testing.T) { killSupervised(t, loraModel, max(1, kills/3)) })
}

func killSupervised(t *testing.T, model string, kills int) {
	r := trial{t.TempDir(), model}
	want := undisturbedOn(t, model)
	// The deadline is ten times as long until the first step; a process that it ends too early
	// is restarted.
	deadline := max(want.took/4, time.Second)
	signals := []syscall.Signal{syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGSTOP}
	d := newDisturbance(t, kills, want.took)
	for run := 0; d.killed < kills; run++ {
		name := "run" + strconv.Itoa(run)
		cmd := r.fit(t, name, "--supervise="+deadline.String())
		d.run(t, cmd, func() (int, syscall.Signal) { return childOf(cmd.Process.Pid), signals[d.killed%len(signals)] })
		r.requireOutcome(t, name, want)
		t.Logf("%d runs, %d of %d kills", run+1, d.killed, kills)
	}
}

// A disturbance sends signals to the processes of supervised runs.
type disturbance struct {
	random        *rand.Rand
	took          time.Duration // of an undisturbed run
	kills, killed int
}

func newDisturbance(t *testing.T, kills int, took time.Duration) *disturbance {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d; an undisturbed run takes %v", seed, took.Round(time.Millisecond))
	return &disturbance{rand.New(rand.NewPCG(seed, 0)), took, kills, 0}
}

// run runs a command, which must succeed, and disturbs the processes that next returns, each once, at
// a random time after its start. next returns 0 if no process may be disturbed now. Few of the times
// come before the first step, because the supervisor waits twice as long after each further crash
// without a step.
func (d *disturbance) run(t *testing.T, cmd *exec.Cmd, next func() (pid int, signal syscall.Signal)) {
	output := start(t, cmd)
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for last, due := 0, (time.Time{}); ; {
		select {
		case err := <-done:
			require.NoError(t, err, "after %d kills: %s", d.killed, output)
			return
		case now := <-poll.C:
			pid, signal := next()
			switch {
			case d.killed == d.kills:
			case pid == 0:
				last = 0
			case pid != last:
				last, due = pid, now.Add(time.Duration((0.4+0.6*d.random.Float64())*float64(d.took)))
			case !due.IsZero() && now.After(due):
				due = time.Time{}
				// The process may have ended in the meantime.
				if syscall.Kill(pid, signal) == nil {
					d.killed++
				}
			}
		}
	}
}

// childOf returns the first child of a process; 0 if it has none.
func childOf(pid int) int {
	for _, child := range childrenOf(pid) {
		return child
	}
	return 0
}

// TestOutOfMemory runs out of oneDNN's pool, which is limited to less than a step takes.
// TensorFlow waits 10 s for memory before it reports the error.
//
//lane:skip onednn (sets oneDNN itself)
func TestOutOfMemory(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector's own memory would be in the figures; the tests without it have this one")
	}
	t.Parallel() // the test mostly waits
	dir := t.TempDir()
	const n = 1 << 17
	samples := writeArrays(t,
		data.Field{Name: "x", Array: data.Array{Shape: []int{n, 100}, Values: make([]float32, n*100)}},
		data.Field{Name: "y", Array: data.Array{Shape: []int{n, 1}, Values: make([]float32, n)}})
	command := func(capped bool, args ...string) *exec.Cmd {
		cmd := program(t, append([]string{"fit", "--model", "builtin:dense-100-64-1", "--data", samples, "--batch", "65536",
			"--seed", "1", "--checkpoints", filepath.Join(dir, "ckpt")}, args...)...)
		cmd.Env = append(cmd.Env, "TF_ENABLE_ONEDNN_OPTS=1") // a run resumes only with the setting of its checkpoint
		if capped {
			cmd.Env = append(cmd.Env, "TF_MKL_ALLOC_MAX_BYTES=40000000")
		}
		return cmd
	}
	run := func(cmd *exec.Cmd, code int) string {
		t.Helper()
		out, _ := cmd.CombinedOutput()
		require.Equal(t, code, cmd.ProcessState.ExitCode(), "%s", out)
		return string(out)
	}
	run(command(false, "--epochs", "1"), 0)

	text := run(command(true, "--epochs", "2", "--resume"), exitMemory)
	assert.Contains(t, text, "mklcpu")
	assert.Contains(t, text, "--on-oom microbatch")
	assert.Contains(t, text, "ckpt-2, continue with --resume")

	// Before the second process, the training is interrupted.
	cmd := command(true, "--epochs", "2", "--resume", "--on-oom", "restart", "--supervise")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var said strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "restarting it") {
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	require.Error(t, cmd.Wait())
	require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), &said)
	assert.Contains(t, said.String(), "RESOURCE_EXHAUSTED")
	assert.Contains(t, said.String(), "a new process may get further")

	// The checkpoint is still usable.
	text = run(command(true, "--epochs", "2", "--resume", "--on-oom", "microbatch"), 0)
	assert.Contains(t, text, "trained 2 epochs, 4 steps")
}

// writeArrays writes the fields to a folder of .npy files.
func writeArrays(t *testing.T, fields ...data.Field) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, f := range fields {
		file, err := os.Create(filepath.Join(dir, f.Name+".npy"))
		require.NoError(t, err)
		require.NoError(t, writeNPY(file, f.Array))
		require.NoError(t, file.Close())
	}
	return dir
}

// TestOutOfMemoryOfMalloc limits the memory of a training (RLIMIT_DATA) where TensorFlow takes
// memory from malloc. TensorFlow then reports a tensor that it cannot allocate, but crashes if
// the buffer of a kernel cannot be allocated (std::bad_alloc). Under supervision the run ends
// successfully in both cases, with micro-batches.
//
//lane:skip onednn (sets oneDNN itself)
func TestOutOfMemoryOfMalloc(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector's own memory would be in the figures; the tests without it have this one")
	}
	t.Parallel()
	samples := imageArrays(t, 32)
	want, _ := trainImages(t, samples, 0, []string{"TF_ENABLE_ONEDNN_OPTS=0"})
	// This is above the memory of the process with the model loaded, and about 100 MiB below the
	// need of a step on a whole batch.
	have, events := trainImages(t, samples, 700<<20, []string{"TF_ENABLE_ONEDNN_OPTS=0"}, "--checkpoints",
		filepath.Join(t.TempDir(), "ckpt"), "--on-oom", "microbatch", "--supervise")
	assert.InEpsilonSlice(t, want, have, 1e-3)
	assert.Contains(t, events, "oom")
}

// TestOutOfMemoryOfKernels limits oneDNN's pool to less than an image model takes. TensorFlow
// reports that a tensor cannot be allocated, but some kernels crash, since they use it
// regardless (SIGSEGV, or SIGABRT if they check). Supervision treats that as a lack of memory,
// and the run ends successfully with micro-batches.
//
//lane:skip onednn (sets oneDNN itself)
func TestOutOfMemoryOfKernels(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector's own memory would be in the figures; the tests without it have this one")
	}
	t.Parallel() // the test mostly waits
	samples := imageArrays(t, 16)
	pool := []string{"TF_ENABLE_ONEDNN_OPTS=1"}
	want, _ := trainImages(t, samples, 0, pool)
	// The level hides TensorFlow's warning, which shows that memory ran out.
	limited := append(pool, "TF_MKL_ALLOC_MAX_BYTES=300000000", "TF_CPP_MIN_LOG_LEVEL=2")
	have, events := trainImages(t, samples, 0, limited, "--checkpoints",
		filepath.Join(t.TempDir(), "ckpt"), "--on-oom", "microbatch", "--supervise")
	assert.InEpsilonSlice(t, want, have, 1e-3)
	assert.Contains(t, events, "oom")
}

// imageArrays returns n samples for builtin:image-224.
func imageArrays(t *testing.T, n int) string {
	t.Helper()
	labels := make([]int64, n)
	for i := range labels {
		labels[i] = int64(i % 10)
	}
	return writeArrays(t,
		data.Field{Name: "x", Array: data.Array{Shape: []int{n, 224, 224, 3}, Values: ramp(n * 224 * 224 * 3)}},
		data.Field{Name: "y", Array: data.Array{Shape: []int{n}, Values: labels}})
}

// trainImages trains on samples in an environment, with at most limit bytes of data if limit is
// not 0.
func trainImages(t *testing.T, samples string, limit int, environment []string, args ...string) (losses []float64,
	events string) {
	t.Helper()
	history := filepath.Join(t.TempDir(), "history.jsonl")
	cmd := program(t, append([]string{"fit", "--model", "builtin:image-224", "--data", samples, "--epochs", "2", "--seed",
		"1", "--history", history,
		"--intra-threads", "2", "--inter-threads", "2"}, args...)...) // thread stacks count towards the limit
	cmd.Env = append(cmd.Env, environment...)
	if limit > 0 {
		cmd.Args = []string{"sh", "-c", fmt.Sprintf(`ulimit -d %d && exec "$0"`, limit/1024), cmd.Path}
		cmd.Path = "/bin/sh"
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, r := range recordsOf(t, history) {
		losses = append(losses, r["loss"].(float64))
	}
	text, err := os.ReadFile(history)
	require.NoError(t, err)
	return losses, string(text)
}

// ramp returns n numbers from 0 to 1.
func ramp(n int) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i%251) / 250
	}
	return values
}
