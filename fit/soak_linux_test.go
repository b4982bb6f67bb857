package fit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/internal/budget"
	"steadyfit/internal/checkpoint"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// soakEnv, if set, makes the soak test run for its full length (make soak).
const soakEnv = "STEADYFIT_TEST_SOAK"

// soakRunEnv makes the test binary run a soak in a separate process. Its value is a soakRun as
// JSON.
const soakRunEnv = "STEADYFIT_TEST_SOAK_RUN"

func init() {
	child(soakRunEnv, func(r soakRun) error { return r.train() })
}

// soakRun is a training with resets, a budget, recovery after running out of memory,
// checkpoints, and a history.
type soakRun struct {
	Model  string
	Sample []int // shape of x
	Real   bool  // y are real numbers, not classes
	Batch  int
	Steps  int
	Epoch  int // number of steps
	Reload int // steps from one reload to the next
	Budget memory.Bytes
	// Leak is the tolerated growth per step. It is less than the memory that a leak in each step or
	// reload would add.
	Leak memory.Bytes
	Dir  string
}

type soakResult struct {
	Verdict                memory.Verdict // verdict on anonymous memory
	InUse                  memory.Verdict // verdict on memory in use by malloc's callers
	Events                 []string
	Peak                   memory.Reading
	Resets                 int
	Parts                  int
	Took                   time.Duration
	Goroutines, Files      [2]int // before the first epoch and after the end
	First, Last            float64
	Checkpoints, Histories int
}

func (r soakRun) train() error {
	ds, err := randomSamples(r.Epoch*r.Batch, r.Sample, r.Real)
	if err != nil {
		return err
	}
	model, err := savedmodels.Builtin(r.Model)
	if err != nil {
		return err
	}
	sampler, err := memory.NewSampler(0, native.Source())
	if err != nil {
		return err
	}
	defer sampler.Close()
	if _, err := memory.Read(); err != nil { // Read keeps its file open
		return err
	}
	var result soakResult
	if result.Goroutines[0], result.Files[0], err = open(); err != nil {
		return err
	}
	began := time.Now()
	ctx := context.Background()
	s, err := compileAndOpen(ctx, model, session.Options{Seed: 1})
	if err != nil {
		return err
	}
	train := data.Prefetch(ds.Shuffle(1), 2)
	limit := &budget.Budget{Limit: r.Budget, Batch: r.Batch}
	checkpoints, history := filepath.Join(r.Dir, "checkpoints"), filepath.Join(r.Dir, "history.jsonl")
	loop := &fit.Loop{Session: s, Batch: r.Batch, Epochs: r.Steps / r.Epoch, StepsPerEpoch: r.Epoch,
		Recover: budget.OnOutOfMemory(s, r.Batch)}
	var series memory.Series
	var sample memory.Sample
	loop.Hook(
		limit.Hook(s),
		budget.Resets{Depth: "reload", EverySteps: r.Reload}.Hook(s),
		fit.Checkpoint{Folder: checkpoints}.Hook(),
		fit.HistoryFile(history),
		fit.Hook{Name: "memory", Epoch: func(_ context.Context, st *fit.State) error {
			if err := sampler.Sample(int(st.Step), &sample); err != nil {
				return err
			}
			series.Append(&sample)
			return nil
		}})
	h, err := loop.Run(ctx, train)
	if err != nil {
		return err
	}
	for _, record := range h.Records {
		result.Resets += record.Resets.Count
		result.Events = append(result.Events, record.Events...)
	}
	result.First, _ = h.Records[0].Metrics.Get("loss")
	result.Last, _ = h.Last().Metrics.Get("loss")
	result.Parts = s.MicroBatches()
	if err := s.Close(); err != nil {
		return err
	}
	result.Took = time.Since(began)
	if result.Goroutines[1], result.Files[1], err = open(); err != nil {
		return err
	}
	usage, err := memory.Read()
	if err != nil {
		return err
	}
	result.Peak = usage.Peak
	result.Verdict = series.Judge(memory.Criteria{Budget: r.Leak})
	result.InUse = series.Judge(memory.Criteria{Layer: memory.MallocUsed, Budget: r.Leak})
	found, err := checkpoint.List(checkpoints)
	if err != nil {
		return err
	}
	result.Checkpoints, result.Histories = len(found), len(h.Records)
	return json.NewEncoder(os.Stdout).Encode(result)
}

// open returns the numbers of goroutines and of open file descriptors.
func open() (goroutines, files int, err error) {
	entries, err := os.ReadDir("/proc/self/fd")
	return runtime.NumGoroutine(), len(entries), err
}

// With all policies on, memory stays flat and nothing stays open.
//
//lane:run onednn soak
//lane:skip check (long)
func TestSoak(t *testing.T) {
	if instrumented {
		t.Skip("memory that this build keeps of its own would be in the figures; the tests without race " +
			"have this one")
	}
	whole := os.Getenv(soakEnv) != ""
	for _, c := range []struct {
		name  string
		run   soakRun
		whole int          // number of steps
		epoch int          // steps per epoch
		short memory.Bytes // tolerated growth per step in a short run; 0 if the run is only warm-up
	}{
		// A leaked batch takes 8 KiB, 12.5 KiB or 18 MiB, the graph of digits 200 KiB, and the
		// buffer of a scalar 64 bytes.
		{"reloads", soakRun{Model: "digits", Sample: []int{64}, Batch: 32, Steps: 100, Epoch: 1, Reload: 1,
			Budget: 2 * memory.GiB, Leak: 4 * memory.KiB}, 1000, 5, 32 * memory.KiB},
		{"dense-100-64-1", soakRun{Model: "dense-100-64-1", Sample: []int{100}, Real: true, Batch: 32, Steps: 4000, Epoch: 40,
			Reload: 500, Budget: 2 * memory.GiB, Leak: 64}, 100_000, 500, memory.KiB},
		{"image-224", soakRun{Model: "image-224", Sample: []int{224, 224, 3}, Batch: 32, Steps: 20, Epoch: 2, Reload: 10,
			Budget: 1600 * memory.MiB, Leak: 64 * memory.KiB}, 2000, 10, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.run
			if r.Reload == 1 && !whole {
				t.Skip("session.TestReloadsStayFlat has a short run")
			}
			if whole {
				r.Steps, r.Epoch = c.whole, c.epoch
			} else {
				r.Leak = c.short // a short run cannot detect less
			}
			r.Dir = t.TempDir()
			var have soakResult
			peak := runChild(t, soakRunEnv, r, &have)
			t.Logf("%d steps of batch %d in %v, %d resets, %d parts: anonymous memory %v; in use by malloc %v; peak RSS %v "+
				"(from outside %v); loss %.4f to %.4f; goroutines %v, files %v",
				r.Steps, r.Batch, have.Took.Round(time.Millisecond), have.Resets, have.Parts, have.Verdict, have.InUse, have.Peak,
				peak, have.First, have.Last, have.Goroutines, have.Files)
			if whole {
				// The verdict may be undecided after a change near the end. The bound on the slope
				// still holds.
				assert.NotContains(t, []memory.Kind{memory.Leak, memlayer.Crash}, have.Verdict.Kind, fmt.Sprint(have.Verdict))
				assert.LessOrEqual(t, have.Verdict.Slope.High, float64(r.Leak))
			} else if r.Leak > 0 {
				// In a short run the heaps grow by up to 20 MiB, but the memory in use by
				// malloc's callers does not.
				assert.LessOrEqual(t, have.InUse.Slope.High, float64(r.Leak), fmt.Sprint(have.InUse))
			}
			assert.NotContains(t, strings.Join(have.Events, ","), "over_budget")
			assert.Equal(t, (r.Steps-1)/r.Reload, have.Resets, "there is none after the last step")
			assert.Less(t, have.Last, have.First)
			assert.Less(t, peak, r.Budget)
			assert.Equal(t, have.Goroutines[0], have.Goroutines[1])
			assert.Equal(t, have.Files[0], have.Files[1])
			assert.Equal(t, 3, have.Checkpoints)
			assert.Equal(t, r.Steps/r.Epoch, have.Histories)
		})
	}
}
