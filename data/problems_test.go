package data

import (
	"archive/zip"
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array/arreflect"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/stretchr/testify/require"
)

// parquetOf returns a Parquet file of rows.
func parquetOf[T any](t testing.TB, rows ...T) []byte {
	t.Helper()
	record, err := arreflect.RecordFromSlice(rows, memory.DefaultAllocator)
	require.NoError(t, err)
	return parquetOfBatches(t, nil, record)
}

// parquetOfBatches returns a Parquet file with a row group for each record batch.
func parquetOfBatches(t testing.TB, options []parquet.WriterProperty, batches ...arrow.RecordBatch) []byte {
	t.Helper()
	var out bytes.Buffer
	stored := pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema())
	w, err := pqarrow.NewFileWriter(batches[0].Schema(), &out, parquet.NewWriterProperties(options...), stored)
	require.NoError(t, err)
	for _, batch := range batches {
		require.NoError(t, w.Write(batch))
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// The errors of all formats name several problems of a file.
func TestProblems(t *testing.T) {
	type row struct {
		A *int64 `arrow:"a"`
		B string `arrow:"b"`
	}
	type pair struct {
		A *int64 `arrow:"a"`
		B *int64 `arrow:"b"`
	}
	manyLengths := [][]byte{example(map[string]any{"a": []float32{1}})}
	for range 20 {
		manyLengths = append(manyLengths, example(map[string]any{"a": []float32{1, 2}, "b": []float32{1}}))
	}
	one := int64(1)
	nan := math.NaN()
	made := dataset(t, "made", Field{"x", Array{[]int{40, 2},
		append(make([]float64, 70), nan, nan, 0, nan, 0, 0, 0, 0, nan, 0)}})
	open := func(name string, raw []byte, o Options) error {
		_, err := Open(put(t, t.TempDir(), name, raw), o)
		return err
	}
	labelled := Options{CSV: CSVOptions{Label: "b", Classes: []string{"c"}}}
	for _, c := range []struct {
		name string
		err  error
		want []string
	}{
		{"JSON lines", open("t.jsonl", []byte("{\"a\": null}\n[1]\n{\"a\": 1, \"b\": \"x\"}\n{\"a\": 2}\n{\"a\": 3, "+
			"\"b\": \"y\", \"a\": 4}\n{\"a\": \"z\", \"b\": \"y\"}\n"), Options{}), []string{
			": 5 problems:",
			`line 1, column "a": found null, expected a number, text, true, false, or an array; fill it in, set missing of a rule`, `line 2: found "[1]"`,
			`line 3, column "b": found an unknown name`, `line 5, column "a": found a repeated name`,
			`line 6, column "b": found an unknown name`,
		}},
		{"names of JSON lines", open("t.jsonl", []byte("{\"a\": 1, \"b\": 2, \"c\": 3}\n"+strings.Repeat("{\"a\": \"x\", "+
			"\"a\": 1}\n{\"a\": 1, \"b\": 2}\n", 9)), Options{}), []string{
			": the first problems:", `line 2, column "a": found a repeated name`, `line 3, column "c": found no value`,
			`line 4, column "a": found a repeated name`, `line 5, column "c": found no value`,
		}},
		{"labels of JSON lines", open("t.jsonl", []byte("{\"a\": 1, \"b\": \"c\"}\n{\"a\": 1, \"b\": \"d\"}\n{\"a\": 1, "+
			"\"b\": \"e\"}\n"), labelled), []string{
			": 2 problems:", `line 2, column "b": found "d", expected one of the 1 classes`, `line 3, column "b": found "e"`,
		}},
		{"Parquet", open("t.parquet", parquetOf(t, row{nil, "c"}, row{&one, "c"}, row{nil, "c"}), labelled), []string{
			": 2 problems:", `record 0, column "a": found null`, `record 2, column "a": found null`,
		}},
		{"labels of Parquet", open("t.parquet", parquetOf(t, row{&one, "d"}, row{&one, "c"}, row{&one, "e"}), labelled),
			[]string{
				": 2 problems:", `record 0, column "b": found "d"`, `record 2, column "b": found "e"`,
			}},
		{"many records", open("t.parquet", parquetOf(t, make([]pair, 30)...), Options{}), []string{
			": the first problems:", `record 0, column "a": found null`, `record 0, column "b": found null`,
			`record 1, column "a": found null`, `record 1, column "b": found null`,
		}},
		{"lengths of records", open("t.tfrecord", recordsOf(manyLengths...), Options{}), []string{
			": the first problems:", `record 1, column "b": found a value that the first record lacks`,
			`record 2, column "b": found a value that the first record lacks`,
		}},
		{"npz", open("t.npz", archive(t, member{"a.npy", zip.Store, []byte("no")},
			member{"x.npy", zip.Store, rawNPY(dictOf("|u1", "(1,)"), 1)},
			member{"y.npy", zip.Store, rawNPY(dictOf("|u1", "(2,)"), 7, 8)}), Options{}), []string{": 2 problems:", `array "a"`, `field "y" has 2 samples`}},
		{"values", Check(made, "", finite), []string{
			": 3 problems:", "sample 35, column x[0]: found NaN", "sample 36, column x[1]: found NaN",
			"sample 39, column x[0]: found NaN",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Error(t, c.err)
			lines := strings.Split(c.err.Error(), "\n")
			require.GreaterOrEqual(t, len(lines), len(c.want), "%v", c.err)
			for i, want := range c.want {
				require.Contains(t, lines[i], want)
			}
		})
	}
	for n, want := range map[int]string{0: "", 9: "9 problems", 10: "the first problems", 12: "the first problems"} {
		found := problems{source: "t"}
		for i := range n {
			require.Equal(t, i < maxProblems-1, found.add(fmt.Errorf("%d", i)))
		}
		if err := found.err(); n > 0 {
			require.ErrorContains(t, err, "t: "+want+":\n0\n")
			require.Equal(t, min(n, maxProblems), strings.Count(err.Error(), "\n"))
		} else {
			require.NoError(t, err)
		}
	}
}
