package programs_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/programs"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// do runs 6 steps of a program in this process, and returns the facts that it printed.
func do(t *testing.T, w matrix.Workload, options ...string) (map[string]string, error) {
	t.Helper()
	args := []string{"--steps=6", "--epoch=3", "--batch=8", "--trace=1", "--scratch=" + t.TempDir()}
	if name := cmp.Or(w.Model, map[string]string{matrix.User: "digits"}[w.ID]); name != "" {
		m, err := savedmodels.Builtin(name)
		require.NoError(t, err)
		args = append(args, "--model="+m.Dir)
	}
	for name, value := range w.Params {
		args = append(args, "--"+name+"="+value)
	}
	for _, o := range options {
		args = append(args, "--"+o)
	}
	var out bytes.Buffer
	if err := programs.Run(t.Context(), cmp.Or(w.Like, w.ID), args, "", &out); err != nil {
		return nil, err
	}
	facts := map[string]string{}
	require.NoError(t, json.Unmarshal(out.Bytes(), &facts))
	return facts, nil
}

func TestEveryProgram(t *testing.T) {
	// The types that models compute in, by the suffix of their names.
	halves := map[string]string{"bf16": program.FactMatrixBFloat16, "fp16": program.FactMatrixFloat16,
		"scaled": program.FactMatrixFloat16}
	for _, w := range matrix.Workloads() {
		if _, ok := w.Takes[matrix.Go]; !ok {
			continue
		}
		t.Run(w.ID, func(t *testing.T) {
			before := tfbind.Live()
			facts, err := do(t, w)
			require.NoError(t, err)
			assert.Regexp(t, `^2\.\d+\.`, facts["tensorflow"])
			trained := !slices.Contains([]string{"W3", "W5", "W6", "W8", "W10", "W12"}, w.ID)
			for _, name := range []string{program.FactLossFirst, program.FactLossLast} {
				assert.Equal(t, trained, facts[name] != "", name)
			}
			// The others make their graphs here, or have none.
			if slices.Contains([]string{"W5", "W6", "W8", "W12"}, w.ID) {
				assert.Empty(t, facts[program.FactOperations])
			} else {
				assert.Regexp(t, `^[1-9]\d*$`, facts[program.FactOperations])
				assert.Equal(t, w.ID == "W9", facts[program.FactMatrix] == "0", "those that XLA compiles do not count")
				inHalf := halves[w.Model[strings.LastIndex(w.Model, "-")+1:]]
				for _, fact := range []string{program.FactMatrixBFloat16, program.FactMatrixFloat16} {
					if want := facts[program.FactMatrix]; fact == inHalf {
						assert.Equal(t, want, facts[fact], "all of them")
						assert.NotEqual(t, "0", want)
					} else {
						assert.Equal(t, "0", facts[fact], fact)
					}
				}
			}
			// The objects that stay open on purpose after 6 steps and a traced one.
			after := tfbind.Live()
			assert.Equal(t, map[string]int64{"W1": 7, "W2": 14}[w.ID], after.Tensors-before.Tensors)
			assert.Equal(t, map[string]int64{"W4": 7}[w.ID], after.Sessions-before.Sessions)
			assert.Equal(t, map[string]int64{"W4": 7}[w.ID], after.Graphs-before.Graphs)
		})
	}
}

// options has options of some runs for each workload. Together they have each value of each option except the defaults,
// and reset=process, which ends the process.
var options = map[string][]string{
	"W0": {"gc=epoch trim=epoch", "gc=step reset=restore micro=2", "reset=reload micro=4 prefetch=1",
		"prefetch=16"},
	"W1":  {"release=close"},
	"W2":  {"release=close", "release=drop", "input=buffer"},
	"W3":  {"shapes=pad", "shapes=bucket"},
	"W4":  {"close=all", "reuse=1"},
	"W5":  {"graph=sealed"},
	"W6":  {"fetches=fixed"},
	"W8":  {"goroutines=1", "goroutines=3"},
	"W9":  {"jit=off shapes=pad", "jit=on shapes=bucket"},
	"W10": {"history=last"},
	"W12": {"gc=step"},
	"S0":  {"data=memory rows=1000 prefetch=4", "data=disk rows=3000 reset=reload micro=2 prefetch=1"},
	"S1":  {"reset=restore micro=2 prefetch=1"},
	"S1d": {"reset=reload micro=2 prefetch=1"},
	"S2":  {"reset=restore micro=2 prefetch=1"},
	"S2l": {"reset=reload micro=2 prefetch=1"},
	"S3": {"input=buffer augment=1", "augment=1 shapes=varying prefetch=1 micro=2",
		"release=close"},
	"S4":   {"history=last reset=restore micro=2 prefetch=1"},
	"user": {"reset=restore micro=2 prefetch=1", "reset=reload prefetch=4"},
}

func TestOptions(t *testing.T) {
	for _, w := range matrix.Workloads() {
		for _, text := range options[w.ID] {
			t.Run(w.ID+" "+text, func(t *testing.T) {
				before := tfbind.Live()
				_, err := do(t, w, strings.Fields(text)...)
				require.NoError(t, err)
				if !strings.Contains(text, "release=") {
					assert.Equal(t, before.Tensors, tfbind.Live().Tensors)
				}
				assert.Equal(t, before.Sessions, tfbind.Live().Sessions)
			})
		}
	}
}

// A remedy is tried on a workload if the program takes its options.
func TestTakesIsWhatIsTaken(t *testing.T) {
	for _, w := range matrix.Workloads() {
		if w.Like != "" {
			continue
		}
		tried := map[string]bool{}
		for _, text := range options[w.ID] {
			for _, o := range strings.Fields(text) {
				name, _, _ := strings.Cut(o, "=")
				tried[name] = true
			}
		}
		delete(tried, "gc")
		delete(tried, "trim")
		for _, name := range w.Takes[matrix.Go] {
			assert.True(t, tried[name], "%s takes %s, which no run here has", w.ID, name)
		}
		for name := range tried {
			assert.Contains(t, w.Takes[matrix.Go], name, w.ID)
		}
	}
}

func TestOptionsThatAreRefused(t *testing.T) {
	for id, texts := range map[string][]string{
		"W0":  {"shapes=pad", "reset=hard", "micro=9", "prefetch=many"},
		"W8":  {"goroutines=0"},
		"W12": {"release=close"},
	} {
		w, err := matrix.FindWorkload(id)
		require.NoError(t, err)
		for _, text := range texts {
			_, err := do(t, w, text)
			name, _, _ := strings.Cut(text, "=")
			assert.ErrorContains(t, err, "--"+name+"=", text)
		}
	}
	err := programs.Run(t.Context(), "W99", nil, "", nil)
	assert.ErrorIs(t, err, programs.ErrUnknown)
}

// Micro-batches, resets and half the batch over the whole set change nothing in what is learnt.
func TestRemediesLearnTheSame(t *testing.T) {
	for id, texts := range map[string][]string{
		"S2": {"micro=2", "reset=restore", "reset=reload", "prefetch=4"},
		"S0": {"rows=24", "rows=24 data=disk"},
	} {
		w, err := matrix.FindWorkload(id)
		require.NoError(t, err)
		losses := map[string]string{}
		for _, text := range texts {
			facts, err := do(t, w, strings.Fields(text)...)
			require.NoError(t, err)
			losses[text] = facts[program.FactLossLast]
		}
		first := losses[texts[0]]
		for text, loss := range losses {
			assert.InDelta(t, number(t, first), number(t, loss), 1e-3, "%s %s", id, text)
		}
	}
}

func number(t *testing.T, text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	return v
}
