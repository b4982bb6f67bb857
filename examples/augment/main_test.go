//go:build tfgo

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"

	tf "github.com/galeone/tensorflow/tensorflow/go"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if live := tfbind.Live(); live != (tfbind.Counts{}) && code == 0 {
		fmt.Fprintf(os.Stderr, "left behind: %+v\n", live)
		_ = pprof.Lookup("tfbind").WriteTo(os.Stderr, 1)
		code = 1
	}
	os.Exit(code)
}

// pixels returns the first n digits, and their rows as float32.
func pixels(t *testing.T, n int) (flat []uint8, rows [][]float32) {
	t.Helper()
	digits, _, err := data.Builtin("digits")
	require.NoError(t, err)
	for b, err := range digits.Batches(data.Pass{Batch: n}) {
		require.NoError(t, err)
		x, _ := b.Field("x")
		flat = slices.Clone(x.Values.([]uint8))
		break
	}
	for image := range slices.Chunk(flat, size*size) {
		var row []float32
		for _, v := range image {
			row = append(row, float32(v))
		}
		rows = append(rows, row)
	}
	return flat, rows
}

// preview runs the graph in a session of galeone's binding.
func (d description) preview(images [][]float32, seed [2]int64) (_ [][]float32, err error) {
	s, err := tf.NewSession(d.graph, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	pixels, err := tf.NewTensor(images)
	if err != nil {
		return nil, err
	}
	numbers, err := tf.NewTensor(seed)
	if err != nil {
		return nil, err
	}
	results, err := s.Run(map[tf.Output]*tf.Tensor{d.pixels: pixels, d.seed: numbers}, []tf.Output{d.changed}, nil)
	if err != nil {
		return nil, err
	}
	changed, ok := results[0].Value().([][]float32)
	if !ok {
		return nil, fmt.Errorf("the graph gives %T, expected [][]float32", results[0].Value())
	}
	return changed, nil
}

// Both bindings run the graph in one process with one TensorFlow, and the results are equal bit
// for bit.
func TestBothBindings(t *testing.T) {
	d, err := describe()
	require.NoError(t, err)
	flat, rows := pixels(t, 5)
	want, err := d.preview(rows, [2]int64{7, 3<<32 + 2})
	require.NoError(t, err)
	ds, err := data.New("pixels", data.Field{Name: "x",
		Array: data.Array{Shape: []int{15, size * size}, Values: slices.Repeat(flat, 3)}})
	require.NoError(t, err)
	changed, closeGraph, err := d.apply(ds, 7)
	require.NoError(t, err)
	defer closeGraph()
	for b, err := range changed.Batches(data.Pass{Batch: 5, Epoch: 3, Skip: 2}) {
		require.NoError(t, err)
		got := b.Fields[0]
		require.Equal(t, []int{5, size * size}, got.Shape)
		for i, row := range want {
			require.Equal(t, row, got.Values.([]float32)[i*size*size:(i+1)*size*size])
			require.NotEqual(t, rows[i], row)
		}
	}
	again, err := d.preview(rows, [2]int64{7, 3<<32 + 2})
	require.NoError(t, err, "the other binding goes on beside an open session")
	require.Equal(t, want, again)

	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	files := map[string]bool{}
	for line := range strings.Lines(string(maps)) {
		if at := strings.IndexByte(line, '/'); at >= 0 && strings.Contains(line, "libtensorflow_cc") {
			files[strings.TrimSpace(line[at:])] = true
		}
	}
	require.Len(t, files, 1, "one TensorFlow in the process")
}

// A new description has the same fingerprint for a checkpoint, although tfgo continues the
// numbers in the names of its operations.
func TestTrainAndResume(t *testing.T) {
	dir := t.TempDir()
	loop := fit.Loop{Batch: 100, Epochs: 1, StepsPerEpoch: 4, Resume: filepath.Join(dir, "ckpt")}
	loop.Hook(fit.Checkpoint{Folder: loop.Resume}.Hook())
	_, err := train(t.Context(), filepath.Join(dir, "one"), loop)
	require.NoError(t, err)
	loop.Epochs = 2
	var steps int
	loop.Hook(fit.Hook{Name: "count", Step: func(_ context.Context, s *fit.State) error {
		steps++
		return nil
	}})
	accuracy, err := train(t.Context(), filepath.Join(dir, "two"), loop)
	require.NoError(t, err)
	require.Equal(t, 4, steps)
	require.Greater(t, accuracy, 0.2)
	_, err = savedmodels.Open(filepath.Join(dir, "two"))
	require.NoError(t, err)
}

// Both bindings use the linked library. Naming another one is an error, and without a name
// nothing is searched.
func TestOtherLibraryIsRefused(t *testing.T) {
	if os.Getenv("STEADYFIT_TEST_CHILD") != "" {
		info, err := tfbind.Load("")
		fmt.Printf("source %q error %v\n", info.Source, err)
		return
	}
	info, err := tfbind.Load("")
	require.NoError(t, err)
	linked, err := filepath.EvalSymlinks(info.Library)
	require.NoError(t, err)
	other := t.TempDir()
	for _, name := range []string{"libtensorflow_cc.so.2", "libtensorflow_framework.so.2"} {
		require.NoError(t, os.WriteFile(filepath.Join(other, name), nil, 0o644))
	}
	for env, want := range map[string]string{
		"STEADYFIT_TENSORFLOW=" + other: "STEADYFIT_TENSORFLOW names " + other + "/libtensorflow_cc.so.2, but the program or another binding has already loaded " +
			linked + "\nfix: a process can load only one TensorFlow",
		"STEADYFIT_TENSORFLOW=": `source "this process" error <nil>`,
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOtherLibraryIsRefused$")
		cmd.Env = append(os.Environ(), "STEADYFIT_TEST_CHILD=1", env)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), want)
	}
}
