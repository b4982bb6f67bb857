package workload_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/lab/workload"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/internal/tfprocess"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// modelOf returns the model of a workload; the user's workload takes any model.
func modelOf(w matrix.Workload) string {
	if w.ID == matrix.User {
		return "digits"
	}
	return w.Model
}

var phases = []string{worker.PhaseStart, worker.PhaseLibrary, worker.PhaseLoaded, worker.PhaseFirst,
	worker.PhaseSteady, worker.PhaseClosed, worker.PhaseTrimmed}

// untraced removes the phase traced, which only some runs have.
func untraced(phases []string) []string {
	return slices.DeleteFunc(slices.Clone(phases), func(p string) bool { return p == worker.PhaseTraced })
}

func TestEveryWorkload(t *testing.T) {
	// The objects that stay on purpose after 6 steps and a traced one: tensors of 64 KiB;
	// tensors of 8 images and 8 labels; and sessions, each with steps for training, evaluation
	// and the reset of metrics, of which one was fed.
	left := map[string]string{
		"W1": "7 tensors of 458752 bytes",
		"W2": fmt.Sprintf("14 tensors of %d bytes", 7*8*(224*224*3*4+8)),
		"W4": fmt.Sprintf("21 steps of %d bytes, 7 sessions, 7 graphs", 7*8*(224*224*3*4+8)),
	}
	// The types that models compute in, by the suffix of their names.
	halves := map[string]string{"bf16": worker.FactMatrixBFloat16, "fp16": worker.FactMatrixFloat16,
		"scaled": worker.FactMatrixFloat16}
	_, err := tfbind.Load("")
	require.NoError(t, err)
	oneDNN, known := tfprocess.OneDNN()
	require.True(t, known)
	untrained := []string{"W3", "W5", "W6", "W8", "W10", "W12"}
	for _, w := range matrix.Workloads() {
		t.Run(w.ID, func(t *testing.T) {
			t.Parallel()
			s := spec(t, cmp.Or(w.Like, w.ID), modelOf(w))
			maps.Copy(s.Params, w.Params)
			o := do(t, s)
			require.Empty(t, o.failure, "%s\n%s", o.text, o.log)
			assert.Equal(t, phases, untraced(o.phases))
			assert.Equal(t, []int{2, 4, 6}, o.steps)
			assert.Equal(t, "8", o.facts["batch"])
			assert.Regexp(t, `^2\.\d+\.`, o.facts["tensorflow"])
			assert.Regexp(t, `^\d+$`, o.facts["threads"])
			assert.Equal(t, native.Allocator(), o.facts[worker.FactAllocator])
			want := "0"
			if text, ok := left[w.ID]; ok {
				want = text
			}
			assert.Equal(t, want, o.facts["live"])
			// The other workloads make their graphs here, have none, or are ranks, which are not traced.
			if traced := !slices.Contains([]string{"W5", "W6", "W8", "W12", "D1", "D1b"}, w.ID); traced {
				assert.Regexp(t, `^[1-9]\d*$`, o.facts[worker.FactOperations])
				inHalf := halves[w.Model[strings.LastIndex(w.Model, "-")+1:]]
				for _, fact := range []string{worker.FactMatrixBFloat16, worker.FactMatrixFloat16} {
					want := "0"
					if fact == inHalf {
						want = o.facts[worker.FactMatrix] // all of them
						assert.NotEqual(t, "0", want)
					}
					assert.Equal(t, want, o.facts[fact], fact)
				}
				// Smaller models may have no block that is large enough for the pool, and
				// without oneDNN there is no pool: malloc keeps no count for TensorFlow.
				if pool := o.values[memlayer.Of[memory.Layer](memlayer.TFPeak, "mklcpu")]; !oneDNN {
					assert.Nil(t, pool)
				} else if w.Model == "image-224" {
					assert.NotNil(t, pool)
				}
			} else {
				assert.Empty(t, o.facts[worker.FactOperations])
			}
			trained := !slices.Contains(untrained, w.ID)
			for _, name := range []string{worker.FactLossFirst, worker.FactLossLast} {
				_, there := o.facts[name]
				assert.Equal(t, trained, there, name)
			}
		})
	}
}

func TestCalibrationIsExact(t *testing.T) {
	t.Parallel()
	for id, perStep := range map[string]int64{"W0": 0, "W1": 64 << 10} {
		o := do(t, spec(t, id, "digits-cnn"))
		require.Empty(t, o.failure, o.text)
		require.Len(t, o.live, 3)
		assert.Equal(t, []int64{2 * perStep, 2 * perStep}, []int64{o.live[1] - o.live[0], o.live[2] - o.live[1]}, id)
	}
	o := do(t, spec(t, "W1", "digits-cnn", "release=close"))
	assert.Equal(t, o.live[0], o.live[2])
}

// runs has the parameters of some runs for each workload. Together they have each value of each
// parameter except the defaults.
var runs = map[string][]string{
	"W0": {"gc=epoch trim=epoch", "gc=step reset=restore micro=2", "reset=reload micro=4 prefetch=1",
		"reset=process prefetch=4", "prefetch=16"},
	"W1":  {"release=close"},
	"W2":  {"release=close", "release=drop", "input=buffer"},
	"W3":  {"shapes=pad", "shapes=bucket"},
	"W4":  {"close=all", "reuse=1"},
	"W5":  {"graph=sealed"},
	"W6":  {"fetches=fixed"},
	"W8":  {"goroutines=1", "goroutines=3"},
	"W9":  {"jit=off shapes=pad", "jit=on shapes=bucket"},
	"W10": {"history=last"},
	"W11": {"shuffle=10 prefetch=4", "shuffle=0 reset=restore micro=2 prefetch=-1"},
	"W12": {"gc=step"},
	"S0": {"data=memory rows=1000 prefetch=4", "data=disk rows=3000 micro=2 prefetch=1",
		"data=graph rows=1000 reset=reload prefetch=1"},
	"S1":  {"reset=restore micro=2 prefetch=1", "reset=process"},
	"S1d": {"reset=reload micro=2 prefetch=1"},
	"S2":  {"reset=restore micro=2 prefetch=1"},
	"S2l": {"reset=reload micro=2 prefetch=1"},
	"S3": {"input=buffer augment=1", "augment=1 shapes=varying prefetch=1 micro=2",
		"release=close"},
	"S4":   {"history=last reset=restore micro=2 prefetch=1"},
	"D1":   {"rank=1", "prefetch=1"},
	"user": {"reset=restore micro=2 prefetch=1", "reset=reload prefetch=4", "reset=process"},
}

func TestParameters(t *testing.T) {
	for _, w := range matrix.Workloads() {
		for _, params := range runs[w.ID] {
			t.Run(w.ID+" "+params, func(t *testing.T) {
				t.Parallel()
				o := do(t, spec(t, w.ID, modelOf(w), strings.Fields(params)...))
				require.Empty(t, o.failure, "%s\n%s", o.text, o.log)
				assert.Equal(t, []int{2, 4, 6}, o.steps)
				processes := 1
				if strings.Contains(params, "reset=process") {
					processes = 2
				} else {
					assert.Equal(t, phases, untraced(o.phases))
				}
				assert.Equal(t, processes, o.processes)
				if !strings.Contains(params, "release=") {
					assert.Equal(t, "0", o.facts["live"])
				}
			})
		}
	}
}

// A remedy is tried on a workload if the workload takes its parameters.
func TestTakesIsWhatIsTaken(t *testing.T) {
	var ids []string
	for _, w := range matrix.Workloads() {
		if w.Like != "" {
			continue // it runs another workload with other values
		}
		ids = append(ids, w.ID)
		tried := map[string]bool{}
		for _, params := range runs[w.ID] {
			for _, param := range strings.Fields(params) {
				name, _, _ := strings.Cut(param, "=")
				tried[name] = true
			}
		}
		delete(tried, "gc") // all workloads have these
		delete(tried, "trim")
		assert.ElementsMatch(t, w.Takes[matrix.Go], slices.Collect(maps.Keys(tried)), w.ID)
	}
	assert.ElementsMatch(t, workload.IDs(), ids)
}

func TestParametersThatAreNotThere(t *testing.T) {
	for _, c := range []struct {
		id, model, param string
		failure          worker.Failure
		text             string
	}{
		{"W5", "", "prefetch=4", worker.NotApplicable, "prefetch=4: it changes nothing"},
		{"W1", "digits", "release=drop", worker.NotApplicable, "only keep, close"},
		{"W0", "digits", "gc=always", worker.NotApplicable, "gc=always"},
		{"W0", "digits", "trim=step", worker.NotApplicable, "trim=step"},
		{"W0", "digits", "micro=9", worker.NotApplicable, "the batch has only 8 samples"},
		{"W0", "digits", "micro=many", worker.Failed, "micro=many"},
		{"W4", "digits", "close=session", worker.NotApplicable, "only none, all"},
		{"W8", "", "goroutines=0", worker.NotApplicable, "1 to 64"},
		{"S3", "digits", "augment=1", worker.NotApplicable, "an image"},
		{"W33", "", "gc=step", worker.Failed, `unknown workload "W33"; use one of `},
	} {
		t.Run(c.id+" "+c.param, func(t *testing.T) {
			t.Parallel()
			o := do(t, spec(t, c.id, c.model, c.param))
			assert.Equal(t, c.failure, o.failure)
			assert.Contains(t, o.text, c.text)
		})
	}
}

// A reset of a session, or other storage of the data, must not change the result of the
// training.
func TestRemediesLearnTheSame(t *testing.T) {
	t.Parallel()
	loss := func(id, model string, params ...string) string {
		s := spec(t, id, model, params...)
		s.Steps, s.Epoch = 8, 3
		o := do(t, s)
		require.Empty(t, o.failure, "%v: %s", params, o.text)
		require.NotEmpty(t, o.facts["loss_last"])
		return o.facts["loss_last"]
	}
	for _, id := range []string{"W0", "user"} {
		want := loss(id, "digits")
		for _, reset := range []string{"restore", "reload", "process"} {
			assert.Equal(t, want, loss(id, "digits", "reset="+reset), "%s, %s", id, reset)
		}
		assert.Equal(t, want, loss(id, "digits", "prefetch=2"), id)
	}
	// Several passes, which do not end at the ends of epochs.
	want := loss("S0", "digits", "data=memory", "rows=40")
	assert.Equal(t, want, loss("S0", "digits", "data=memory", "rows=40", "reset=process"))
	assert.Equal(t, want, loss("S0", "digits", "data=disk", "rows=40", "reset=process"))
	want = loss("S0", "digits", "data=memory", "rows=24")
	assert.Equal(t, want, loss("S0", "digits", "data=disk", "rows=24"))
	assert.Equal(t, want, loss("S0", "digits", "data=graph", "rows=24"))
}

// A divided batch has the same dataset: S0, whose rows are counted, trains with the same
// losses.
func TestADividedBatchHasTheWholeSet(t *testing.T) {
	t.Parallel()
	loss := func(id string, samples int, params ...string) string {
		s := spec(t, id, "digits", params...)
		s.Steps, s.Batch, s.Samples = 12, 4, samples
		o := do(t, s)
		require.Empty(t, o.failure, "%v: %s", params, o.text)
		require.NotEmpty(t, o.facts[worker.FactLossLast])
		return o.facts[worker.FactLossLast]
	}
	want := map[string]string{"rows=32": loss("S0", 0, "rows=32"), "rows=26": loss("S0", 0, "rows=26")}
	for _, c := range []struct{ id, param, like string }{
		{"W0", "prefetch=0", "rows=32"}, {"W1", "release=close", "rows=32"}, {"W11", "shuffle=0", "rows=32"},
		{"S1", "prefetch=0", "rows=26"}, {"S2", "prefetch=0", "rows=32"}, {"S4", "history=last", "rows=32"},
	} {
		assert.Equal(t, want[c.like], loss(c.id, 32, c.param), c.id)
	}
	assert.NotEqual(t, want["rows=32"], loss("W0", 0))
}

// Micro-batches give the same update, except for rounding. A model that draws numbers for each
// sample gives another update, which is reported.
func TestMicroBatchesLearnTheSame(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"W0", "S3"} {
		loss := func(micro string) (first, last float64) {
			o := do(t, spec(t, id, "digits", "micro="+micro))
			require.Empty(t, o.failure, o.text)
			assert.Equal(t, map[bool]string{true: worker.SplitExact}[micro != "1"], o.facts[worker.FactSplit])
			first, err := strconv.ParseFloat(o.facts[worker.FactLossFirst], 64)
			require.NoError(t, err)
			last, err = strconv.ParseFloat(o.facts[worker.FactLossLast], 64)
			require.NoError(t, err)
			return first, last
		}
		first, last := loss("1")
		assert.Less(t, last, first)
		microFirst, microLast := loss("4")
		assert.InEpsilon(t, first, microFirst, 1e-4, id)
		assert.InEpsilon(t, last, microLast, 1e-3, id)
		o := do(t, spec(t, id, "digits-cnn", "micro=4"))
		require.Empty(t, o.failure, o.text)
		assert.Equal(t, worker.SplitInexact, o.facts[worker.FactSplit], id)
	}
}

// After a reload or a restore of the variables, each step equals the first one.
func TestW4BeginsAnewEachStep(t *testing.T) {
	t.Parallel()
	for _, param := range []string{"reuse=0", "reuse=1"} {
		o := do(t, spec(t, "W4", "digits", param))
		require.Empty(t, o.failure, o.text)
		assert.Equal(t, o.facts["loss_first"], o.facts["loss_last"], param)
	}
}

func TestCollectingGarbage(t *testing.T) {
	t.Parallel()
	// From step 2 to 6, with the end of an epoch at step 4.
	grown := func(o outcome) int64 { return o.cycles[2] - o.cycles[0] }
	plain := do(t, spec(t, "W5", ""))
	for param, least := range map[string]int64{"gc=step": 4, "gc=epoch": 1} {
		o := do(t, spec(t, "W5", "", param))
		require.Empty(t, o.failure, o.text)
		assert.GreaterOrEqual(t, grown(o), grown(plain)+least, param)
	}
}

// Each way to open a session uses the Spec's ConfigProto.
func TestConfigReachesEverySession(t *testing.T) {
	for id, model := range map[string]string{"W0": "digits", "W2": "digits", "W4": "digits", "W5": "", "W10": "digits"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			s := spec(t, id, model)
			s.Config = []byte("no message")
			o := do(t, s)
			assert.Equal(t, worker.Failed, o.failure)
			assert.Contains(t, o.text, "ConfigProto")
		})
	}
}

func TestUserData(t *testing.T) {
	t.Parallel()
	s := spec(t, "user", "digits-cnn")
	s.Data = "builtin:digits"
	o := do(t, s)
	require.Empty(t, o.failure, o.text)
	s.Data = "nowhere.npz"
	o = do(t, s)
	assert.Equal(t, worker.Failed, o.failure)
	assert.Contains(t, o.text, "nowhere.npz")
}

// The limit is on the pool that oneDNN's operations take large blocks from.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	o := do(t, spec(t, "S3", "image-224"), "TF_ENABLE_ONEDNN_OPTS=1", "TF_MKL_ALLOC_MAX_BYTES=20000000")
	assert.Equal(t, worker.OutOfMemory, o.failure, o.text)
}

func TestFailureOf(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("step 3: %w", err) }
	assert.Equal(t, worker.OutOfMemory, workload.FailureOf(wrap(&tfbind.Error{Code: "RESOURCE_EXHAUSTED"})))
	assert.Equal(t, worker.Failed, workload.FailureOf(wrap(errors.New("bad"))))
	assert.Empty(t, workload.FailureOf(wrap(&worker.ParameterError{Failure: worker.CouldNotApply})))
	assert.Empty(t, workload.FailureOf(nil))
}
