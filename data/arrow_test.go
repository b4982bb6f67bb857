package data

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	arrays "github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/stretchr/testify/require"
)

// arrowFile returns a file that pandas or pyarrow wrote (scripts/records.py).
func arrowFile(t testing.TB, name string) []byte {
	t.Helper()
	return contentOf(t, filepath.Join("testdata", "records", name))
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
			m := opened(t, filepath.Join("testdata", "records", name), o)
			all := copied(t, m.Shuffle(3), Pass{Batch: 4, Skip: 1})
			require.NoError(t, m.Close())
			return all
		}
		require.Equal(t, batches(as), batches(name), name)
	}
}

// DatasetDict.save_to_disk writes a folder for each part.
func TestArrowFoldersOfParts(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "dataset_dict.json", []byte(`{"splits": ["train", "test"]}`))
	rows := func(part string) int {
		m := opened(t, dir, Options{Split: part, CSV: CSVOptions{Label: "label"}})
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
	m := opened(t, path, Options{Ignore: all})
	require.Equal(t, path+": 2 samples; x float64 [], numbers float64 [], large string [], view string [], flags bool [2]",
		describe(m))
	f := fieldsOf(t, m)
	require.Equal(t, []bool{true, false, false, true}, f["flags"].Values)
	require.Equal(t, []string{"a", "b"}, f["large"].Values)
	require.Equal(t, []float64{7, 5}, f["numbers"].Values)
	require.Equal(t, []string{"short", "a text of more than 12 bytes"}, f["view"].Values)

	// A list with a null is left out if it feeds no input, as if its name were in Ignore.
	m = opened(t, path, Options{CSV: CSVOptions{InputsOnly: true, Inputs: columnInputs("x", "numbers")}})
	require.Equal(t, path+": 2 samples; x float32 [2]", describe(m))
	require.ElementsMatch(t, append(slices.Clone(all), "flags", "large", "view"), m.LeftOut())

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
	m = opened(t, path, Options{Ignore: ignore, CSV: CSVOptions{Schema: rules}})
	f = fieldsOf(t, m)
	require.Equal(t, []int64{1, 2}, f["date"].Values)
	require.Equal(t, []int64{1709209800, 1}, f["time"].Values)
	require.Equal(t, []int64{1, 0}, f["words"].Values)
	require.Equal(t, []int64{1, 5}, f["null"].Values)
	require.Equal(t, []int64{3, 3}, f["image.bytes"].Values)
}

// Writers may replace a dictionary, or write it in parts.
func TestArrowOfOtherWriters(t *testing.T) {
	for _, raw := range [][]byte{wordsOfArrow(t, false), wordsOfArrow(t, true)} {
		m := opened(t, put(t, t.TempDir(), "a.arrow", raw), Options{})
		require.Equal(t, []string{"a", "b"}, fieldsOf(t, m)["x"].Values)
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

// A file that is damaged or of another format is an error with its name.
func TestBadColumnFiles(t *testing.T) {
	table, file, stream := arrowFile(t, "table.parquet"), arrowFile(t, "lz4.feather"), arrowFile(t, "stream.arrow")
	for name, raw := range map[string][]byte{
		"cut.parquet": table[:len(table)-1], "half.parquet": table[:len(table)/2], "short.parquet": []byte("PAR1"),
		"zipped.parquet": compressed(t, table), "cut.feather": file[:len(file)-1], "half.feather": file[:len(file)/2],
		"half.arrow": stream[:len(stream)/2], "no end.arrow": stream[:len(stream)-8], "short.arrow": []byte("ARROW"),
		"text.arrow": bytes.Repeat([]byte("text"), 20), "first.feather": []byte("FEA1 and more"),
		"zipped.feather": compressed(t, file),
	} {
		_, err := Open(put(t, t.TempDir(), name, raw), Options{})
		require.ErrorIs(t, err, ErrFormat, name)
		require.ErrorContains(t, err, name)
	}
}

func FuzzArrow(f *testing.F) {
	for _, name := range []string{"table.feather", "stream.arrow", "lz4.feather", "zstd.feather", "odd.arrow"} {
		f.Add(arrowFile(f, name))
	}
	f.Fuzz(func(t *testing.T, raw []byte) { readHostile(t, "f.arrow", raw, 64<<20) })
}
