package data

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/testkit"
)

// arrowFile returns a file that pandas or pyarrow wrote (scripts/records.py).
func arrowFile(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", "records", name))
	require.NoError(t, err)
	return raw
}

// Arrow files with lz4 and zstd, and a stream without compression, give the same batches as a Parquet
// file with the same rows, including categories and lists.
func TestArrowAsParquet(t *testing.T) {
	for name, as := range map[string]string{
		"table.feather": "table.parquet", "stream.arrow": "table.parquet", "lz4.feather": "encodings.parquet",
		"zstd.feather": "encodings.parquet",
	} {
		o := Options{}
		if as == "table.parquet" {
			o.CSV.Label = "label"
		}
		batches := func(name string) []Batch {
			m, err := Open(filepath.Join("testdata", "records", name), o)
			require.NoError(t, err)
			all := copied(t, m.Shuffle(3), Pass{Batch: 4, Skip: 1})
			require.NoError(t, m.Close())
			return all
		}
		require.Equal(t, batches(as), batches(name), name)
	}
}

func TestArrowSets(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "data-00000-of-00002.arrow", arrowFile(t, "stream.arrow"))
	put(t, dir, "data-00001-of-00002.arrow", arrowFile(t, "table.feather"))
	put(t, dir, "cache-0123456789abcdef.arrow", arrowFile(t, "stream.arrow")) // left by Dataset.map of Hugging Face
	for _, path := range []string{dir, filepath.Join(dir, "data-*.arrow")} {
		m := openLabelled(t, path)
		require.Equal(t, 14, m.Len())
		ordered := copied(t, m, Pass{Batch: 7})
		ordered[1].Index = 0
		require.Equal(t, ordered[0], ordered[1])
		require.NoError(t, m.Close())
	}
	put(t, dir, "data-00001-of-00002.arrow", arrowFile(t, "odd.arrow"))
	_, err := Open(dir, Options{})
	require.ErrorContains(t, err, filepath.Join(dir, "data-00001-of-00002.arrow")+": its columns or their types differ")
}

// DatasetDict.save_to_disk writes a folder for each part.
func TestArrowFoldersOfParts(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "dataset_dict.json", []byte(`{"splits": ["train", "test"]}`))
	rows := func(part string) int {
		m, err := Open(dir, Options{Split: part, CSV: CSVOptions{Label: "label"}})
		require.NoError(t, err)
		require.NoError(t, m.Close())
		return m.Len()
	}
	train := filepath.Join(dir, "train")
	put(t, train, "data-00000-of-00002.arrow", arrowFile(t, "stream.arrow"))
	put(t, train, "data-00001-of-00002.arrow", arrowFile(t, "stream.arrow"))
	require.Equal(t, 14, rows(""))
	_, err := Open(dir, Options{Split: "test"})
	require.ErrorIs(t, err, ErrNoSplit)
	put(t, filepath.Join(dir, "test"), "data-00000-of-00001.arrow", arrowFile(t, "stream.arrow"))
	require.Equal(t, 14, rows("train"))
	require.Equal(t, 7, rows("test"))
	require.Equal(t, 7, rows("validation"))
	put(t, filepath.Join(dir, "unsupervised"), "data-00000-of-00001.arrow", arrowFile(t, "stream.arrow"))
	_, err = Open(dir, Options{})
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, dir+" is a folder without")
}

func TestOddArrow(t *testing.T) {
	path := filepath.Join("testdata", "records", "odd.arrow")
	bad := map[string]string{
		"null":       `record 1, column "null": found null, expected a number, text, true, false, or an array; fill it in, set missing of a rule of a schema (CSVOptions.Schema) to a value, or leave the column out (Options.Ignore)`,
		"nothing":    `record 0, column "nothing": found null`,
		"lengths":    `record 1, column "lengths": found an array of 2, expected an array of 1`,
		"holes":      `column "holes": a null in a list: fill it in, or leave the column out`,
		"nested":     `record 0, column "nested": found nested lists`,
		"date":       `record 0, column "date": found a date or time`,
		"time":       `record 0, column "time": found a date or time`,
		"words":      `record 1, column "words": found null`,
		"decimal":    `record 0, column "decimal": found decimal`,
		"half":       `record 0, column "half": found float16`,
		"image.path": `record 0, column "image.path": found null`,
		"map":        `record 0, column "map": found struct`,
	}
	all := []string{"image.bytes"}
	for column := range bad {
		all = append(all, column)
	}
	for column, want := range bad {
		ignore := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == column })
		_, err := Open(path, Options{Ignore: ignore})
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, want)
	}
	m, err := Open(path, Options{Ignore: all})
	require.NoError(t, err)
	require.Equal(t, path+": 2 samples; x float64 [], numbers float64 [], large string [], view string [], flags bool [2]",
		describe(m))
	f := fieldsOf(t, m)
	require.Equal(t, []bool{true, false, false, true}, f["flags"].Values)
	require.Equal(t, []string{"a", "b"}, f["large"].Values)
	require.Equal(t, []float64{7, 5}, f["numbers"].Values)
	require.Equal(t, []string{"short", "a text of more than 12 bytes"}, f["view"].Values)
	require.NoError(t, m.Close())

	// A list with a null is left out if it feeds no input, as if its name were in Ignore.
	m, err = Open(path, Options{CSV: CSVOptions{InputsOnly: true, Inputs: columnInputs("x", "numbers")}})
	require.NoError(t, err)
	require.Equal(t, path+": 2 samples; x float32 [2]", describe(m))
	require.ElementsMatch(t, append(slices.Clone(all), "flags", "large", "view"), m.LeftOut())
	require.NoError(t, m.Close())

	schema, err := InferSchema(path, Options{Ignore: slices.DeleteFunc(slices.Clone(all),
		func(name string) bool { return name == "time" || name == "words" })})
	require.NoError(t, err)
	require.Contains(t, string(schema), "  time:\n    type: date\n    format: '%Y-%m-%dT%H:%M:%S'\n    unit: seconds\n "+
		"   missing: error # 1 of 2 cells")
	require.Contains(t, string(schema), "  words:\n    type: text\n")

	rules := rulesOf(t, `columns:
  date: {type: date}
  time: {type: date, format: '%Y-%m-%dT%H:%M:%S', unit: seconds, missing: '1970-01-01T00:00:01'}
  words: {type: category, values: {a: 0, b: 1}, missing: a}
  'null': {type: int, missing: 5}
  image.bytes: {type: category, values: {a: 3}, missing: a}
`)
	ignore := slices.DeleteFunc(all, func(name string) bool {
		return slices.Contains([]string{"date", "time", "words", "null", "image.bytes"}, name)
	})
	m, err = Open(path, Options{Ignore: ignore, CSV: CSVOptions{Schema: rules}})
	require.NoError(t, err)
	f = fieldsOf(t, m)
	require.Equal(t, []int64{1, 2}, f["date"].Values)
	require.Equal(t, []int64{1709209800, 1}, f["time"].Values)
	require.Equal(t, []int64{1, 0}, f["words"].Values)
	require.Equal(t, []int64{1, 5}, f["null"].Values)
	require.Equal(t, []int64{3, 3}, f["image.bytes"].Values)
	require.NoError(t, m.Close())
}

// Writers may fill the bytes after the magic, leave out the mark of the end of a file, and replace a
// dictionary or write it in parts.
func TestArrowOfOtherWriters(t *testing.T) {
	file := arrowFile(t, "lz4.feather")
	footer := len(file) - 10 - int(binary.LittleEndian.Uint32(file[len(file)-10:]))
	require.Equal(t, arrowContinues+"\x00\x00\x00\x00", string(file[footer-8:footer]))
	for name, file := range map[string]struct {
		raw  []byte
		rows int
	}{
		"filled":         {slices.Insert(slices.Clone(file), 8, make([]byte, 56)...), 300},
		"without a mark": {slices.Delete(slices.Clone(file), footer-8, footer), 300},
		"dictionaries":   {wordsOfArrow(t, false), 2}, "parts": {wordsOfArrow(t, true), 2},
	} {
		m, err := Open(put(t, t.TempDir(), "a.arrow", file.raw), Options{})
		require.NoError(t, err, name)
		require.Equal(t, file.rows, m.Len(), name)
		if file.rows == 2 {
			require.Equal(t, []string{"a", "b"}, fieldsOf(t, m)["x"].Values)
		}
		require.NoError(t, m.Close())
	}
}

// wordsOfArrow returns a stream of two record batches, whose dictionary grows. If parts is true, the
// second dictionary in the stream has only the new word.
func wordsOfArrow(t testing.TB, parts bool) []byte {
	t.Helper()
	words := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	schema := arrow.NewSchema([]arrow.Field{{Name: "w", Type: words}}, nil)
	var out bytes.Buffer
	w := ipc.NewWriter(&out, ipc.WithSchema(schema), ipc.WithDictionaryDeltas(parts))
	b := arrays.NewRecordBuilder(memory.DefaultAllocator, schema)
	for _, word := range []string{"a", "b"} {
		require.NoError(t, b.Field(0).(*arrays.BinaryDictionaryBuilder).AppendString(word))
		require.NoError(t, w.Write(b.NewRecordBatch()))
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// arrowOf returns a file or a stream of one column of numbers.
func arrowOf(t testing.TB, stream bool, values []int64, options ...ipc.Option) []byte {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	b := arrays.NewRecordBuilder(memory.DefaultAllocator, schema)
	b.Field(0).(*arrays.Int64Builder).AppendValues(values, nil)
	var out bytes.Buffer
	var w interface {
		Write(arrow.RecordBatch) error
		Close() error
	}
	var err error
	if options = append(options, ipc.WithSchema(schema)); stream {
		w = ipc.NewWriter(&out, options...)
	} else {
		w, err = ipc.NewFileWriter(&out, options...)
		require.NoError(t, err)
	}
	require.NoError(t, w.Write(b.NewRecordBatch()))
	require.NoError(t, w.Close())
	return out.Bytes()
}

// arrowHeaders returns the headers of the messages in a stream.
func arrowHeaders(raw []byte) (headers [][]byte) {
	for from := 0; ; {
		n := int(binary.LittleEndian.Uint32(raw[from+4:]))
		if n == 0 {
			return headers
		}
		header := raw[from+8 : from+8+n]
		message := flatbuffers.Table{Bytes: header, Pos: flatbuffers.GetUOffsetT(header)}
		headers, from = append(headers, header), from+8+n+int(message.GetInt64Slot(10, 0))
	}
}

// arrowContent returns the table in the header of a message.
func arrowContent(header []byte) flatbuffers.Table {
	root := flatbuffers.Table{Bytes: header, Pos: flatbuffers.GetUOffsetT(header)}
	return flatbuffers.Table{Bytes: header, Pos: root.Indirect(root.Pos + flatbuffers.UOffsetT(root.Offset(messageHeader)))}
}

// hostileArrow returns small files that state sizes or positions outside the file.
func hostileArrow(t testing.TB) map[string][]byte {
	t.Helper()
	const batchNodes, batchBuffers = 6, 8 // offsets of parts of a record batch
	files := map[string][]byte{}
	// change calls change with the list in a field of a message.
	change := func(name string, message int, field flatbuffers.VOffsetT,
		change func(header []byte, list flatbuffers.UOffsetT), options ...ipc.Option) {
		raw := arrowOf(t, true, make([]int64, 1<<10), options...)
		header := arrowHeaders(raw)[message]
		content := arrowContent(header)
		change(header, content.Vector(flatbuffers.UOffsetT(content.Offset(field))))
		files[name] = raw
	}
	for name, n := range map[string]uint32{"columns": math.MaxUint32, "many columns": 1 << 20} {
		change(name, 0, schemaFields, func(header []byte, at flatbuffers.UOffsetT) {
			binary.LittleEndian.PutUint32(header[at-4:], n)
		})
	}
	for name, number := range map[string]struct {
		field flatbuffers.VOffsetT
		at    flatbuffers.UOffsetT
		n     uint64
	}{
		"values": {batchNodes, 0, 1 << 40}, "negative values": {batchNodes, 0, math.MaxUint64},
		"offset": {batchBuffers, 16, 1 << 40}, "negative offset": {batchBuffers, 16, math.MaxUint64},
		"length": {batchBuffers, 24, 1 << 62},
	} {
		change(name, 1, number.field, func(header []byte, at flatbuffers.UOffsetT) {
			binary.LittleEndian.PutUint64(header[at+number.at:], number.n)
		})
	}
	for name, codec := range map[string]ipc.Option{"lz4": ipc.WithLZ4(), "zstd": ipc.WithZstd()} {
		for _, size := range []uint64{1 << 40, 1<<63 - 1, 1 << 63, 1 << 14} {
			raw := arrowOf(t, true, make([]int64, 1<<10), codec)
			at := bytes.Index(raw, binary.LittleEndian.AppendUint64(nil, 8<<10)) // the size of the only buffer
			binary.LittleEndian.PutUint64(raw[at:], size)
			files[fmt.Sprint(name, " ", size)] = raw
		}
	}
	return files
}

func TestHostileArrow(t *testing.T) {
	for name, raw := range hostileArrow(t) {
		t.Run(name, func(t *testing.T) {
			path := put(t, t.TempDir(), "bad.arrow", raw)
			testkit.Allocates(t, 16<<20, func() {
				_, err := Open(path, Options{MaxBytes: 1 << 20})
				require.ErrorContains(t, err, path)
			})
		})
	}
}

// A record batch is refused before it is decompressed if it exceeds the limit.
func TestArrowIsBounded(t *testing.T) {
	const n = 1 << 20
	for _, codec := range []ipc.Option{ipc.WithLZ4(), ipc.WithZstd()} {
		path := put(t, t.TempDir(), "a.arrow", arrowOf(t, false, make([]int64, n), codec))
		testkit.Allocates(t, 8<<20, func() {
			_, err := Open(path, Options{MaxBytes: 2 << 20})
			require.ErrorIs(t, err, ErrTooLarge)
			require.ErrorContains(t, err, "raise Options.MaxBytes")
		})
	}
}

func TestBadArrow(t *testing.T) {
	raw, stream := arrowFile(t, "lz4.feather"), arrowFile(t, "stream.arrow")
	footer := func(raw []byte, n uint32) []byte {
		raw = slices.Clone(raw)
		binary.LittleEndian.PutUint32(raw[len(raw)-10:], n)
		return raw
	}
	empty := arrowOf(t, true, make([]int64, 4))
	header := arrowHeaders(empty)[0]
	schema := arrowContent(header)
	columns := schema.Vector(flatbuffers.UOffsetT(schema.Offset(schemaFields)))
	binary.LittleEndian.PutUint32(header[columns-4:], 0)
	for name, bad := range map[string]struct {
		raw  []byte
		want string
	}{
		"no columns":    {empty, "no column is read: it has 0, and 0 are left out"},
		"cut":           {raw[:len(raw)-1], `instead of "ARROW1"; was the download or the export interrupted?`},
		"half":          {raw[:len(raw)/2], `instead of "ARROW1"; was the download or the export interrupted?`},
		"half a stream": {stream[:len(stream)/2], "; was the download or the export interrupted?"},
		"no mark": {stream[:len(stream)-8], "the stream has no mark of its end; was the download or the export " +
			"interrupted?"},
		"half a mark": {stream[:len(stream)-4], "the stream has no mark of its end; was the download or the export " +
			"interrupted?"},
		"text":       {bytes.Repeat([]byte("text"), 20), "no Arrow file or stream"},
		"short":      {[]byte("ARROW"), "too few for an Arrow file; was the download"},
		"short file": {[]byte(arrowMagic + arrowMagic), "too few for an Arrow file; was the download"},
		"footer":     {footer(raw, math.MaxUint32), "a footer of 4294967295 bytes"},
		"feather 1":  {[]byte("FEA1 and more"), "version 1 of Feather is not supported"},
		"zipped":     {compressed(t, raw), "no Arrow file or stream"},
	} {
		t.Run(name, func(t *testing.T) {
			path := put(t, t.TempDir(), "bad.feather", bad.raw)
			testkit.Allocates(t, 16<<20, func() {
				_, err := Open(path, Options{})
				require.ErrorContains(t, err, path)
				require.ErrorContains(t, err, bad.want)
			})
		})
	}
}

func FuzzArrow(f *testing.F) {
	for _, name := range []string{"table.feather", "stream.arrow", "lz4.feather", "zstd.feather", "odd.arrow"} {
		f.Add(arrowFile(f, name))
	}
	for _, raw := range hostileArrow(f) {
		if len(raw) < 64<<10 {
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) { readHostile(t, "f.arrow", raw, 64<<20) })
}
