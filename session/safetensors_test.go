package session

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// fromPython returns the tensors of weights.safetensors, which the Python package wrote, and a model
// with these weights.
func fromPython() (map[string]Weight, *savedmodels.Model) {
	var floats []byte
	for i := range 6 {
		floats = binary.LittleEndian.AppendUint32(floats, math.Float32bits(float32(i)))
	}
	weights := map[string]Weight{
		"a/b":  {tfbind.Float32, []int64{2, 3}, floats},
		"half": {tfbind.Float16, []int64{2, 3}, []byte{0, 0, 0, 0x3c, 0, 0x40, 0, 0x42, 0, 0x44, 0, 0x45}},
		"n":    {tfbind.Int64, []int64{}, []byte{0xf9, 255, 255, 255, 255, 255, 255, 255}},
		"none": {tfbind.Int8, []int64{0, 4}, []byte{}},
		"yes":  {tfbind.Bool, []int64{2}, []byte{1, 0}},
	}
	m := &savedmodels.Model{Base: "b"}
	for name, w := range weights {
		m.Variables = append(m.Variables, savedmodels.Variable{
			Name: name, Key: name + "/.ATTRIBUTES/VARIABLE_VALUE", DType: w.DType, Shape: w.Shape,
			Weight: true, Saved: true, Restored: true,
		})
	}
	return weights, m
}

// Go reads what Python writes, and Python writes the same values in the same order as Go.
func TestAdapterFileOfPython(t *testing.T) {
	weights, m := fromPython()
	raw, err := os.ReadFile("testdata/weights.safetensors")
	require.NoError(t, err)
	dir := t.TempDir()
	path := filepath.Join(dir, adapterFile)
	require.NoError(t, os.WriteFile(path, raw, 0o644))
	a, err := ReadAdapter(dir, m)
	require.NoError(t, err)
	assert.Equal(t, &Adapter{Base: "b", Weights: weights}, a)

	python := os.Getenv("STEADYFIT_PYTHON")
	if python == "" {
		python = filepath.Join("..", ".runtime", "venv", "bin", "python")
	}
	if _, err := os.Stat(python); err != nil {
		t.Skipf("no Python at %s: run `make venv`, or set STEADYFIT_PYTHON", python)
	}
	require.NoError(t, a.Write(dir))
	script := `import sys
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
with safe_open(sys.argv[1], "np") as f:
    save_file(load_file(sys.argv[1]), sys.argv[2], f.metadata())`
	again := t.TempDir()
	out, err := exec.Command(python, "-c", script, path, filepath.Join(again, adapterFile)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, fileValues(t, dir), fileValues(t, again))
	read, err := ReadAdapter(again, m)
	require.NoError(t, err)
	assert.Equal(t, a, read)
}

// fileValues returns the part of a file after the header.
func fileValues(t *testing.T, dir string) []byte {
	raw, err := os.ReadFile(filepath.Join(dir, adapterFile))
	require.NoError(t, err)
	return raw[8+binary.LittleEndian.Uint64(raw):]
}

func TestAdapterIsReplaced(t *testing.T) {
	weights, m := fromPython()
	dir := filepath.Join(t.TempDir(), "new", "folder")
	_, err := ReadAdapter(dir, m)
	require.ErrorIs(t, err, fs.ErrNotExist)
	columns := &savedmodels.DataRecord{Columns: map[string][]string{"x": {"a<b", "c"}}}
	for _, c := range []struct{ written, read *savedmodels.DataRecord }{
		{nil, nil}, {&savedmodels.DataRecord{}, nil}, {columns, columns},
	} {
		require.NoError(t, (&Adapter{Base: "b", Record: c.written, Weights: weights}).Write(dir))
		a, err := ReadAdapter(dir, m)
		require.NoError(t, err)
		assert.Equal(t, c.read, a.Record)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	_, err = ReadAdapter(filepath.Join(dir, adapterFile), m)
	require.ErrorIs(t, err, ErrMismatch, "a file instead of its folder")
	text := map[string]Weight{"w": {tfbind.String, nil, nil}}
	require.ErrorContains(t, (&Adapter{Weights: text}).Write(dir), "is string")
}

func TestDamagedAdapters(t *testing.T) {
	const head = `{"__metadata__":{"format":"steadyfit.adapter/1","base":"b"},`
	file := func(header string, values ...byte) []byte {
		return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), values...)
	}
	entry := func(dtype, shape string, from, to int, values int) []byte {
		return file(fmt.Sprintf(head+`"a":{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}}`, dtype, shape, from, to), make([]byte, values)...)
	}
	_, m := fromPython()
	for text, raw := range map[string][]byte{
		"json":                        file(`{"__metadata__":{"format":"steadyfit.adapter/1","data":"[]"}}`),
		"has no header":               {1, 2},
		"more than the file has":      file(`{}`)[:9],
		"its header: ":                file(`{"a":`),
		`have the format ""`:          file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		`have the format "pt"`:        file(`{"__metadata__":{"format":"pt"}}`),
		`type "F8" is unknown`:        entry("F8", "[1]", 0, 1, 1),
		"4 bytes do not fit":          entry("F32", "[2]", 0, 4, 4),
		"from 0 to 4 of 3":            entry("F32", "[]", 0, 4, 3),
		"from 4 to 0":                 entry("U8", "[0]", 4, 0, 4),
		"from -1 to 0":                entry("U8", "[1]", -1, 0, 1),
		"its shape [-1]":              entry("U8", "[-1]", 0, 1, 1),
		"and its header describes 1":  entry("U8", "[1]", 0, 1, 2),
		"it may belong to another mo": make([]byte, maxHeader+1<<10),
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, adapterFile), raw, 0o644))
		_, err := ReadAdapter(dir, m)
		require.ErrorIs(t, err, ErrMismatch, text)
		assert.ErrorContains(t, err, text)
		assert.ErrorContains(t, err, dir)
	}
}

// decodeWeights refuses the bytes of a file, or returns weights that encodeWeights and decodeWeights do
// not change.
func FuzzDecodeWeights(f *testing.F) {
	weights, _ := fromPython()
	good, err := encodeWeights(weights, map[string]string{formatKey: adapterFormat})
	require.NoError(f, err)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Fuzz(func(t *testing.T, raw []byte) {
		weights, _, err := decodeWeights(raw)
		if err != nil {
			return
		}
		again, err := encodeWeights(weights, map[string]string{formatKey: adapterFormat})
		require.NoError(t, err)
		same, _, err := decodeWeights(again)
		require.NoError(t, err)
		require.Equal(t, len(weights), len(same))
		for name, w := range weights {
			require.True(t, bytes.Equal(w.Data, same[name].Data), name)
		}
	})
}
