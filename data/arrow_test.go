package data

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/endian"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/bounded"
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
		"table.feather": "table.parquet", "stream.arrow": "table.parquet", "lz4.feather": "encodings.parquet", "zstd.feather": "encodings.parquet",
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
	scratch := t.TempDir()
	t.Setenv("TMPDIR", scratch)
	dir := t.TempDir()
	put(t, dir, "data-00000-of-00002.arrow", arrowFile(t, "stream.arrow"))
	put(t, dir, "data-00001-of-00002.arrow", arrowFile(t, "table.feather"))
	for _, path := range []string{dir, filepath.Join(dir, "data-00001-of-00002.arrow"), filepath.Join(dir, "*.arrow")} {
		m := openLabelled(t, path)
		require.Equal(t, 14, m.Len())
		ordered := copied(t, m, Pass{Batch: 7})
		ordered[1].Index = 0
		require.Equal(t, ordered[0], ordered[1])
		require.NoError(t, m.Close())
	}
	left, err := os.ReadDir(scratch)
	require.NoError(t, err)
	require.Empty(t, left)
	put(t, dir, "data-00001-of-00002.arrow", arrowFile(t, "odd.arrow"))
	_, err = Open(dir, Options{})
	require.ErrorContains(t, err, filepath.Join(dir, "data-00001-of-00002.arrow")+": its columns or their types differ")
}

// Files that Dataset.map of Hugging Face's datasets left in a folder of save_to_disk are not read.
func TestArrowFilesOfAState(t *testing.T) {
	dir, stream := t.TempDir(), arrowFile(t, "stream.arrow")
	const cache = "cache-0123456789abcdef.arrow"
	put(t, dir, "data-00000-of-00001.arrow", stream)
	put(t, dir, cache, stream)
	_, err := Open(dir, Options{})
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, filepath.Join(dir, cache)+": Dataset.map")
	m := openLabelled(t, filepath.Join(dir, cache))
	require.Equal(t, 7, m.Len())
	require.NoError(t, m.Close())

	put(t, dir, "data-00000-of-00002.arrow", stream)
	put(t, dir, "data-00001-of-00002.arrow", arrowFile(t, "table.feather"))
	for state, rows := range map[string]int{
		`{"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": null, "_indices_data_files": null}`:                     7,
		`{"_data_files": [{"filename": "data-00001-of-00002.arrow"}, {"filename": "` + cache + `"}]}`:                                   14,
		`{"_data_files": [{"filename": "data-00000-of-00002.arrow"}, {"filename": "data-00001-of-00002.arrow"}], "_format_kwargs": {}}`: 14,
	} {
		put(t, dir, stateFile, []byte(state))
		m := openLabelled(t, dir)
		require.Equal(t, rows, m.Len(), state)
		require.NoError(t, m.Close())
	}
	for state, want := range map[string]string{
		`{"_data_files": [{"filename": "data-00000-of-00003.arrow"}]}`:    "data-00000-of-00003.arrow: the file is missing, and state.json lists it; was the download",
		`{"_data_files": [{"filename": "../data-00000-of-00001.arrow"}]}`: `state.json: it lists "../data-00000-of-00001.arrow", expected the name of a file`,
		`{"_data_files": [{}]}`:                                             `state.json: it lists "", expected`,
		`{"_data_files": [{"filename": ".."}]}`:                             "state.json lists it, and its format is not supported; expected Arrow files",
		`{"_data_files": []}`:                                               "state.json: it lists no files",
		`{"_data_files": [{"filename": "data-000`:                           "state.json: not a state file of Dataset.save_to_disk",
		`{"_data_files": null, "_indices_data_files": [{"filename": "i"}]}`: "a dataset whose row indices are in a separate file is not supported",
		`{}`:                                 cache + ": Dataset.map",
		strings.Repeat(" ", maxState) + `{}`: "state.json: the file is too large",
		strings.Repeat(`{"_data_files":[`, maxState/16-1):                   "state.json: not a state file of Dataset.save_to_disk",
		`{"_data_files": [{}` + strings.Repeat(",{}", maxState/3-10) + "]}": `state.json: it lists ""`,
	} {
		put(t, dir, stateFile, []byte(state))
		bounded.Allocates(t, 32<<20, func() { _, err = Open(dir, Options{}) })
		require.ErrorContains(t, err, want)
	}
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
	require.ErrorContains(t, err, dir+": the files of records are in its folders: use one of them, such as "+filepath.Join(dir, "test"))
}

func TestOddArrow(t *testing.T) {
	path := filepath.Join("testdata", "records", "odd.arrow")
	bad := map[string]string{
		"null":       `record 1, column "null": found null, expected a value; fill it in, set missing of a rule of a schema (CSVOptions.Schema) to a value, or leave the column out (Options.Ignore)`,
		"nothing":    `record 0, column "nothing": found null, expected numbers`,
		"lengths":    `record 1, column "lengths": found int64 [2], expected int64 [1]`,
		"holes":      `record 0, column "holes": found null, expected a value; fill it in, or leave the column out (Options.Ignore)`,
		"nested":     `record 0, column "nested": found nested lists`,
		"date":       `record 0, column "date": found date32`,
		"time":       `record 0, column "time": found timestamp`,
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
	require.Equal(t, path+": 2 samples; flags bool [2], large string [], numbers float64 [], view string [], x float64 []", describe(m))
	f := fieldsOf(t, m)
	require.Equal(t, []bool{true, false, false, true}, f["flags"].Values)
	require.Equal(t, []string{"a", "b"}, f["large"].Values)
	require.Equal(t, []float64{7, 5}, f["numbers"].Values)
	require.Equal(t, []string{"short", "a text of more than 12 bytes"}, f["view"].Values)
	require.NoError(t, m.Close())

	// A list with a null is left out if it is not one of Features, as if its name were in Ignore.
	m, err = Open(path, Options{CSV: CSVOptions{Input: "dense", Features: []string{"x", "numbers"}}})
	require.NoError(t, err)
	require.Equal(t, path+": 2 samples; x float32 [2]", describe(m))
	require.ElementsMatch(t, append(slices.Clone(all), "flags", "large", "view"), m.LeftOut())
	require.NoError(t, m.Close())

	schema, err := InferSchema(path, Options{Ignore: slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name == "time" || name == "words" })})
	require.NoError(t, err)
	require.Contains(t, string(schema), "  time:\n    type: date\n    format: '%Y-%m-%dT%H:%M:%S'\n    unit: seconds\n    missing: error # 1 of 2 cells")
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
// dictionary. A dictionary that is written in parts is refused.
func TestArrowOfOtherWriters(t *testing.T) {
	file := arrowFile(t, "lz4.feather")
	footer := len(file) - 10 - int(binary.LittleEndian.Uint32(file[len(file)-10:]))
	require.Equal(t, arrowContinues+"\x00\x00\x00\x00", string(file[footer-8:footer]))
	for name, file := range map[string]struct {
		raw  []byte
		rows int
	}{
		"filled": {slices.Insert(slices.Clone(file), 8, make([]byte, 56)...), 300}, "without a mark": {slices.Delete(slices.Clone(file), footer-8, footer), 300}, "dictionaries": {wordsOfArrow(t, false), 2},
	} {
		m, err := Open(put(t, t.TempDir(), "a.arrow", file.raw), Options{})
		require.NoError(t, err, name)
		require.Equal(t, file.rows, m.Len(), name)
		if name == "dictionaries" {
			require.Equal(t, []string{"a", "b"}, fieldsOf(t, m)["x"].Values)
		}
		require.NoError(t, m.Close())
	}
	_, err := Open(put(t, t.TempDir(), "a.arrow", wordsOfArrow(t, true)), Options{})
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "a dictionary that is written in parts is not supported")
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

// The numbers of an ordered category follow the order in the file instead of the alphabet.
func TestInferSchemaOfOrderedCategories(t *testing.T) {
	for _, c := range []struct {
		ordered bool
		next    string // the categories of the next record batch, in their order
		want    string
	}{
		{false, "SML", "{L: 0, M: 1, S: 2}"}, {true, "SML", "{L: 2, M: 1, S: 0}"},
		{true, "SMLX", "{L: 2, M: 1, S: 0, X: 3}"}, {true, "LMS", "{L: 0, M: 1, S: 2}"},
	} {
		size := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String, Ordered: c.ordered}
		schema := arrow.NewSchema([]arrow.Field{{Name: "size", Type: size}}, nil)
		var out bytes.Buffer
		w := ipc.NewWriter(&out, ipc.WithSchema(schema))
		for _, values := range []string{"SMLSML", c.next + c.next} {
			b := arrays.NewRecordBuilder(memory.DefaultAllocator, schema)
			for _, value := range strings.Split(values, "") {
				require.NoError(t, b.Field(0).(*arrays.BinaryDictionaryBuilder).AppendString(value))
			}
			require.NoError(t, w.Write(b.NewRecordBatch()))
		}
		require.NoError(t, w.Close())
		inferred, err := InferSchema(put(t, t.TempDir(), "t.arrow", out.Bytes()), Options{})
		require.NoError(t, err)
		require.Equal(t, "columns:\n  size:\n    type: category\n    values: "+c.want+"\n", string(inferred))
	}
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

// arrowParts returns the positions of the messages in a stream, and the headers of the messages.
func arrowParts(raw []byte) (at []int, headers [][]byte) {
	for from := 0; len(raw)-from >= 8; {
		n := int(binary.LittleEndian.Uint32(raw[from+4:]))
		if n == 0 {
			break
		}
		header := raw[from+8 : from+8+n]
		at, headers = append(at, from), append(headers, header)
		message := rootTable(header)
		from += 8 + n + int(message.GetInt64Slot(messageBody, 0))
	}
	return at, headers
}

// hostileArrow returns small files with sizes that would take much memory, or with positions
// outside the file.
func hostileArrow(t testing.TB) map[string][]byte {
	t.Helper()
	numbers := make([]int64, 1<<10)
	files := map[string][]byte{}
	change := func(name string, message int, options []ipc.Option, change func(header []byte, content flatbuffers.Table)) {
		raw := arrowOf(t, true, numbers, options...)
		_, headers := arrowParts(raw)
		root := rootTable(headers[message])
		content, _ := arrowTable(root, messageHeader)
		change(headers[message], content)
		files[name] = raw
	}
	vector := func(name string, message int, field flatbuffers.VOffsetT, n uint32) {
		change(name, message, nil, func(header []byte, content flatbuffers.Table) {
			at, _ := arrowVector(content, field)
			binary.LittleEndian.PutUint32(header[at-4:], n)
		})
	}
	vector("columns", 0, schemaFields, math.MaxUint32)
	vector("many columns", 0, schemaFields, 1<<20)
	vector("nodes", 1, batchNodes, math.MaxUint32)
	vector("buffers", 1, batchBuffers, math.MaxUint32)
	number := func(name string, field flatbuffers.VOffsetT, at int, n uint64, options ...ipc.Option) {
		change(name, 1, options, func(header []byte, content flatbuffers.Table) {
			from, _ := arrowVector(content, field)
			binary.LittleEndian.PutUint64(header[from+at:], n)
		})
	}
	number("values", batchNodes, 0, 1<<40)
	number("negative values", batchNodes, 0, math.MaxUint64)
	number("offset", batchBuffers, 16, 1<<40)
	number("negative offset", batchBuffers, 16, math.MaxUint64)
	number("length", batchBuffers, 24, 1<<62)
	for i, codec := range []ipc.Option{ipc.WithLZ4(), ipc.WithZstd()} {
		for _, size := range []uint64{1 << 40, 1<<63 - 1, 1 << 63, 8, 1 << 14} {
			raw := arrowOf(t, true, numbers, codec)
			at, headers := arrowParts(raw)
			body := raw[at[1]+8+len(headers[1]):]
			root := rootTable(headers[1])
			content, _ := arrowTable(root, messageHeader)
			buffers, _ := arrowVector(content, batchBuffers)
			from := binary.LittleEndian.Uint64(headers[1][buffers+16:])
			binary.LittleEndian.PutUint64(body[from:], size)
			files[fmt.Sprint("decompressed ", i, " ", size)] = raw
		}
	}
	change("body", 1, nil, func(header []byte, _ flatbuffers.Table) {
		root := rootTable(header)
		root.MutateInt64Slot(messageBody, 1<<40)
	})
	header := arrowOf(t, true, numbers)
	binary.LittleEndian.PutUint32(header[4:], math.MaxInt32)
	files["header"] = header
	files["shared text"] = sharedArrow()
	files["overlap"] = overlappingArrow(t)
	return files
}

// overlappingArrow returns a stream with a record batch whose type and one of whose buffers overlap
// in the header.
func overlappingArrow(t testing.TB) []byte {
	raw := arrowOf(t, true, make([]int64, 1<<10), ipc.WithLZ4())
	at, headers := arrowParts(raw)
	header := headers[1]
	root := rootTable(header)
	content, _ := arrowTable(root, messageHeader)
	buffers, _ := arrowVector(content, batchBuffers)
	binary.LittleEndian.PutUint64(header[buffers+16:], arrowBatch)
	binary.LittleEndian.PutUint64(header[buffers+24:], 16)
	copy(raw[at[1]+8+len(header)+arrowBatch:], bytes.Repeat([]byte{0xff}, 8)) // the buffer is not compressed
	fields := int(root.Pos) - int(root.GetSOffsetT(root.Pos))
	binary.LittleEndian.PutUint16(header[fields+messageType:], uint16(buffers+16-int(root.Pos)))
	return raw
}

// sharedArrow returns a schema whose metadata refers to one text many times.
func sharedArrow() []byte {
	const pairs, text = 4 << 10, 1 << 18
	b := flatbuffers.NewBuilder(0)
	shared := b.CreateByteString(make([]byte, text))
	b.StartObject(2)
	b.PrependUOffsetTSlot(0, shared, 0)
	b.PrependUOffsetTSlot(1, shared, 0)
	pair := b.EndObject()
	b.StartVector(4, pairs, 4)
	for range pairs {
		b.PrependUOffsetT(pair)
	}
	list := b.EndVector(pairs)
	b.StartVector(4, 0, 4)
	fields := b.EndVector(0)
	b.StartObject(4)
	b.PrependUOffsetTSlot(1, fields, 0)
	b.PrependUOffsetTSlot(2, list, 0)
	schema := b.EndObject()
	b.StartObject(5)
	b.PrependInt16Slot(0, 4, 0)
	b.PrependByteSlot(1, arrowSchema, 0)
	b.PrependUOffsetTSlot(2, schema, 0)
	b.Finish(b.EndObject())
	header := b.FinishedBytes()
	return append(binary.LittleEndian.AppendUint32([]byte(arrowContinues), uint32(len(header))), header...)
}

func TestHostileArrow(t *testing.T) {
	for name, raw := range hostileArrow(t) {
		t.Run(name, func(t *testing.T) {
			path := put(t, t.TempDir(), "bad.arrow", raw)
			var err error
			bounded.Allocates(t, 16<<20, func() { _, err = Open(path, Options{MaxBytes: 1 << 20}) })
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, "the message at byte")
			require.Equal(t, name == "overlap", strings.HasSuffix(err.Error(), "parts of its header overlap: malformed data"))
		})
	}
}

// A record batch is refused before it is decompressed if it exceeds the limit.
func TestArrowIsBounded(t *testing.T) {
	const n = 1 << 20
	for _, codec := range []ipc.Option{ipc.WithLZ4(), ipc.WithZstd()} {
		path := put(t, t.TempDir(), "a.arrow", arrowOf(t, false, make([]int64, n), codec))
		bounded.Allocates(t, 8<<20, func() {
			_, err := Open(path, Options{MaxBytes: 2 << 20})
			require.ErrorIs(t, err, ErrTooLarge)
			require.ErrorContains(t, err, "write smaller record batches, or raise Options.MaxBytes")
		})
	}
}

func bigEndianArrow(t testing.TB) []byte {
	var out bytes.Buffer
	w := ipc.NewWriter(&out, ipc.WithSchema(arrow.NewSchemaWithEndian(nil, nil, endian.BigEndian)))
	require.NoError(t, w.Close())
	return out.Bytes()
}

// arrowEndsEarly returns a file whose end mark precedes some of the record batches that the footer
// lists.
func arrowEndsEarly(t testing.TB) []byte {
	raw := slices.Clone(arrowFile(t, "lz4.feather"))
	const magic = 8
	at, _ := arrowParts(raw[magic:])
	binary.LittleEndian.PutUint32(raw[magic+at[2]+4:], 0)
	return raw
}

// The next record batch reuses the memory of the one before it.
func TestArrowBatchesUseMemoryAgain(t *testing.T) {
	const batches, rows, width = 40, 8, 16 << 10
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.FixedSizeListOf(width, arrow.PrimitiveTypes.Int64)}}, nil)
	b := arrays.NewRecordBuilder(memory.DefaultAllocator, schema)
	lists := b.Field(0).(*arrays.FixedSizeListBuilder)
	for range rows {
		lists.Append(true)
		lists.ValueBuilder().(*arrays.Int64Builder).AppendValues(make([]int64, width), nil)
	}
	var out bytes.Buffer
	w := ipc.NewWriter(&out, ipc.WithSchema(schema), ipc.WithZstd())
	batch := b.NewRecordBatch()
	for range batches {
		require.NoError(t, w.Write(batch))
	}
	require.NoError(t, w.Close())
	path := put(t, t.TempDir(), "a.arrow", out.Bytes())
	bounded.Allocates(t, batches*rows*width*8*3/4, func() {
		m, err := Open(path, Options{})
		require.NoError(t, err)
		require.Equal(t, batches*rows, m.Len())
		require.NoError(t, m.Close())
	})
}

func TestBadArrow(t *testing.T) {
	raw, stream := arrowFile(t, "lz4.feather"), arrowFile(t, "stream.arrow")
	footer := func(raw []byte, n uint32) []byte {
		raw = slices.Clone(raw)
		binary.LittleEndian.PutUint32(raw[len(raw)-10:], n)
		return raw
	}
	for name, bad := range map[string]struct {
		raw  []byte
		want string
	}{
		"cut":           {raw[:len(raw)-1], `instead of "ARROW1"; was the download or the export interrupted?`},
		"half":          {raw[:len(raw)/2], `instead of "ARROW1"; was the download or the export interrupted?`},
		"half a stream": {stream[:len(stream)/2], "; was the download or the export interrupted?"},
		"no mark":       {stream[:len(stream)-8], "the stream has no mark of its end; was the download or the export interrupted?"},
		"half a mark":   {stream[:len(stream)-4], "it has 4 bytes; was the download or the export interrupted?"},
		"text":          {bytes.Repeat([]byte("text"), 20), "no Arrow file or stream"},
		"short":         {[]byte("ARROW"), "too few for an Arrow file; was the download"},
		"short file":    {[]byte(arrowMagic + arrowMagic), "too few for an Arrow file; was the download"},
		"footer":        {footer(raw, math.MaxUint32), "a footer of 4294967295 bytes"},
		"small footer":  {footer(raw, 3), "malformed"},
		"feather 1":     {[]byte("FEA1 and more"), "version 1 of Feather is not supported"},
		"big-endian":    {bigEndianArrow(t), "big-endian order are not supported"},
		"zipped":        {compressed(t, raw), "compressed by gzip"},
		"ends early":    {arrowEndsEarly(t), "1 record batches, but the footer lists 2"},
	} {
		t.Run(name, func(t *testing.T) {
			path := put(t, t.TempDir(), "bad.feather", bad.raw)
			bounded.Allocates(t, 16<<20, func() {
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
