//go:build galeone

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/worker"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
	"steadyfit/savedmodels"
)

// The test binary is also the child.
func TestMain(m *testing.M) {
	if os.Getenv(worker.Env) != "" {
		os.Exit(run(nil, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// report has the messages of a child, and the system's figures at each sample.
type report struct {
	phases map[string]memory.Sample
	series memory.Series
	values []map[memory.Layer]*int64 // of the steps
	facts  map[string]string
	end    *worker.Message
	log    string
}

func runCell(t *testing.T, spec worker.Spec, env ...string) *report {
	t.Helper()
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	messages, toParent, err := os.Pipe()
	require.NoError(t, err)
	defer messages.Close()
	toChild, answers, err := os.Pipe()
	require.NoError(t, err)
	defer answers.Close()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	var log strings.Builder
	cmd.Stderr = &log
	cmd.Env = append(append(os.Environ(), "TF_CPP_MIN_LOG_LEVEL=2", worker.Env+"="+string(text)), env...)
	cmd.ExtraFiles = []*os.File{toParent, toChild}
	require.NoError(t, cmd.Start())
	require.NoError(t, toParent.Close())
	require.NoError(t, toChild.Close())
	sampler, err := memory.NewSampler(cmd.Process.Pid)
	require.NoError(t, err)
	defer sampler.Close()

	r := &report{phases: make(map[string]memory.Sample), facts: make(map[string]string)}
	lines := bufio.NewScanner(messages)
	for lines.Scan() {
		var m worker.Message
		require.NoError(t, json.Unmarshal(lines.Bytes(), &m), lines.Text())
		switch m.Kind {
		case worker.KindFact:
			r.facts[m.Name] = m.Value
		case worker.KindPhase, worker.KindStep:
			var s memory.Sample
			require.NoError(t, sampler.Sample(m.Step, &s))
			for layer, v := range m.Values {
				if v != nil {
					s.Set(layer, memory.Known(memory.Bytes(*v)))
				}
			}
			if m.Kind == worker.KindPhase {
				r.phases[m.Name] = s
			} else {
				r.series.Append(&s)
				r.values = append(r.values, m.Values)
			}
			_, err := answers.Write([]byte{1})
			require.NoError(t, err)
		case worker.KindEnd:
			r.end = &m
		}
	}
	wait := cmd.Wait()
	r.log = log.String()
	require.NotNil(t, r.end, "the child ended without a word (%v): %s", wait, r.log)
	return r
}

// builtin returns the folder of a built-in model.
func builtin(t *testing.T, name string) string {
	t.Helper()
	m, err := savedmodels.Builtin(name)
	if err != nil {
		t.Skipf("no model %s: %v", name, err)
	}
	return m.Dir
}

var runs = []struct {
	workload, model string
	steps, batch    int
	params          []string // params of more runs, as in "a=b c=d"
}{
	{"W0", "digits-cnn", 8, 32, []string{"gc=epoch trim=epoch", "release=drop reset=restore", "reset=reload"}},
	{"W1", "digits-cnn", 8, 32, []string{"release=drop"}},
	{"W2", "image-224", 4, 8, []string{"release=drop"}},
	{"W3", "digits", 8, 32, []string{"shapes=pad", "shapes=bucket"}},
	{"W4", "image-224", 4, 8, []string{"close=session release=drop", "reuse=1"}},
	{"W5", "", 8, 1, []string{"graph=sealed"}},
	{"W6", "", 8, 1, []string{"fetches=fixed"}},
	{"W8", "", 4, 1, []string{"goroutines=1"}},
	{"W9", "dense-100-64-1", 4, 32, []string{"jit=off"}},
	{"W10", "digits", 8, 256, []string{"history=last"}},
	{"W12", "", 8, 1, []string{"gc=step"}},
	{"S0", "dense-100-64-1", 8, 32, []string{"rows=1000 data=disk"}},
	{"S1", "dense-100-64-1", 8, 32, []string{"reset=reload"}},
	{"S1d", "dropout-200-512-256-1", 8, 64, nil},
	{"S2", "dense-784-10", 8, 32, nil},
	{"S2l", "lstm", 8, 32, nil},
	{"S3", "image-224", 4, 8, []string{"augment=1 shapes=varying"}},
	{"S4", "dense-784-10", 8, 32, []string{"history=last"}},
}

func TestWorkloads(t *testing.T) {
	var names []string
	for _, c := range runs {
		names = append(names, c.workload)
		for _, params := range append([]string{""}, c.params...) {
			t.Run(strings.TrimSpace(c.workload+" "+params), func(t *testing.T) {
				spec := worker.Spec{Workload: c.workload, Steps: c.steps, Every: 2, Epoch: 4, Batch: c.batch, Seed: 1,
					Params: parse(params), Scratch: t.TempDir()}
				if c.model != "" {
					spec.Model = builtin(t, c.model)
				}
				r := runCell(t, spec)
				require.Empty(t, r.end.Failure, "%s\n%s", r.end.Text, r.log)
				assert.Equal(t, c.steps/2, r.series.Total())
				for _, phase := range []string{worker.PhaseLibrary, worker.PhaseLoaded, worker.PhaseFirst, worker.PhaseSteady,
					worker.PhaseClosed, worker.PhaseTrimmed} {
					assert.Contains(t, r.phases, phase)
				}
				after := r.phases[worker.PhaseClosed]
				assert.Equal(t, memory.Known(0), after.Get(liveGraphs), "everything can be freed in the end")
				assert.Equal(t, memory.Known(0), after.Get(memlayer.LiveBytes))
				assert.Equal(t, memory.Known(0), after.Get(memlayer.WaitingBytes))
			})
		}
	}
	assert.Len(t, names, len(workloads), "each workload has a test")
}

func parse(params string) map[string]string {
	m := make(map[string]string)
	for _, pair := range strings.Fields(params) {
		name, value, _ := strings.Cut(pair, "=")
		m[name] = value
	}
	return m
}

func TestWhatTheBindingCannotDo(t *testing.T) {
	model := builtin(t, "digits-cnn")
	for _, c := range []struct{ workload, params string }{
		{"W2", "release=close"},
		{"W2", "input=buffer"},
		{"W4", "close=all"},
		{"W0", "micro=2"},
		{"W0", "reset=process"},
		{"S0", "data=graph"},
		{"W5", "shapes=pad"},
	} {
		t.Run(c.workload+" "+c.params, func(t *testing.T) {
			r := runCell(t, worker.Spec{Workload: c.workload, Steps: 2, Every: 1, Epoch: 1, Batch: 2, Model: model,
				Params: parse(c.params)})
			assert.Equal(t, worker.NotApplicable, r.end.Failure, r.end.Text)
			assert.Zero(t, r.series.Total(), "it is found before the first step")
		})
	}
}

func TestFailures(t *testing.T) {
	r := runCell(t, worker.Spec{Workload: "W11", Steps: 1, Every: 1, Epoch: 1})
	assert.Equal(t, worker.Failed, r.end.Failure)
	assert.Contains(t, r.end.Text, "W11")

	r = runCell(t, worker.Spec{Workload: "W0", Steps: 1, Every: 1, Epoch: 1, Batch: 1, Model: t.TempDir()})
	assert.Equal(t, worker.Failed, r.end.Failure)
}

// TestOutOfMemory limits oneDNN's pool to less than a step needs.
func TestOutOfMemory(t *testing.T) {
	spec := worker.Spec{Workload: "W2", Steps: 2, Every: 1, Epoch: 2, Batch: 8, Model: builtin(t, "image-224")}
	r := runCell(t, spec, "TF_MKL_ALLOC_MAX_BYTES=20000000")
	assert.Equal(t, worker.OutOfMemory, r.end.Failure, r.end.Text)
}

// TestXLA relies on TensorFlow's log message about its first compiled cluster.
func TestXLA(t *testing.T) {
	const words = "Compiled cluster using XLA"
	spec := worker.Spec{Workload: "W9", Steps: 2, Every: 1, Epoch: 2, Batch: 8, Model: builtin(t, "dense-100-64-1"),
		Scratch: t.TempDir()}
	on := runCell(t, spec, "TF_CPP_MIN_LOG_LEVEL=0")
	assert.Empty(t, on.end.Failure, on.end.Text)
	assert.Contains(t, on.log, words, on.end.Text)
	spec.Params = map[string]string{"jit": "off"}
	off := runCell(t, spec, "TF_CPP_MIN_LOG_LEVEL=0")
	assert.Empty(t, off.end.Failure, off.end.Text)
	assert.NotContains(t, off.log, words)
}

// TestDividedBatch checks that a divided batch has the same dataset: S0, whose rows are
// counted, trains with the same losses.
func TestDividedBatch(t *testing.T) {
	loss := func(workload string, samples int, params string) string {
		r := runCell(t, worker.Spec{Workload: workload, Steps: 12, Every: 4, Epoch: 4, Batch: 4, Samples: samples, Seed: 1,
			Model: builtin(t, "dense-784-10"), Params: parse(params), Scratch: t.TempDir()})
		require.Empty(t, r.end.Failure, "%s\n%s", r.end.Text, r.log)
		require.NotEmpty(t, r.facts[worker.FactLossLast])
		return r.facts[worker.FactLossLast]
	}
	for workload, n := range map[string]string{"W0": "32", "S1": "26", "S4": "32"} {
		assert.Equal(t, loss("S0", 0, "rows="+n), loss(workload, 32, ""), workload)
	}
	assert.NotEqual(t, loss("W0", 0, ""), loss("W0", 32, ""))
}

// TestCalibration checks that the counters show the built-in leak exactly.
func TestCalibration(t *testing.T) {
	r := runCell(t, worker.Spec{Workload: "W1", Steps: 8, Every: 1, Epoch: 4, Batch: 32, Seed: 1,
		Model: builtin(t, "digits-cnn")})
	require.Empty(t, r.end.Failure, r.end.Text)
	require.Len(t, r.values, 8)
	for i, v := range r.values {
		require.NotNil(t, v[memlayer.LiveBytes])
		assert.EqualValues(t, (i+1)*leak*4, *v[memlayer.LiveBytes])
		assert.Zero(t, *v[memlayer.WaitingBytes])
	}
}

// TestWaiting checks that a loop without releases shows the tensors that wait for the collector.
func TestWaiting(t *testing.T) {
	spec := worker.Spec{Workload: "W0", Steps: 8, Every: 1, Epoch: 4, Batch: 32, Seed: 1, Model: builtin(t, "digits-cnn")}
	left := runCell(t, spec, "GOGC=off")
	spec.Params = map[string]string{"gc": "step"}
	collected := runCell(t, spec)
	require.Empty(t, left.end.Failure, left.end.Text)
	require.Empty(t, collected.end.Failure, collected.end.Text)
	first, last := *left.values[0][memlayer.WaitingBytes], *left.values[7][memlayer.WaitingBytes]
	assert.Equal(t, 8*first, last)
	assert.Less(t, *collected.values[7][memlayer.WaitingBytes], last)
}
