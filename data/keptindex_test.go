package data

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/bounded"
)

// largeRecords writes a set of two files that is large enough for a kept index, and sets the cache
// folder to a folder of this test.
func largeRecords(t testing.TB, records int) (dir string) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir = t.TempDir()
	pad := strings.Repeat(" ", keepFrom/records)
	made := make([][]byte, min(records, 999))
	for row := range made {
		made[row] = example(map[string]any{
			"pad": []string{pad}, "x": []float32{float32(row), -1}, "label": []string{string(rune('c' - row%3))},
		})
	}
	for i := range 2 {
		var raw [][]byte
		for row := i * records / 2; row < (i+1)*records/2; row++ {
			raw = append(raw, made[row%len(made)])
		}
		put(t, dir, fmt.Sprintf("a-%d-of-2.tfrecord", i), recordsOf(raw...))
	}
	return dir
}

// indexFiles returns the paths of the kept indexes of a test.
func indexFiles(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "steadyfit", "data", "*"))
	require.NoError(t, err)
	return paths
}

// flipped changes a byte of a file and keeps the file's modification time.
func flipped(t testing.TB, path string, at int64) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	one := make([]byte, 1)
	_, err = f.ReadAt(one, at)
	require.NoError(t, err)
	one[0] ^= 1
	_, err = f.WriteAt(one, at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, os.Chtimes(path, time.Time{}, info.ModTime()))
}

// The second start does not read the files, and has the same batches and the same fingerprint. If a
// changed record is not noticed at the start, it is an error when a batch needs it, and the next
// start reads the files again.
func TestKeptIndex(t *testing.T) {
	const records = 60_000 // too many for an index in memory
	dir := largeRecords(t, records)
	scratch := t.TempDir()
	t.Setenv("TMPDIR", scratch)
	first := openLabelled(t, dir)
	left, err := os.ReadDir(scratch)
	require.NoError(t, err)
	require.Len(t, left, 1, "the rows are in a file")
	require.Zero(t, first.HeapBytes())
	require.Len(t, indexFiles(t), 1)
	path := filepath.Join(dir, "a-1-of-2.tfrecord")
	info, err := os.Stat(path)
	require.NoError(t, err)
	flipped(t, path, info.Size()/2+100) // in the content of record 15,000 of 30,000

	second := openLabelled(t, dir)
	require.Equal(t, describe(first), describe(second))
	require.Equal(t, []string{"a", "b", "c"}, spec(second, "y").Classes)
	for _, p := range []Pass{{Batch: 5, Skip: records/5 - 1}, {Batch: 20_000, Skip: 0}} {
		batches := 0
		next := func(m *InMemory) (b Batch) {
			for b, err := range m.Workers(2).Batches(p) {
				require.NoError(t, err)
				batches++
				return b
			}
			return b
		}
		a, b := next(first), next(second)
		require.Equal(t, a.Fields, b.Fields)
		require.Equal(t, 2, batches)
	}
	narrow, err := second.selected("y")
	require.NoError(t, err)
	same, err := first.selected("y")
	require.NoError(t, err)
	require.Equal(t, copied(t, same.Shuffle(1), Pass{Batch: 7000}), copied(t, narrow.Shuffle(1), Pass{Batch: 7000}))
	prints := map[string]bool{}
	for _, m := range []*InMemory{first, second} {
		text, ok, err := m.Shuffle(3).Fingerprint()
		require.NoError(t, err)
		require.True(t, ok)
		prints[text] = true
		require.NoError(t, Check(m, "", finite))
	}
	require.Len(t, prints, 1)

	var failed error
	for _, err := range second.Batches(Pass{Batch: 500, Skip: records / 2 / 500}) {
		failed = err
	}
	require.ErrorContains(t, failed, path+": record 15000: ")
	require.ErrorContains(t, failed, "found other bytes than in the index of the file")
	require.Empty(t, indexFiles(t))
	_, err = Open(dir, Options{CSV: CSVOptions{Label: "label"}})
	require.ErrorContains(t, err, "found the checksum")
	require.Empty(t, indexFiles(t))
}

// If the files or the options have changed, a new index is made.
func TestKeptIndexOfOtherFiles(t *testing.T) {
	dir := largeRecords(t, 16)
	o := Options{CSV: CSVOptions{Label: "label"}}
	open := func(path string) *InMemory {
		m, err := Open(path, o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		return m
	}
	content := func() string {
		raw, err := os.ReadFile(indexFiles(t)[0])
		require.NoError(t, err)
		return string(raw)
	}
	open(dir)
	before := content()
	open(filepath.Join(dir, "a-*"))
	require.Equal(t, before, content())
	require.Len(t, indexFiles(t), 1, "the same files")

	path := filepath.Join(dir, "a-0-of-2.tfrecord")
	times := func(add time.Duration) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, os.Chtimes(path, time.Time{}, info.ModTime().Add(add)))
	}
	times(time.Nanosecond * 1000)
	open(dir)
	require.NotEqual(t, before, content(), "the time")
	before = content()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	size := len(raw) / 8
	put(t, dir, "a-0-of-2.tfrecord", slices.Concat(raw[size:], raw[:size]))
	require.NoError(t, os.Chtimes(path, time.Time{}, info.ModTime()))
	m := open(dir)
	require.NotEqual(t, before, content(), "the first bytes")
	require.Equal(t, float32(1), fieldsOf(t, m)["x"].Values.([]float32)[0])

	o.Ignore = []string{"pad"}
	require.Equal(t, 16, open(dir).Len())
	require.Len(t, indexFiles(t), 2)
	o.CSV.Label = ""
	require.Nil(t, spec(open(dir), "y").Classes)
	require.Len(t, indexFiles(t), 3)

	// An index that was not used for a long time is removed when another one is made.
	old := time.Now().Add(-2 * keepUnused)
	for _, path := range indexFiles(t) {
		require.NoError(t, os.Chtimes(path, old, old))
	}
	// After a day, the temporary file of an index that a killed process left is removed, too.
	folder := filepath.Dir(indexFiles(t)[0])
	young, left := put(t, folder, ".a.index-1", nil), put(t, folder, ".a.index-2", nil)
	for path, age := range map[string]time.Duration{young: 23 * time.Hour, left: 25 * time.Hour} {
		require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-age)))
	}
	open(dir)
	o.Ignore = []string{"pad", "x"}
	open(dir)
	require.Len(t, indexFiles(t), 3)
	require.FileExists(t, young)
	require.NoFileExists(t, left)
}

// If other users may write a kept index, the files are read instead, since training uses the labels in
// an index.
func TestKeptIndexOfOthers(t *testing.T) {
	dir := largeRecords(t, 8)
	want := describe(openLabelled(t, dir))
	path := indexFiles(t)[0]
	changes := map[string]func() error{"writable by all": func() error { return os.Chmod(path, 0o646) }, "writable by the group": func() error { return os.Chmod(path, 0o664) }}
	if os.Geteuid() == 0 {
		changes["of another user"] = func() error { return os.Chown(path, 12345, -1) }
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			before, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, want, describe(openLabelled(t, dir)))
			same, err := os.Stat(path)
			require.NoError(t, err)
			require.True(t, os.SameFile(before, same), "used")
			require.NoError(t, change())
			require.Equal(t, want, describe(openLabelled(t, dir)))
			after, err := os.Stat(path)
			require.NoError(t, err)
			require.False(t, os.SameFile(before, after), "replaced")
		})
	}
}

// If a kept index is replaced or damaged while a dataset uses it, the batches do not change.
func TestKeptIndexIsReplacedInUse(t *testing.T) {
	for _, records := range []int{100, 60_000} { // rows in memory and in a file
		dir := largeRecords(t, records)
		openLabelled(t, dir)
		m := openLabelled(t, dir)
		require.NotEmpty(t, m.records.kept)
		labels, err := m.selected("y")
		require.NoError(t, err)
		want := copied(t, labels, Pass{Batch: records})
		require.NoError(t, os.Truncate(indexFiles(t)[0], 0))
		require.Equal(t, want, copied(t, labels, Pass{Batch: records}))
	}
}

// No index is kept for small files, or if the cache folder is not writable.
func TestNoKeptIndex(t *testing.T) {
	dir := largeRecords(t, 4)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	t.Setenv("XDG_CACHE_HOME", file)
	require.Equal(t, 4, openLabelled(t, dir).Len())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	openLabelled(t, numberedRecords(t, 20, 2))
	raw, err := os.ReadFile(filepath.Join(dir, "a-0-of-2.tfrecord"))
	require.NoError(t, err)
	zipped := put(t, t.TempDir(), "a.tfrecord.gz", compressed(t, raw))
	openLabelled(t, zipped)
	require.Empty(t, indexFiles(t))
}

// A damaged or malicious index is replaced.
func TestBadKeptIndex(t *testing.T) {
	dir := largeRecords(t, 8)
	want := openLabelled(t, dir)
	require.Len(t, indexFiles(t), 1)
	path := indexFiles(t)[0]
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	rowsAt := keptHead + int(binary.LittleEndian.Uint32(good[len(keptMagic):]))

	cases := map[string][]byte{
		"empty": nil, "magic": append([]byte{'S'}, good[1:]...), "head": good[:keptHead-1], "header": good[:rowsAt-1],
		"rows": good[:len(good)-1], "longer": append(slices.Clone(good), 0),
	}
	for name, at := range map[string]int{"flipped header": keptHead + 9, "flipped row": len(good) - 9} {
		raw := slices.Clone(good)
		raw[at] ^= 1
		cases[name] = raw
	}
	huge := slices.Clone(good)
	binary.LittleEndian.PutUint32(huge[len(keptMagic):], math.MaxUint32)
	cases["huge header"] = huge
	// made returns the good index with a change and with correct checksums.
	made := func(change func(h *keptHeader, rows []byte)) []byte {
		var h keptHeader
		rows := slices.Clone(good[rowsAt:])
		require.NoError(t, json.Unmarshal(good[keptHead:rowsAt], &h))
		change(&h, rows)
		h.Sum = crc32.Checksum(rows, castagnoli)
		text, err := json.Marshal(h)
		require.NoError(t, err)
		raw := binary.LittleEndian.AppendUint32([]byte(keptMagic), uint32(len(text)))
		raw = binary.LittleEndian.AppendUint32(raw, crc32.Checksum(text, castagnoli))
		return slices.Concat(raw, text, rows)
	}
	width := entryBytes + textID.Size
	require.Equal(t, good, made(func(*keptHeader, []byte) {}))
	for name, change := range map[string]func(h *keptHeader, rows []byte){
		"key":             func(h *keptHeader, _ []byte) { h.Key = strings.Repeat("0", 64) },
		"files":           func(h *keptHeader, _ []byte) { h.Files = h.Files[:1] },
		"long header":     func(h *keptHeader, _ []byte) { h.Files = slices.Repeat(h.Files[:1], 1<<18) },
		"no files":        func(h *keptHeader, _ []byte) { h.Files = nil },
		"more records":    func(h *keptHeader, _ []byte) { h.Files[0].Records++ },
		"negative":        func(h *keptHeader, _ []byte) { h.Files[0].Records, h.Files[1].Records = -1, 9 },
		"many records":    func(h *keptHeader, _ []byte) { h.Files[0].Records = math.MaxInt },
		"no records":      func(h *keptHeader, _ []byte) { h.Files[0].Records, h.Files[1].Records = 0, 0 },
		"narrow":          func(h *keptHeader, _ []byte) { h.Width = 0 },
		"wide":            func(h *keptHeader, _ []byte) { h.Width = math.MaxInt },
		"no label":        func(h *keptHeader, _ []byte) { h.Width = entryBytes },
		"observed":        func(h *keptHeader, _ []byte) { h.Observed = h.Observed[:1] },
		"no texts":        func(h *keptHeader, _ []byte) { h.Texts = nil },
		"text":            func(_ *keptHeader, rows []byte) { rows[3*width+entryBytes] = 3 },
		"length":          func(_ *keptHeader, rows []byte) { binary.LittleEndian.PutUint32(rows[8:], math.MaxUint32) },
		"later length":    func(_ *keptHeader, rows []byte) { binary.LittleEndian.PutUint32(rows[width+8:], keepFrom) },
		"negative offset": func(_ *keptHeader, rows []byte) { binary.LittleEndian.PutUint64(rows[2*width:], math.MaxUint64) },
		"large offset":    func(_ *keptHeader, rows []byte) { binary.LittleEndian.PutUint64(rows[2*width:], math.MaxInt64) },
		"first record":    func(_ *keptHeader, rows []byte) { rows[0]++ },
	} {
		cases[name] = made(change)
	}
	for name, raw := range cases {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, raw, 0o644))
			s := newRecordSet("t", tfRecord{}, Options{CSV: CSVOptions{Label: "label"}}, nil)
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			require.NoError(t, err)
			kept, ok := keptIndexOf(files, s.format, s.options, keepFrom)
			require.True(t, ok)
			bounded.Allocates(t, 48<<20, func() { require.Error(t, kept.load(s, files)) })
			if name != "rows" && name != "text" && name != "magic" {
				return // reading the files again takes time
			}
			m := openLabelled(t, dir)
			require.Equal(t, describe(want), describe(m))
			again, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, good, again)
		})
	}
}

// Checks use the extremes that were found when records were opened, and have the same results as
// reading the records.
func TestChecksOfObservedRecords(t *testing.T) {
	values := [][]float32{{1, 2}, {-3, 40}, {0.5, 2}, {1 << 24, 2}, {float32(math.Inf(1)), 0}, {float32(math.NaN()), 2}, {1 << 60, 0}}
	for _, more := range values {
		row := func(x []float32, n int64) []byte {
			return example(map[string]any{"x": x, "n": []int64{n, 2}, "label": []float32{x[0]}})
		}
		path := put(t, t.TempDir(), "a.tfrecord", recordsOf(row(values[0], 7), row(more, math.MinInt64)))
		checkAsInMemory(t, path)
	}
	checkAsInMemory(t, filepath.Join("testdata", "records", "table.parquet"))
}

// checkAsInMemory requires that checks of records have the same results as checks of the same
// values in memory, and that checks that pass do not read the file.
func checkAsInMemory(t *testing.T, path string) {
	t.Helper()
	m := openLabelled(t, path)
	for name, a := range fieldsOf(t, m) {
		same, err := New("memory", Field{name, a})
		require.NoError(t, err)
		one, err := m.selected(name)
		require.NoError(t, err)
		closed, err := openLabelled(t, path).selected(name)
		require.NoError(t, err)
		require.NoError(t, closed.Close())
		check := func(of func(ds Dataset) error) {
			want, got := of(same), of(one)
			require.Equal(t, want == nil, got == nil, "%s of %s: %v, %v", name, path, want, got)
			if want == nil && Check(same, "", finite) == nil {
				require.NoError(t, of(closed), "%s of %s", name, path)
			}
		}
		if _, text := a.Values.([]string); text {
			continue
		}
		check(func(ds Dataset) error { return Check(ds, name, finite) })
		for _, most := range []int64{0, 1, 2, 7, 40, 127, 128, 255, 256, math.MaxInt32, 1 << 40, math.MaxInt64} {
			check(func(ds Dataset) error { return Check(ds, name, Values{Classes: int(max(most, 1))}) })
			check(func(ds Dataset) error { return Check(ds, name, Values{Below: float64(max(most, 1))}) })
			for _, least := range []int64{math.MinInt64, math.MinInt32, -128, -3, 0, 1} {
				check(func(ds Dataset) error { return Check(ds, name, Values{Integers: &[2]int64{least, most}}) })
			}
		}
	}
}

// BenchmarkFirstBatch opens 10 million records, checks and identifies them, and takes a batch from the
// middle of a shuffled epoch, as a resumed training does: with the index of an earlier start, and
// without an index. It reports how much the resident memory grew.
func BenchmarkFirstBatch(b *testing.B) {
	const records = 10_000_000
	b.Setenv("XDG_CACHE_HOME", b.TempDir())
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
	for _, kept := range []bool{false, true} {
		b.Run(fmt.Sprintf("kept=%v", kept), func(b *testing.B) {
			for b.Loop() {
				if !kept {
					b.StopTimer()
					for _, index := range indexFiles(b) {
						require.NoError(b, os.Remove(index))
					}
					b.StartTimer()
				}
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
		})
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
