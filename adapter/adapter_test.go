package adapter

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// fromPython returns the tensors of weights.safetensors, which the Python package wrote.
func fromPython() map[string]Weight {
	return map[string]Weight{
		"a/b":  {tfbind.Float32, []int64{2, 3}, floats(0, 1, 2, 3, 4, 5)},
		"half": {tfbind.Float16, []int64{2, 3}, []byte{0, 0, 0, 0x3c, 0, 0x40, 0, 0x42, 0, 0x44, 0, 0x45}},
		"n":    {tfbind.Int64, []int64{}, []byte{0xf9, 255, 255, 255, 255, 255, 255, 255}},
		"none": {tfbind.Int8, []int64{0, 4}, []byte{}},
		"yes":  {tfbind.Bool, []int64{2}, []byte{1, 0}},
	}
}

func TestReadWhatPythonWrites(t *testing.T) {
	raw, err := os.ReadFile("testdata/weights.safetensors")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, File), raw, 0o644))
	a, err := Read(dir, 0)
	require.NoError(t, err)
	assert.Equal(t, &Adapter{Base: "b", Weights: fromPython()}, a)
}

// The Python package reads what Write writes, and writes the same values in the same order.
func TestPythonReadsWhatIsWritten(t *testing.T) {
	python := os.Getenv("STEADYFIT_PYTHON")
	if python == "" {
		python = filepath.Join("..", ".runtime", "venv", "bin", "python")
	}
	if _, err := os.Stat(python); err != nil {
		t.Skipf("no Python at %s: run `make venv`, or set STEADYFIT_PYTHON", python)
	}
	dir := t.TempDir()
	require.NoError(t, (&Adapter{Base: "b", Weights: fromPython()}).Write(dir))
	script := `import sys
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
with safe_open(sys.argv[1], "np") as f:
    save_file(load_file(sys.argv[1]), sys.argv[2], f.metadata())`
	again := t.TempDir()
	out, err := exec.Command(python, "-c", script, filepath.Join(dir, File), filepath.Join(again, File)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	a, err := Read(again, 0)
	require.NoError(t, err)
	assert.Equal(t, &Adapter{Base: "b", Weights: fromPython()}, a)
	assert.Equal(t, values(t, dir), values(t, again))
}

// values returns the part of a file after the header.
func values(t *testing.T, dir string) []byte {
	raw, err := os.ReadFile(filepath.Join(dir, File))
	require.NoError(t, err)
	return raw[8+binary.LittleEndian.Uint64(raw):]
}

func TestWriteReplaces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	_, err := Read(dir, 0)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, base := range []string{"one", "two"} {
		require.NoError(t, (&Adapter{Base: base, Weights: fromPython()}).Write(dir))
		a, err := Read(dir, 0)
		require.NoError(t, err)
		assert.Equal(t, base, a.Base)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	_, err = Read(filepath.Join(dir, File), 0)
	require.ErrorIs(t, err, ErrFormat, "a file instead of its folder")
	first, err := os.ReadFile(filepath.Join(dir, File))
	require.NoError(t, err)
	require.NoError(t, (&Adapter{Base: "two", Weights: fromPython()}).Write(dir))
	second, err := os.ReadFile(filepath.Join(dir, File))
	require.NoError(t, err)
	assert.Equal(t, first, second, "the same weights are the same bytes")
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ written, read *savedmodels.DataRecord }{
		{nil, nil},
		{&savedmodels.DataRecord{}, nil},
		{&savedmodels.DataRecord{ClassNames: []string{strings.Repeat("a", maxRecord)}}, nil},
		{&savedmodels.DataRecord{Columns: []string{"a<b", "c"}}, &savedmodels.DataRecord{Columns: []string{"a<b", "c"}}},
	} {
		require.NoError(t, (&Adapter{Record: c.written, Weights: fromPython()}).Write(dir))
		a, err := Read(dir, 0)
		require.NoError(t, err)
		assert.Equal(t, c.read, a.Record)
	}
}

func TestWhatCannotBeWritten(t *testing.T) {
	for text, w := range map[string]Weight{
		"is string":              {tfbind.String, nil, nil},
		"has 3 bytes":            {tfbind.Float32, []int64{1}, []byte{1, 2, 3}},
		"of shape [-1]":          {tfbind.Float32, []int64{-1}, nil},
		"of shape [4294967296 4": {tfbind.Float32, []int64{1 << 32, 1 << 32, 1 << 32}, nil},
	} {
		dir := t.TempDir()
		assert.ErrorContains(t, (&Adapter{Weights: map[string]Weight{"w": w}}).Write(dir), text)
		assert.NoFileExists(t, filepath.Join(dir, File))
	}
}

// file makes a file from the text of a header and values.
func file(header string, values ...byte) []byte {
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), values...)
}

// numbered returns a header with n entries of metadata and no weights.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":""`, i)
	}
	return `{"__metadata__":{` + b.String()[1:] + `}}`
}

// A file with more values than Read allows is refused before the values are read.
func TestLargeFile(t *testing.T) {
	const size = 1 << 40
	dir := t.TempDir()
	path := filepath.Join(dir, File)
	header := file(fmt.Sprintf(head+`"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%[1]d]}}`, size))
	require.NoError(t, os.WriteFile(path, header, 0o666))
	require.NoError(t, os.Truncate(path, int64(len(header))+size))
	for _, most := range []int64{0, 100} {
		_, err := Read(dir, most)
		require.ErrorIs(t, err, ErrFormat)
		assert.ErrorContains(t, err, "bytes of values, expected at most")
	}
}

const head = `{"__metadata__":{"format":"steadyfit.adapter/1","base":"b"},`

func TestDamagedFiles(t *testing.T) {
	for text, raw := range map[string][]byte{
		"its metadata: data: json":                       file(`{"__metadata__":{"format":"steadyfit.adapter/1","data":"[]"}}`),
		"has no header":                                  {1, 2},
		"more than the file has":                         file(`{}`)[:9],
		"its header: ":                                   file(`{"a":`),
		"after top-level value":                          file(head+`"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} x`, 1),
		"its metadata: expected":                         file(`{"__metadata__":[]}`),
		"expected at most 8388608":                       file(strings.Repeat(" ", maxHeader+1)),
		`"a" is repeated`:                                file(head+`"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, 1),
		`"100000" is repeated, or follows 100000 others`: file(numbered(maxEntries + 1)),
		`have the format ""`:                             file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		`have the format "pt"`:                           file(`{"__metadata__":{"format":"pt"}}`),
		`type "F8" is unknown`:                           file(head+`"a":{"dtype":"F8","shape":[1],"data_offsets":[0,1]}}`, 1),
		`unknown field "x"`:                              file(head+`"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}`, 1),
		"takes 8 bytes":                                  file(head+`"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 1, 2, 3, 4),
		"from 0 to 4 of 3":                               file(head+`"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 1, 2, 3),
		"from 4 to 0":                                    file(head+`"a":{"dtype":"U8","shape":[0],"data_offsets":[4,0]}}`, 1, 2, 3, 4),
		"from -1 to 0":                                   file(head+`"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}`, 1),
		"the shape [-1]":                                 file(head + `"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}`),
		"the shape [4611686018427":                       file(head + `"a":{"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`),
		"overlap or have gaps at b":                      file(head+`"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		"gaps at byte 1":                                 file(head+`"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 1, 2, 3),
		"NaN or infinite":                                file(head+`"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, floats(1, float32(math.Inf(-1)))...),
		"it has 2 bytes of values":                       file(head+`"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1, 2),
	} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, File), raw, 0o644))
		_, err := Read(dir, 0)
		require.ErrorIs(t, err, ErrFormat, text)
		assert.ErrorContains(t, err, text)
		assert.ErrorContains(t, err, dir)
	}
}

// Read returns an error for a file with one changed bit in the values.
func TestChangedValue(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, (&Adapter{Base: "b", Weights: fromPython()}).Write(dir))
	path := filepath.Join(dir, File)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	raw[len(raw)-20] ^= 1
	require.NoError(t, os.WriteFile(path, raw, 0o666))
	_, err = Read(dir, 0)
	require.ErrorIs(t, err, ErrFormat)
	assert.ErrorContains(t, err, "its values are not those that were written")
}

// decode refuses the bytes of a file, or returns weights that encode and decode do not change.
func FuzzDecode(f *testing.F) {
	good, err := encode(fromPython(), map[string]string{formatKey: format})
	require.NoError(f, err)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(file(head+`"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1))
	f.Fuzz(func(t *testing.T, raw []byte) {
		weights, metadata, err := decode(bytes.NewReader(raw), int64(len(raw)), maxBytes)
		if err != nil {
			return
		}
		again, err := encode(weights, map[string]string{formatKey: format, baseKey: metadata[baseKey]})
		require.NoError(t, err)
		same, meta, err := decode(bytes.NewReader(again), int64(len(again)), maxBytes)
		require.NoError(t, err)
		require.Equal(t, len(weights), len(same))
		for name, w := range weights {
			require.True(t, bytes.Equal(w.Data, same[name].Data), name)
		}
		require.Equal(t, metadata[baseKey], meta[baseKey])
		require.NotEmpty(t, meta[sumKey])
	})
}
