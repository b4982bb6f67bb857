package data

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
)

// The files are written by pandas and pyarrow (scripts/records.py).
func TestParquetOfPandas(t *testing.T) {
	want := recordValues(t).Parquet
	for _, name := range []string{"table.parquet", "zstd.parquet"} {
		path := filepath.Join("testdata", "records", name)
		m := openLabelled(t, path)
		require.Equal(t, path+": 7 samples; double float64 [], float float32 [], flag bool [], text string [], int8 int8 [], "+
			"int16 int16 [], int32 int32 [], int64 int64 [], uint8 uint8 [], uint16 uint16 [], uint32 uint32 [], "+
			"uint64 uint64 [], list float32 [3], y int64 []", describe(m))
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
	raw := contentOf(t, filepath.Join("testdata", "records", "table.parquet"))
	odd := contentOf(t, filepath.Join("testdata", "records", "odd.parquet"))
	dir := t.TempDir()
	put(t, dir, "part-0.parquet", raw)
	put(t, dir, "part-1.parquet", raw)
	put(t, dir, "cache-0123456789abcdef.parquet", raw) // left by Dataset.map of Hugging Face
	m := openLabelled(t, dir)
	require.Equal(t, 14, m.Len())
	ordered := copied(t, m, Pass{Batch: 7})
	ordered[1].Index = 0
	require.Equal(t, ordered[0], ordered[1])
	want := copied(t, m.Shuffle(2), Pass{Batch: 4})
	for workers := 1; workers <= 8; workers++ {
		require.Equal(t, want[2:], copied(t, Prefetch(m.Shuffle(2).Workers(workers), 2), Pass{Batch: 4, Skip: 2}))
	}
	put(t, dir, "part-2.parquet", odd)
	_, err := Open(dir, Options{})
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, filepath.Join(dir, "part-2.parquet")+": its columns or their types differ")
}

// The same column may count time in different units in the files of a set.
func TestParquetUnitsOfFiles(t *testing.T) {
	at := time.Date(2024, 2, 29, 12, 30, 0, 0, time.UTC)
	dir := t.TempDir()
	for name, unit := range map[string]arrow.TimeUnit{"a.parquet": arrow.Millisecond, "b.parquet": arrow.Microsecond} {
		times := &arrow.TimestampType{Unit: unit, TimeZone: "UTC"}
		b := arrays.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "t", Type: times}}, nil))
		b.Field(0).(*arrays.TimestampBuilder).AppendTime(at)
		put(t, dir, name, parquetOfBatches(t, nil, b.NewRecordBatch()))
	}
	m := opened(t, dir, Options{CSV: CSVOptions{Schema: rulesOf(t,
		"columns: {t: {type: date, format: '%Y-%m-%dT%H:%M:%S', unit: seconds}}")}})
	seconds := at.Unix()
	require.Equal(t, []int64{seconds, seconds}, fieldsOf(t, m)["x"].Values)
}

func TestOddParquet(t *testing.T) {
	path := filepath.Join("testdata", "records", "odd.parquet")
	_, err := Open(path, Options{})
	require.ErrorContains(t, err, path+`: record 0, column "nested": found nested lists`)
	m := opened(t, path, Options{Ignore: []string{"null", "lengths", "nested", "date"}})
	require.Equal(t, path+": 2 samples; x float64 [], struct.bytes string [], struct.size int64 []", describe(m))
	require.Equal(t, []string{"a", "b"}, fieldsOf(t, m)["struct.bytes"].Values)
}

// The file has the encodings of version 2 (scripts/records.py).
func TestParquetEncodings(t *testing.T) {
	m := opened(t, filepath.Join("testdata", "records", "encodings.parquet"), Options{})
	f := fieldsOf(t, m)
	const n = 300
	var flags, lists []bool
	var halves []float64
	var wholes []int64
	var smalls []int32
	var paths, names []string
	for i := range n {
		wholes = append(wholes, int64(i*i-(i%7<<40)))
		smalls = append(smalls, int32(i/3))
		paths = append(paths, fmt.Sprintf("images/%04d.png", i))
		names = append(names, fmt.Sprintf("name %d", i%13))
		flags = append(flags, i%29 < 11)
		lists = append(lists, i%5 == 0, i%29 < 11)
		halves = append(halves, float64(i)/2)
	}
	require.Equal(t, flags, f["flag"].Values)
	require.Equal(t, flags, f["maybe"].Values)
	require.Equal(t, lists, f["flags"].Values)
	require.Equal(t, halves, f["half"].Values)
	require.Equal(t, wholes, f["whole"].Values)
	require.Equal(t, smalls, f["small"].Values)
	require.Equal(t, paths, f["path"].Values)
	require.Equal(t, names, f["name"].Values)
}

// A file with any damaged byte gives values or an error, and never a panic.
//
//lane:skip race (one goroutine)
func TestDamagedParquet(t *testing.T) {
	raw := contentOf(t, filepath.Join("testdata", "records", "encodings.parquet"))
	for at := 0; at < len(raw); at += 1 + len(raw)/150 {
		damaged := slices.Clone(raw)
		damaged[at] ^= 0xff
		readHostile(t, "f.parquet", damaged, 64<<20)
	}
}

func FuzzParquet(f *testing.F) {
	for _, name := range []string{"table.parquet", "zstd.parquet", "odd.parquet", "encodings.parquet"} {
		raw := contentOf(f, filepath.Join("testdata", "records", name))
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) { readHostile(t, "f.parquet", raw, 64<<20) })
}
