package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/bounded"
)

// The files are written by pandas and pyarrow (scripts/records.py).
func TestParquetOfPandas(t *testing.T) {
	want := recordValues(t).Parquet
	for _, name := range []string{"table.parquet", "zstd.parquet"} {
		path := filepath.Join("testdata", "records", name)
		m := openLabelled(t, path)
		require.Equal(t, path+": 7 samples; double float64 [], flag bool [], float float32 [], "+
			"int16 int16 [], int32 int32 [], int64 int64 [], int8 int8 [], list float32 [3], text string [], "+
			"uint16 uint16 [], uint32 uint32 [], uint64 uint64 [], uint8 uint8 [], y int64 []", describe(m))
		f := fieldsOf(t, m)
		require.Equal(t, want.Double, f["double"].Values)
		require.Equal(t, want.Float, f["float"].Values)
		require.Equal(t, want.Flag, f["flag"].Values)
		require.Equal(t, want.Text, f["text"].Values)
		require.Equal(t, slices.Concat(want.List...), f["list"].Values)
		require.Equal(t, []int64{1, 0, 1, 0, 0, 1, 0}, f["y"].Values)
		require.Equal(t, []string{"a", "b"}, spec(m, "y").Classes)
		require.Equal(t, []int8{math.MinInt8, math.MaxInt8, 0, 1, 2, 3, 4}, f["int8"].Values)
		require.Equal(t, []int16{math.MinInt16, math.MaxInt16, 0, 1, 2, 3, 4}, f["int16"].Values)
		require.Equal(t, []int32{math.MinInt32, math.MaxInt32, 0, 1, 2, 3, 4}, f["int32"].Values)
		require.Equal(t, []int64{math.MinInt64, math.MaxInt64, 0, 1, 2, 3, 4}, f["int64"].Values)
		require.Equal(t, []uint8{0, math.MaxUint8, 0, 1, 2, 3, 4}, f["uint8"].Values)
		require.Equal(t, []uint16{0, math.MaxUint16, 0, 1, 2, 3, 4}, f["uint16"].Values)
		require.Equal(t, []uint32{0, math.MaxUint32, 0, 1, 2, 3, 4}, f["uint32"].Values)
		require.Equal(t, []uint64{0, math.MaxUint64, 0, 1, 2, 3, 4}, f["uint64"].Values)
	}
}

func TestParquetSets(t *testing.T) {
	scratch := t.TempDir()
	t.Setenv("TMPDIR", scratch)
	raw, err := os.ReadFile(filepath.Join("testdata", "records", "table.parquet"))
	require.NoError(t, err)
	odd, err := os.ReadFile(filepath.Join("testdata", "records", "odd.parquet"))
	require.NoError(t, err)
	dir := t.TempDir()
	put(t, dir, "part-0.parquet", raw)
	put(t, dir, "part-1.parquet", raw)
	m := openLabelled(t, dir)
	require.Equal(t, 14, m.Len())
	ordered := copied(t, m, Pass{Batch: 7})
	ordered[1].Index = 0
	require.Equal(t, ordered[0], ordered[1])
	want := copied(t, m.Shuffle(2), Pass{Batch: 4})
	for workers := 1; workers <= 8; workers++ {
		require.Equal(t, want[2:], copied(t, Prefetch(m.Shuffle(2).Workers(workers), 2), Pass{Batch: 4, Skip: 2}))
	}
	require.NoError(t, m.Close())
	left, err := os.ReadDir(scratch)
	require.NoError(t, err)
	require.Empty(t, left)
	put(t, dir, "part-2.parquet", odd)
	_, err = Open(dir, Options{})
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, filepath.Join(dir, "part-2.parquet")+": its columns or their types differ")
}

// The same column may count time in different units in the files of a set.
func TestParquetUnitsOfFiles(t *testing.T) {
	at := time.Date(2024, 2, 29, 12, 30, 0, 0, time.UTC)
	dir := t.TempDir()
	put(t, dir, "a.parquet", parquetOf(t, struct {
		T time.Time `parquet:"t,timestamp(millisecond)"`
	}{at}))
	put(t, dir, "b.parquet", parquetOf(t, struct {
		T time.Time `parquet:"t,timestamp(microsecond)"`
	}{at}))
	m, err := Open(dir, Options{CSV: CSVOptions{Schema: rulesOf(t, "columns: {t: {type: date, format: '%Y-%m-%dT%H:%M:%S', unit: seconds}}")}})
	require.NoError(t, err)
	seconds := at.Unix()
	require.Equal(t, []int64{seconds, seconds}, fieldsOf(t, m)["x"].Values)
	require.NoError(t, m.Close())
}

func TestOddParquet(t *testing.T) {
	path := filepath.Join("testdata", "records", "odd.parquet")
	all := []string{"x", "null", "lengths", "nested", "date", "struct.size"}
	for column, want := range map[string]string{
		"null":    `record 1, column "null": found null`,
		"lengths": `record 1, column "lengths": found int64 [2], expected int64 [1]`,
		"nested":  `record 0, column "nested": found nested lists`,
		"date":    `record 0, column "date": found DATE`,
	} {
		ignore := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == column })
		_, err := Open(path, Options{Ignore: ignore})
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, want)
	}
	m, err := Open(path, Options{Ignore: []string{"null", "lengths", "nested", "date"}})
	require.NoError(t, err)
	require.Equal(t, path+": 2 samples; struct.bytes string [], struct.size int64 [], x float64 []", describe(m))
	require.Equal(t, []string{"a", "b"}, fieldsOf(t, m)["struct.bytes"].Values)
	require.NoError(t, m.Close())
}

func TestBadParquet(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "records", "table.parquet"))
	require.NoError(t, err)
	footer := func(n uint32) []byte {
		raw := slices.Clone(raw)
		binary.LittleEndian.PutUint32(raw[len(raw)-8:], n)
		return raw
	}
	for name, raw := range map[string][]byte{
		"cut": raw[:len(raw)-1], "half": raw[:len(raw)/2], "text": bytes.Repeat([]byte("text"), 20), "short": []byte("PAR1"),
		"footer": footer(math.MaxUint32), "small footer": footer(3), "zipped": compressed(t, raw),
	} {
		t.Run(name, func(t *testing.T) {
			path := put(t, t.TempDir(), "bad.parquet", raw)
			bounded.Allocates(t, 16<<20, func() { _, err = Open(path, Options{}) })
			require.True(t, errors.Is(err, ErrFormat) || errors.Is(err, ErrUnsupported), "%v", err)
			require.ErrorContains(t, err, path)
		})
	}
}

func FuzzParquet(f *testing.F) {
	for _, name := range []string{"table.parquet", "zstd.parquet", "odd.parquet", "encodings.parquet"} {
		raw, err := os.ReadFile(filepath.Join("testdata", "records", name))
		require.NoError(f, err)
		f.Add(raw)
	}
	for _, file := range hostileParquet(f) {
		if len(file.raw) < 64<<10 {
			f.Add(file.raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) { readHostile(t, "f.parquet", raw, 64<<20) })
}
