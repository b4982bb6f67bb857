package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/tflibrary"
	"steadyfit/savedmodels"
)

// smallBench returns a benchmark with a workload on a built-in model, and the variants that this
// machine can build. The C loop needs a compiler and TensorFlow's headers.
func smallBench(t *testing.T) *benchmark {
	t.Helper()
	m, err := savedmodels.Builtin("dense-100-64-1")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "models"), 0o777))
	require.NoError(t, os.Symlink(m.Dir, filepath.Join(dir, "models", "dense-100-64-1")))
	b := &benchmark{turns: 1, folder: dir, steadyfit: filepath.Join(dir, "steadyfit"), log: t.Output(),
		workloads: []Workload{{Name: "dense-100-64-1", Batch: 32, Steps: 50, Epochs: 2}}}
	text, err := exec.Command("go", "build", "-o", b.steadyfit, "../../../cmd/steadyfit").CombinedOutput()
	require.NoError(t, err, "%s", text)
	return b
}

func (b *benchmark) add(names ...string) {
	for _, a := range variants {
		for _, name := range names {
			if a.name == name {
				b.variants = append(b.variants, a)
			}
		}
	}
}

func TestVariantsDoTheSameWork(t *testing.T) {
	b := smallBench(t)
	b.add("steadyfit-fit")
	location, err := tflibrary.Locate("")
	require.NoError(t, err)
	lib := filepath.Dir(location.Library)
	headers := filepath.Join(lib, "include")
	if cc, err := exec.LookPath("cc"); err != nil {
		t.Log("without the C loop: there is no C compiler cc")
	} else if _, err := os.Stat(filepath.Join(headers, "tensorflow", "c", "c_api.h")); err != nil {
		t.Log("without the C loop: ", err)
	} else {
		text, err := exec.Command(cc, "-std=gnu11", "-O1", "-Wall", "-Werror", "-I"+headers, "-o",
			filepath.Join(b.folder, "cloop"), "cloop/cloop.c",
			"-L"+lib, "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", "-Wl,-rpath,"+lib).CombinedOutput()
		require.NoError(t, err, "%s", text)
		b.add("c")
	}
	r := newReport(context.Background())
	saved := 0
	require.NoError(t, b.measure(context.Background(), r, func() error { saved++; return nil }))
	require.NoError(t, r.failed())
	assert.Equal(t, 1, saved)
	require.Len(t, r.Runs, len(b.variants))
	for _, run := range r.Runs {
		assert.Equal(t, 100, run.Steps, run.Variant)
		assert.Len(t, run.StepNS, 2, run.Variant)
		assert.Len(t, run.Anon, 2, run.Variant)
		assert.InDelta(t, r.Runs[0].WarmupLoss, run.WarmupLoss, 1e-5, run.Variant)
		assert.InDelta(t, r.Runs[0].LastLoss, run.LastLoss, 1e-4, run.Variant)
		assert.Greater(t, run.FirstStepNS, int64(0), run.Variant)
		assert.Greater(t, run.Peak, run.Anon[1], run.Variant)
	}

	// Without a stored choice, fit would run another configuration.
	p, err := b.prepare(t.Context(), b.workloads[0])
	require.NoError(t, err)
	_, err = fit("on")(t.Context(), b, p)
	require.ErrorContains(t, err, `fit did not use the earlier choice: it reports "", expected "measured before"`)
}

// A crashed variant is left out of later turns. A variant that cannot run a model is not
// started.
func TestArmsThatCannot(t *testing.T) {
	b := smallBench(t)
	b.turns, b.workloads[0].Steps = 2, 4
	b.add("steadyfit-fit", "keras-fit-spe", "galeone")
	r := newReport(context.Background())
	require.NoError(t, b.measure(context.Background(), r, func() error { return nil }))
	require.Len(t, r.Runs, 2)
	require.Len(t, r.Absent, 2)
	assert.Equal(t, Absent{"dense-100-64-1", "keras-fit-spe",
		"an epoch of 4 steps is no multiple of 50 steps per execution", false}, r.Absent[0])
	assert.Equal(t, "galeone", r.Absent[1].Variant)
	assert.True(t, r.Absent[1].Failed)
	assert.ErrorContains(t, r.failed(), "dense-100-64-1/galeone")
}
