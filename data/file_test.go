package data

import (
	"bytes"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	classes := filepath.Join(dir, "flowers")
	for _, d := range []string{"flowers/rose", "flowers/tulip", "empty", "mixed/train", "pictures/cat"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	for name, text := range map[string]string{
		"a.tfrecord": "x", "a.parquet": "x", "a.arrow": "x", "a.tfrecord.gz": "x", "a.h5": "x", "a.xyz": "x",
		"noextension":                "x",
		"train-images-idx3-ubyte.gz": "x", "mixed/notes.txt": "x", "pictures/cat/a.jpg": "x",
		"empty.npz": "", "empty.csv": "", "empty.npy": "",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for path, want := range map[string]struct {
		kind error
		says string
	}{
		"missing.npz":                {fs.ErrNotExist, "check the path"},
		"builtin:mnist":              {fs.ErrNotExist, "the only one is digits"},
		"builtin:../digits":          {fs.ErrNotExist, "the only one is digits"},
		"a.tfrecord":                 {ErrFormat, "record 0: found 1 bytes"},
		"a.tfrecord.gz":              {ErrUnsupported, `the extension ".tfrecord.gz"`},
		"a.parquet":                  {ErrFormat, "damaged or truncated"},
		"a.arrow":                    {ErrFormat, "damaged or truncated"},
		"a.h5":                       {ErrUnsupported, "numpy.savez"},
		"a.xyz":                      {ErrUnsupported, `the extension ".xyz" is not supported; supported are .npz`},
		"noextension":                {ErrUnsupported, `extension ""`},
		"train-images-idx3-ubyte.gz": {ErrUnsupported, "a folder in MNIST's layout"},
		"empty.npz":                  {ErrFormat, "is empty"},
		"empty.csv":                  {ErrFormat, "is empty"},
		"empty.npy":                  {ErrFormat, "is empty"},
		"flowers":                    {ErrUnsupported, "or class folders of images"},
		"pictures":                   {errOption, "ImageOptions.Size: "},
		"pictures/cat/a.jpg":         {ErrUnsupported, "a folder of images with a sub-folder per class"},
		"mixed":                      {ErrUnsupported, "without MNIST's files"},
		"empty":                      {ErrUnsupported, "without MNIST's files"},
	} {
		if !strings.HasPrefix(path, "builtin:") {
			path = filepath.Join(dir, path)
		}
		_, err := Open(path, Options{})
		require.ErrorIs(t, err, want.kind, path)
		require.ErrorContains(t, err, want.says)
	}
	for _, open := range []func(string) (*InMemory, error){
		func(path string) (*InMemory, error) { return openNPZ(path, Options{}) },
		func(path string) (*InMemory, error) { return openText(path, Options{}) },
		func(p string) (*InMemory, error) { return openOneNPY(p, Options{}) },
	} {
		_, err := open(classes)
		require.ErrorContains(t, err, classes+": is a directory")
		_, err = open(filepath.Join(dir, "missing"))
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = open(os.DevNull)
		require.ErrorContains(t, err, "not a regular file")
	}
}

func TestOpenWithoutPermission(t *testing.T) {
	path := write(t, "a.csv", []byte("1,2\n"))
	require.NoError(t, os.Chmod(path, 0))
	if f, err := os.Open(path); err == nil {
		f.Close()
		t.Skip("this user may read every file; run the tests as another user")
	}
	_, err := Open(path, Options{})
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorContains(t, err, "the right to read it")
}

func TestBuiltin(t *testing.T) {
	train, test, err := Builtin("digits")
	require.NoError(t, err)
	require.Equal(t, "builtin:digits-train: 1438 samples; x uint8 [64], y int64 []", describe(train))
	require.Equal(t, "builtin:digits-test: 359 samples; x uint8 [64], y int64 []", describe(test))
	for _, ds := range []*InMemory{train, test} {
		require.NoError(t, Check(ds, "y", Values{Classes: 10}))
		require.ErrorIs(t, Check(ds, "y", Values{Classes: 9}), ErrLabel)
		require.NoError(t, Check(ds, "x", Values{Classes: 17}), "pixels are 0 to 16")
	}
	opened := opened(t, "builtin:digits", Options{Split: "test"})
	require.Equal(t, test.Len(), opened.Len())
	_, _, err = Builtin("mnist")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestCheckFinite(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(-1)
	x := make([]float64, 40*6)
	m := dataset(t, "set", Field{"x", Array{[]int{40, 2, 3}, x}}, Field{"y", Array{[]int{40}, make([]int8, 40)}})
	require.NoError(t, Check(m, "", finite))
	x[37*6+5] = inf
	for _, ds := range []*InMemory{m, m.Shuffle(1)} {
		err := Check(ds, "", finite)
		require.ErrorIs(t, err, ErrValue)
		require.EqualError(t, err, "set: sample 37, column x[1,2]: found -Inf, expected a finite number; fill the value "+
			"in, or leave the sample out")
	}
	z := dataset(t, "set", Field{"z", Array{[]int{2}, []float32{1, float32(nan)}}})
	require.ErrorContains(t, Check(z, "", finite), "sample 1, column z: found NaN")
	y, err := m.selected("y")
	require.NoError(t, err)
	require.NoError(t, Check(y, "", finite))
}

func TestCheck(t *testing.T) {
	const least, most = math.MinInt64, math.MaxInt64
	classes, probabilities := Values{Classes: 3}, Values{Probabilities: true}
	whole := func(low, high int64) Values { return Values{Integers: &[2]int64{low, high}} }
	for _, c := range []struct {
		want   Values
		values any
		found  string // in the second sample; empty means valid
		says   string
	}{
		{classes, []int8{0, 2}, "", ""}, {classes, []int8{0, -1}, "-1", ""}, {classes, []int16{0, 3}, "3", ""},
		{classes, []int32{0, 3}, "3", ""}, {classes, []int64{0, least}, "-9223372036854775808", ""},
		{classes, []uint8{0, 3}, "3", ""}, {classes, []uint16{0, 3}, "3", ""}, {classes, []uint32{0, 3}, "3", ""},
		{classes, []uint64{0, math.MaxUint64}, "18446744073709551615", ""}, {classes, []uint64{0, 2}, "", ""},
		{classes, []float32{0, 2}, "", ""}, {classes, []float32{0, 1.5}, "1.5", "expected a class from 0 to 2"},
		{classes, []float32{0, float32(math.NaN())}, "NaN", ""}, {classes, []float64{0, 2}, "", ""},
		{classes, []float64{0, 1e300}, "1e+300", ""}, {classes, []bool{false, true}, "", ""},
		{probabilities, []int64{0, 1}, "", ""}, {probabilities, []int64{0, 2}, "2", ""}, {probabilities, []int8{0, -1}, "-1", ""},
		{probabilities, []bool{true, false}, "", ""}, {probabilities, []float32{0, 0.5}, "", ""},
		{probabilities, []float32{1, 1.5}, "1.5", ""}, {probabilities, []float64{0, -1e-300}, "-1e-300", ""},
		{probabilities, []float64{0, math.NaN()}, "NaN", ""},
		{whole(math.MinInt32, math.MaxInt32), []int64{math.MinInt32, math.MaxInt32}, "", ""},
		{whole(math.MinInt32, math.MaxInt32), []int64{0, math.MaxInt32 + 1}, "2147483648", "an integer from -2147483648 to 2147483647"},
		{whole(0, most), []int64{0, -1}, "-1", "an integer from 0 to 9223372036854775807"},
		{whole(least, most), []float32{-1, 2}, "", ""},
		{whole(least, most), []float32{-1, 2.5}, "2.5", "a signed integer of 64 bits (of floats, below 2^53)"},
		{whole(least, most), []float64{1 - 1<<53, 1 << 53}, "9.007199254740992e+15", "a signed integer of 64 bits"},
		{whole(least, 5), []int8{5, 6}, "6", "an integer from -9223372036854775808 to 5"},
		{whole(least, most), []uint64{0, math.MaxUint64}, "18446744073709551615", "a signed integer of 64 bits"},
		{whole(0, 255), []bool{false, true}, "", ""},
		{finite, []float64{1, math.Inf(-1)}, "-Inf", "a finite number"}, {finite, []float32{1, float32(math.NaN())}, "NaN", ""},
		{finite, []float64{3, math.MaxFloat64}, "", ""}, {finite, []int64{0, 1 << 40}, "", ""},
	} {
		m := dataset(t, "set", Field{"y", Array{[]int{2}, c.values}})
		err := Check(m, "y", c.want)
		if c.found == "" {
			require.NoError(t, err, "%v", c.values)
			continue
		}
		kind := ErrValue
		if c.want.Classes > 0 || c.want.Probabilities {
			kind = ErrLabel
		}
		var row *RowError
		require.ErrorAs(t, err, &row, "%v", c.values)
		require.Equal(t, RowError{"set", "sample", 1, "y", c.found, row.Expected, row.Fix, kind}, *row)
		require.ErrorContains(t, err, c.says)
	}
	m := dataset(t, "set", Field{"y", Array{[]int{1}, []string{"cat"}}})
	for _, want := range []Values{classes, probabilities, whole(0, 3)} {
		require.ErrorIs(t, Check(m, "y", want), ErrField)
	}
	require.ErrorIs(t, Check(m, "z", classes), ErrField)
	require.Error(t, Check(m, "y", Values{Classes: 0}))
	require.ErrorIs(t, Check(failing(t, 3, 1), "x", classes), errSource)
}

func TestWriters(t *testing.T) {
	fields := []Field{
		{"class", Array{[]int{2}, []int64{3, -1}}},
		{"p", Array{[]int{2, 2}, []float32{0.1, 1e-7, float32(math.NaN()), 16777216}}},
		{"box", Array{[]int{2, 1, 2}, []float64{1.0 / 3, math.Inf(1), math.Inf(-1), 1e21}}},
		{"name", Array{[]int{2}, []string{`a "b", c`, "<é>"}}},
		{"ok", Array{[]int{2}, []bool{true, false}}},
	}
	var file bytes.Buffer
	c, err := NewWriter(&file, ".csv", 0)
	require.NoError(t, err)
	require.NoError(t, c.Write(fields...))
	require.NoError(t, c.Write(fields...))
	require.NoError(t, c.Flush())
	rows := "3,0.1,1e-07,0.3333333333333333,+Inf,\"a \"\"b\"\", c\",true\n-1,NaN,1.6777216e+07,-Inf,1e+21,<é>,false\n"
	require.Equal(t, "class,p_0,p_1,box_0_0,box_0_1,name,ok\n"+rows+rows, file.String())
	require.ErrorIs(t, c.Write(fields[0]), ErrFormat)
	require.ErrorIs(t, c.Write(fields[4], fields[1], fields[2], fields[3], fields[0]), ErrFormat)

	file.Reset()
	j, err := NewWriter(&file, ".jsonl", 0)
	require.NoError(t, err)
	require.NoError(t, j.Write(fields...))
	require.NoError(t, j.Flush())
	require.Equal(t, `{"class":3,"p":[0.1,1e-07],"box":[[0.3333333333333333,"Infinity"]],"name":"a \"b\", c","ok":true}
{"class":-1,"p":["NaN",1.6777216e+07],"box":[["-Infinity",1e+21]],"name":"\u003cé\u003e","ok":false}
`, file.String())

	_, err = NewWriter(&file, ".txt", 0)
	require.ErrorIs(t, err, ErrUnsupported)
	for _, write := range []func(...Field) error{c.Write, j.Write} {
		require.ErrorIs(t, write(), ErrField)
		require.ErrorIs(t, write(Field{"x", Array{[]int{}, []int8{1}}}), ErrFormat)
		require.ErrorIs(t, write(Field{"x", Array{[]int{1}, []int{1}}}), ErrUnsupported)
		require.ErrorIs(t, write(fields[0], Field{"x", Array{[]int{1}, []int8{1}}}), ErrFormat)
	}
}
