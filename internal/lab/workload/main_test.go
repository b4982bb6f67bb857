package workload_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/lab/workload"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/internal/tflibrary"
	"steadyfit/memory"
	"steadyfit/savedmodels"
)

// The test binary is also the child.
func TestMain(m *testing.M) {
	if os.Getenv(worker.Env) != "" {
		os.Exit(child())
	}
	if _, err := tflibrary.Locate(""); err != nil {
		fmt.Fprintf(os.Stderr, "these tests need TensorFlow: %v\n", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func child() int {
	c, err := worker.Start(native.Source())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Close()
	err = workload.Run(context.Background(), c, "")
	if errors.Is(err, loop.ErrSaved) {
		return 0
	}
	if err := c.Done(err, workload.FailureOf(err)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// outcome has the messages of a run.
type outcome struct {
	phases    []string
	steps     []int
	live      []int64 // bytes of native objects after each step
	cycles    []int64 // values of the garbage collector after each step
	facts     map[string]string
	values    map[memory.Layer]*int64 // of the traced step
	failure   worker.Failure
	text      string
	processes int
	log       string
}

// do carries out the run of a Spec, in as many processes as it needs.
func do(t *testing.T, spec worker.Spec, env ...string) outcome {
	t.Helper()
	o := outcome{facts: map[string]string{}}
	spec.Scratch = t.TempDir()
	for again := true; again; o.processes++ {
		require.Less(t, o.processes, 10)
		again = o.process(t, &spec, env)
	}
	return o
}

func (o *outcome) process(t *testing.T, spec *worker.Spec, env []string) (again bool) {
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	messages, out, err := os.Pipe()
	require.NoError(t, err)
	defer messages.Close()
	in, answers, err := os.Pipe()
	require.NoError(t, err)
	defer answers.Close()
	var log strings.Builder
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "TF_CPP_MIN_LOG_LEVEL=2", worker.Env+"="+string(text)), env...)
	cmd.ExtraFiles = []*os.File{out, in}
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	require.NoError(t, errors.Join(out.Close(), in.Close()))

	ended := false
	lines := bufio.NewScanner(messages)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m worker.Message
		require.NoError(t, json.Unmarshal(lines.Bytes(), &m), lines.Text())
		require.False(t, ended, "a message after the last one: %s", lines.Text())
		switch m.Kind {
		case worker.KindFact:
			o.facts[m.Name] = m.Value
			continue
		case worker.KindPhase:
			o.phases = append(o.phases, m.Name)
			if m.Name == worker.PhaseTraced {
				o.values = m.Values
			}
		case worker.KindStep:
			o.steps = append(o.steps, m.Step)
			require.NotNil(t, m.Values[memlayer.LiveBytes])
			o.live = append(o.live, *m.Values[memlayer.LiveBytes])
			require.NotNil(t, m.Values["gc cycle count"])
			o.cycles = append(o.cycles, *m.Values["gc cycle count"])
		case worker.KindEnd:
			ended, o.failure, o.text = true, m.Failure, m.Text
			continue
		case worker.KindAgain:
			ended, again, spec.From = true, true, m.Step
			continue
		}
		_, err := answers.Write([]byte{'.'})
		require.NoError(t, err)
	}
	require.NoError(t, cmd.Wait(), log.String())
	o.log = log.String()
	require.True(t, ended, "the child ended without a word: %s", o.log)
	return again
}

// spec returns the Spec of a short run of a workload on a built-in model.
func spec(t *testing.T, id, model string, params ...string) worker.Spec {
	t.Helper()
	s := worker.Spec{Workload: id, Steps: 6, Every: 2, Epoch: 4, Batch: 8, Seed: 1, Trace: true,
		Params: map[string]string{}}
	if model != "" {
		m, err := savedmodels.Builtin(model)
		if !slices.Contains(savedmodels.BuiltinNames(), model) {
			t.Skipf("%v: make it with make models", err)
		}
		require.NoError(t, err)
		s.Model = m.Dir
	}
	for _, param := range params {
		name, value, found := strings.Cut(param, "=")
		require.True(t, found, param)
		s.Params[name] = value
	}
	return s
}
