package data

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/testkit"
	"steadyfit/internal/tfproto"
	"steadyfit/internal/wire"
)

// example returns a tf.train.Example with features of the types []float32, []int64 and []string.
func example(features map[string]any) []byte {
	all := map[string]*tfproto.Feature{}
	for name, values := range features {
		f := &tfproto.Feature{}
		switch values := values.(type) {
		case []string:
			list := &tfproto.BytesList{}
			for _, text := range values {
				list.Value = append(list.Value, []byte(text))
			}
			f.Kind = &tfproto.Feature_BytesList{BytesList: list}
		case []float32:
			f.Kind = &tfproto.Feature_FloatList{FloatList: &tfproto.FloatList{Value: values}}
		case []int64:
			f.Kind = &tfproto.Feature_Int64List{Int64List: &tfproto.Int64List{Value: values}}
		}
		all[name] = f
	}
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(&tfproto.Example{Features: &tfproto.Features{Feature: all}})
	return raw
}

// recordsOf returns a TFRecord file.
func recordsOf(records ...[]byte) (file []byte) {
	for _, raw := range records {
		file = binary.LittleEndian.AppendUint64(file, uint64(len(raw)))
		file = binary.LittleEndian.AppendUint32(file, wire.Checksum(file[len(file)-8:]))
		file = append(file, raw...)
		file = binary.LittleEndian.AppendUint32(file, wire.Checksum(raw))
	}
	return file
}

// numberedRecords writes n records with x [3] and label in files of a set.
func numberedRecords(t testing.TB, n, files int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i := range files {
		var records [][]byte
		for row := i * n / files; row < (i+1)*n/files; row++ {
			x := []float32{float32(row), float32(row) / 3, -1}
			records = append(records, example(map[string]any{"x": x, "label": []int64{int64(row % 5)}}))
		}
		put(t, dir, fmt.Sprintf("set-%05d-of-%05d.tfrecord", i, files), recordsOf(records...))
	}
	return dir
}

func openLabelled(t testing.TB, path string) *InMemory {
	t.Helper()
	return opened(t, path, Options{CSV: CSVOptions{Label: "label"}})
}

// expectedValues has the values that the Python libraries read (scripts/records.py).
type expectedValues struct {
	Table struct {
		X     [][]float32
		IDs   [][]int64 `json:"ids"`
		Words [][]string
		Label [][]int64
	}
	Flowers struct {
		X     [][]float64
		Y     []int64
		Names []string
		Side  [][]float32
	}
	Parquet struct {
		Double []float64
		Float  []float32
		Flag   []bool
		Text   []string
		List   [][]float32
	}
}

func recordValues(t testing.TB) (want expectedValues) {
	t.Helper()
	raw := contentOf(t, filepath.Join("testdata", "records", "values.json"))
	require.NoError(t, json.Unmarshal(raw, &want))
	return want
}

func TestRecordsOfTensorFlow(t *testing.T) {
	dir := filepath.Join("testdata", "records")
	want := recordValues(t)
	for _, name := range []string{"table.tfrecord"} {
		m := openLabelled(t, filepath.Join(dir, name))
		require.Equal(t, m.Name()+": 7 samples; ids int64 [2], words string [2], x float32 [3], y int64 []", describe(m))
		fields := fieldsOf(t, m)
		require.Equal(t, slices.Concat(want.Table.IDs...), fields["ids"].Values)
		require.Equal(t, slices.Concat(want.Table.Words...), fields["words"].Values)
		require.Equal(t, slices.Concat(want.Table.X...), fields["x"].Values)
		require.Equal(t, slices.Concat(want.Table.Label...), fields["y"].Values)
	}
	o := Options{Images: ImageOptions{Height: 6, Width: 8}, CSV: CSVOptions{Label: "image/class/text"},
		Ignore: []string{"image/objects", "image/class/label"}}
	for _, path := range []string{"flowers-*.tfrecord"} {
		m := opened(t, filepath.Join(dir, path), o)
		require.Equal(t, m.Name()+": 7 samples; x uint8 [6 8 3], y int64 []", describe(m))
		classes := spec(m, "y").Classes
		require.Equal(t, []string{"lily", "rose", "tulip"}, classes)
		fields := fieldsOf(t, m)
		for i, class := range fields["y"].Values.([]int64) {
			require.Equal(t, want.Flowers.Names[i], classes[class])
		}
		checkFlowers(t, want.Flowers.X, fields["x"].Values.([]uint8))
	}
}

// checkFlowers compares images. Images with even numbers are JPEG files, whose pixels depend on the
// decoder.
func checkFlowers(t testing.TB, want [][]float64, got []uint8) {
	t.Helper()
	for i := range want {
		exact := 4.0 * float64((i+1)%2)
		for p, v := range want[i] {
			require.InDelta(t, v, got[i*6*8*3+p], exact, "image %d, value %d", i, p)
		}
	}
}

func TestBadRecords(t *testing.T) {
	good := example(map[string]any{"x": []float32{1, 2}, "label": []int64{1}})
	file := recordsOf(good, good, good)
	size := len(file) / 3
	changed := func(at int) []byte {
		raw := slices.Clone(file)
		raw[at] ^= 1
		return raw
	}
	length := func(n uint64) []byte {
		raw := binary.LittleEndian.AppendUint64(nil, n)
		return binary.LittleEndian.AppendUint32(raw, wire.Checksum(raw))
	}
	longer := example(map[string]any{"x": []float32{1, 2, 3}, "label": []int64{1}})
	sequence := append(slices.Clone(good), 2<<3|2, 0) // feature_lists
	for name, c := range map[string]struct {
		raw  []byte
		want string
		err  error
	}{
		"content": {changed(size + 20), "record 1: found the checksum", ErrFormat},
		"offset":  {changed(size + 20), fmt.Sprintf("at byte %d, expected", size), ErrFormat},
		"stored":  {changed(2*size - 1), "record 1: found the checksum", ErrFormat},
		"length": {changed(2*size + 1), fmt.Sprintf("record 2: found a wrong checksum of the length at byte %d",
			2*size), ErrFormat},
		"foreign":  {[]byte("no records, but some text"), "not a TFRecord file", ErrFormat},
		"empty":    {nil, "is empty", ErrFormat},
		"cut":      {file[:len(file)-1], "record 2: found", ErrFormat},
		"cut head": {file[:2*size+5], "record 2: found 5 bytes", ErrFormat},
		"huge": {slices.Concat(file, length(1<<62)), "record 3: found a length of 4611686018427387904 bytes",
			ErrFormat},
		"large":       {slices.Concat(file, length(maxRecord)), "record 3: found 12 bytes", ErrFormat},
		"negative":    {length(math.MaxUint64), "record 0: found a length", ErrFormat},
		"longer":      {recordsOf(good, longer), `record 1, column "x": found float32 [3], expected float32 [2], as in the first record`, ErrFormat},
		"missing":     {recordsOf(good, example(map[string]any{"label": []int64{1}})), `record 1, column "x": found no elements`, ErrFormat},
		"no elements": {recordsOf(good, example(map[string]any{"label": []int64{1}, "x": []float32{}})), `record 1, column "x": found no elements`, ErrFormat},
		"another":     {recordsOf(good, example(map[string]any{"label": []int64{1}, "x": []float32{1, 2}, "z": []int64{1}})), `record 1, column "z": found a value that the first record lacks`, ErrFormat},
		"other type":  {recordsOf(good, example(map[string]any{"label": []int64{1}, "x": []int64{1, 2}})), `record 1, column "x": found int64 [2]`, ErrFormat},
		"sequence":    {recordsOf(sequence), "record 0: found another message, such as a tf.train.SequenceExample", ErrFormat},
		"message":     {recordsOf([]byte("\x0a\xff")), "record 0: found a damaged message", ErrFormat},
		"no features": {recordsOf(nil), "no value", ErrField},
		"compressed":  {compressed(t, file), "not a TFRecord file, or a compressed one", ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			path := put(t, t.TempDir(), "bad.tfrecord", c.raw)
			var err error
			testkit.Allocates(t, 8<<20, func() { _, err = Open(path, Options{CSV: CSVOptions{Label: "label"}}) })
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// Memory does not grow with the size of the files. The index has 16 bytes for each record, without the label.
func TestRecordsAreBounded(t *testing.T) {
	one := example(map[string]any{"x": make([]float32, 1<<18), "label": []int64{1}})
	path := put(t, t.TempDir(), "large.tfrecord", recordsOf(slices.Repeat([][]byte{one}, 64)...))
	inUse := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := inUse()
	m := openLabelled(t, path)
	require.EqualValues(t, 64*(recordBytes+8), m.HeapBytes())
	for b, err := range m.Shuffle(1).Workers(2).Batches(Pass{Batch: 2}) {
		require.NoError(t, err)
		if b.Index == 31 {
			require.Less(t, inUse(), before+16<<20)
		}
	}
}

func TestRecordSets(t *testing.T) {
	dir := numberedRecords(t, 20, 3)
	whole := copied(t, openLabelled(t, dir), Pass{Batch: 20})
	require.Equal(t, 20, whole[0].Size)
	require.Equal(t, whole, copied(t, openLabelled(t, filepath.Join(dir, "set-*.tfrecord")), Pass{Batch: 20}))
	require.Equal(t, 6, openLabelled(t, filepath.Join(dir, "set-00000-of-00003.tfrecord")).Len())
	require.Equal(t, 13, openLabelled(t, filepath.Join(dir, "set-0000[01]*")).Len())
	other := t.TempDir() // TensorFlow Datasets writes the number of a file after the extension
	for i := range 3 {
		raw := contentOf(t, filepath.Join(dir, fmt.Sprintf("set-%05d-of-00003.tfrecord", i)))
		put(t, other, fmt.Sprintf("flowers-train.tfrecord-%05d-of-00003", i), raw)
	}
	put(t, other, "features.json", []byte("{}"))
	require.Equal(t, whole, copied(t, openLabelled(t, other), Pass{Batch: 20}))
	_, err := Open(filepath.Join(dir, "none-*"), Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	put(t, dir, "a.csv", []byte("1,2\n"))
	_, err = Open(filepath.Join(dir, "*.csv"), Options{})
	require.ErrorIs(t, err, ErrUnsupported)
}

func TestRecordParts(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"contest-train-00000-of-00001.tfrecord", "contest-test.tfrecord", "contest-validation.tfrecord"} {
		put(t, dir, name, recordsOf(slices.Repeat([][]byte{example(map[string]any{"x": []int64{1}})}, i+1)...))
	}
	for part, n := range map[string]int{"": 1, "train": 1, "test": 2, "validation": 3} {
		m := opened(t, dir, Options{Split: part})
		require.Equal(t, n, m.Len(), part)
		require.Equal(t, filepath.Join(dir, "*"+cmp.Or(part, "train")+"*"), m.Name())
	}
	_, err := Open(filepath.Join(dir, "contest-test.tfrecord"), Options{Split: "test"})
	require.ErrorIs(t, err, ErrNoSplit)
	require.NoError(t, os.Remove(filepath.Join(dir, "contest-train-00000-of-00001.tfrecord")))
	_, err = Open(dir, Options{Split: "train"})
	require.ErrorIs(t, err, ErrNoSplit)
}

// The values of a record that a training does not need may be left out, even with several lengths.
func TestRecordsIgnore(t *testing.T) {
	var records [][]byte
	for i := range 4 {
		records = append(records, example(map[string]any{"picture": []float32{1, 2}, "boxes": make([]int64, i),
			"label": []string{"b"}}))
	}
	path := put(t, t.TempDir(), "some.tfrecord", recordsOf(records...))
	_, err := Open(path, Options{CSV: CSVOptions{Label: "label"}})
	require.ErrorContains(t, err, `record 0, column "boxes": found no elements`)
	m := opened(t, path, Options{CSV: CSVOptions{Label: "label"}, Ignore: []string{"boxes"}})
	require.Equal(t, path+": 4 samples; x float32 [2], y int64 []", describe(m))
	require.Equal(t, []string{"b"}, spec(m, "y").Classes)
	same, err := m.Drop("boxes")
	require.NoError(t, err)
	require.Equal(t, m.Fields(), same.Fields())
	_, err = m.Drop("box")
	require.ErrorIs(t, err, ErrField)
	for _, label := range []string{"y", "Label"} {
		_, err = Open(path, Options{CSV: CSVOptions{Label: label}})
		require.ErrorIs(t, err, ErrField)
		require.ErrorContains(t, err, strconv.Quote(label))
	}
	_, err = Open(path, Options{CSV: CSVOptions{Label: "label", Classes: []string{"a"}}, Ignore: []string{"boxes"}})
	require.ErrorContains(t, err, `record 0, column "label": found "b", expected one of the 1 classes`)
}

// Records have the same order as a dataset in memory, for any number of workers, and when a pass
// begins at any batch.
func TestOrderOfRecords(t *testing.T) {
	m := openLabelled(t, numberedRecords(t, 50, 4))
	fields := fieldsOf(t, m)
	same := dataset(t, "memory", Field{"x", fields["x"]}, Field{"y", fields["y"]})
	first, _ := split(t, m, 0.8, 3)
	firstSame, _ := split(t, same, 0.8, 3)
	for epoch := range 2 {
		want := copied(t, firstSame.Shuffle(7), Pass{Batch: 8, Epoch: epoch})
		for workers := 1; workers <= 8; workers++ {
			ds := Prefetch(first.Shuffle(7).Workers(workers), workers-1)
			require.Equal(t, want, copied(t, ds, Pass{Batch: 8, Epoch: epoch}))
			require.Equal(t, want[3:], copied(t, ds, Pass{Batch: 8, Epoch: epoch, Skip: 3}))
		}
	}
}

// A pass that begins in the middle of an epoch reads only the records of its batches.
func TestSkippedRecordsAreNotRead(t *testing.T) {
	dir := numberedRecords(t, 20, 2)
	m := openLabelled(t, dir)
	require.NoError(t, os.Truncate(filepath.Join(dir, "set-00000-of-00002.tfrecord"), 100))
	rest := copied(t, m, Pass{Batch: 5, Skip: 2})
	require.Len(t, rest, 2)
	for _, err := range m.Batches(Pass{Batch: 5, Skip: 1}) {
		require.ErrorContains(t, err, "was truncated while it was in use")
	}
}

func TestRecordsThatChange(t *testing.T) {
	dir := numberedRecords(t, 4, 1)
	m := openLabelled(t, dir)
	path := filepath.Join(dir, "set-00000-of-00001.tfrecord")
	raw := contentOf(t, path)
	raw[len(raw)-10] ^= 1
	require.NoError(t, os.WriteFile(path, raw, 0o644))
	for b, err := range m.Batches(Pass{Batch: 1}) {
		if b.Index < 3 && err == nil {
			continue
		}
		require.ErrorContains(t, err, path+": record 3: found other bytes than in the index of the file")
	}
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	for _, err := range m.Batches(Pass{Batch: 1}) {
		require.ErrorIs(t, err, fs.ErrClosed)
	}
}

func TestFingerprintOfRecords(t *testing.T) {
	print := func(m *InMemory) string {
		text, ok, err := m.Fingerprint()
		require.NoError(t, err)
		require.True(t, ok)
		return text
	}
	dir := numberedRecords(t, 6, 2)
	m := openLabelled(t, dir)
	require.Equal(t, print(m), print(openLabelled(t, dir)))
	require.NotEqual(t, print(m), print(m.Shuffle(1)))
	dir = numberedRecords(t, 6, 1)
	require.Equal(t, print(m), print(openLabelled(t, dir)), "the number of files does not matter")
	taken, _ := split(t, m, 0.8, 1)
	require.NotEqual(t, print(m), print(taken))
	other := example(map[string]any{"x": []float32{9, 9, 9}, "label": []int64{0}})
	require.NotEqual(t, print(m), print(openLabelled(t,
		put(t, t.TempDir(), "a.tfrecord", recordsOf(slices.Repeat([][]byte{other}, 6)...)))))
}

// The errors of Check and CheckImages name the record.
func TestCheckRecords(t *testing.T) {
	nan := float32(math.NaN())
	small := string(pngOf(t, noise(1)))
	row := func(x float32, label int64, picture string) []byte {
		return example(map[string]any{"x": []float32{1, x}, "picture": []string{picture}, "label": []int64{label}})
	}
	dir := t.TempDir()
	put(t, dir, "a-00000-of-00002.tfrecord", recordsOf(row(1, 1, small), row(1, 2, small)))
	second := put(t, dir, "a-00001-of-00002.tfrecord",
		recordsOf(row(1, 1, small), row(nan, 7, small[:50]), row(1, 1, small)))
	m := opened(t, dir, Options{CSV: CSVOptions{Label: "label"}, Images: ImageOptions{Size: 4}})
	require.Equal(t, []string{"picture"}, imageFields(m))
	require.Equal(t, dir+": 5 samples; picture uint8 [4 4 3], x float32 [2], y int64 []", describe(m))
	var bad *RowError
	require.ErrorAs(t, Check(m.Shuffle(1), "", finite), &bad)
	require.Equal(t, RowError{File: second, Unit: "record", Row: 1, Column: "x[1]", Found: "NaN", Expected: bad.Expected,
		Fix: bad.Fix, Err: ErrValue}, *bad)
	require.ErrorContains(t, Check(m, "y", Values{Classes: 3}), second+`: record 1, column "label": found 7`)
	err := CheckImages(context.Background(), m)
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, second+": record 1: picture: a damaged PNG image")
	scaled, err := m.Scale("picture", 0, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"picture"}, imageFields(scaled))

	m = opened(t, dir, Options{CSV: CSVOptions{Label: "label"}, Images: ImageOptions{Size: 4, Float: true}})
	require.Equal(t, dir+": 5 samples; picture float32 [4 4 3], x float32 [2], y int64 []", describe(m))
	for b, err := range m.Batches(Pass{Batch: 1}) {
		require.NoError(t, err)
		require.NotEqual(t, float32(int(b.Fields[0].Values.([]float32)[0])), b.Fields[0].Values.([]float32)[0], "a fraction")
		break
	}

	// The model takes the picture as text, so the picture is not decoded.
	m = opened(t, dir, Options{CSV: CSVOptions{Inputs: []FieldSpec{{Name: "picture", Type: "string"}, {Name: "x"}}}})
	require.Equal(t, small, fieldsOf(t, m)["picture"].Values.([]string)[0])
	_, err = Open(dir, Options{})
	require.ErrorContains(t, err, "ImageOptions.Size")
}

// BenchmarkFirstBatch opens 10 million records, checks and identifies them, and takes a batch from the
// middle of a shuffled epoch, as a resumed training does. It reports how much the resident memory grew.
func BenchmarkFirstBatch(b *testing.B) {
	const records = 10_000_000
	path := filepath.Join(b.TempDir(), "large.tfrecord")
	f, err := os.Create(path)
	require.NoError(b, err)
	w := bufio.NewWriterSize(f, 1<<20)
	some := make([][]byte, 100)
	for i := range some {
		some[i] = recordsOf(example(map[string]any{"x": []float32{float32(i), 1, 2, 3}, "label": []int64{int64(i % 10)}}))
	}
	for i := range records {
		_, err := w.Write(some[i%len(some)])
		require.NoError(b, err)
	}
	require.NoError(b, w.Flush())
	require.NoError(b, f.Close())
	debug.FreeOSMemory()
	before := resident(b)
	for b.Loop() {
		m, err := Open(path, Options{CSV: CSVOptions{Label: "label"}})
		require.NoError(b, err)
		require.NoError(b, Check(m, "", finite))
		require.NoError(b, Check(m, "y", Values{Classes: 10}))
		train, _, err := m.Split(0.9, 1)
		require.NoError(b, err)
		shuffled := train.Shuffle(1)
		_, _, err = shuffled.Fingerprint()
		require.NoError(b, err)
		for batch, err := range shuffled.Batches(Pass{Batch: 32, Epoch: 3, Skip: 100_000}) {
			require.NoError(b, err)
			require.Equal(b, 32, batch.Size)
			break
		}
		b.StopTimer()
		b.ReportMetric(float64(resident(b)-before)/(1<<20), "MiB-RSS")
		debug.FreeOSMemory()
		b.ReportMetric(float64(resident(b)-before)/(1<<20), "MiB-RSS-live")
		require.NoError(b, m.Close())
		runtime.KeepAlive(shuffled)
		b.StartTimer()
	}
}

// resident returns the resident memory of this process.
func resident(t testing.TB) (bytes int) {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skipf("resident memory is unknown: %v", err)
	}
	var size, pages int
	_, err = fmt.Sscan(string(raw), &size, &pages)
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

func FuzzTFRecord(f *testing.F) {
	good := example(map[string]any{"x": []float32{1, 2}, "label": []int64{-1}, "t": []string{"a", ""}})
	f.Add(recordsOf(good, good), good)
	f.Add(recordsOf(good)[:20], []byte("\x0a\x02\x0a\x00"))
	for _, name := range []string{"table.tfrecord", "lengths.tfrecord"} {
		raw := contentOf(f, filepath.Join("testdata", "records", name))
		f.Add(raw, raw[12:max(12, min(len(raw), 100))])
	}
	f.Fuzz(func(t *testing.T, file, content []byte) {
		// Most changed files have wrong checksums and are refused, so the fuzzer's content is also
		// read as a record with correct checksums.
		for _, raw := range [][]byte{file, recordsOf(content, content)} {
			readHostile(t, "f.tfrecord", raw, 8<<20+64*len(raw))
		}
	})
}

// readHostile opens a file of records and, if that works, reads it to its end. most is the maximum
// number of bytes that opening may allocate.
func readHostile(t *testing.T, name string, raw []byte, most int) {
	var m *InMemory
	var err error
	path := put(t, t.TempDir(), name, raw)
	testkit.Allocates(t, most, func() { m, err = Open(path, Options{Images: ImageOptions{Size: 1}}) })
	if err != nil {
		require.True(t, errors.Is(err, ErrFormat) || errors.Is(err, ErrField) || errors.Is(err, ErrTooLarge) ||
			errors.Is(err, ErrUnsupported), "%v", err)
		require.ErrorContains(t, err, name)
		return
	}
	images := imageFields(m) != nil
	for b, err := range m.Workers(1).Batches(Pass{Batch: 2}) {
		require.True(t, err == nil || images, "%v", err)
		require.True(t, err != nil || b.Size > 0)
	}
	require.NoError(t, m.Close())
}
