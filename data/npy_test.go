package data

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbinet/npyio/npy"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/testkit"
)

// rawNPY returns a .npy file with this header.
func rawNPY(dict string, values ...byte) []byte {
	raw := binary.LittleEndian.AppendUint16([]byte(npyMagic+"\x01\x00"), uint16(len(dict)))
	return append(append(raw, dict...), values...)
}

func dictOf(descr, shape string) string {
	return fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n", descr, shape)
}

func readBytes(raw []byte) (Array, error) { return readNPY(bytes.NewReader(raw), int64(len(raw))) }

func write(t testing.TB, name string, raw []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, raw, 0o644))
	return path
}

func TestNumPyFiles(t *testing.T) {
	for _, file := range []string{"types_stored.npz", "types_deflated.npz"} {
		m, err := openNPZ(filepath.Join("testdata", file), Options{})
		require.NoError(t, err)
		require.Equal(t, 2, m.Len())
		require.Len(t, m.Fields(), 21)
		for b, err := range m.Batches(Pass{Batch: 2}) {
			require.NoError(t, err)
			for _, f := range b.Fields {
				require.Equal(t, []int{2, 3}, f.Shape)
				if f.Name == "b1" {
					require.Equal(t, []bool{true, false, true, false, false, true}, f.Values)
					continue
				}
				v, err := vectorOf(f.Values)
				require.NoError(t, err)
				var text []byte
				for i := range v.len() {
					text = append(v.kind().AppendText(text, v.element(i)), ' ')
				}
				require.Equal(t, "0 1 2 100 101 102 ", string(text), f.Name)
				_, code, _ := strings.Cut(f.Name, "_")
				require.Equal(t, code[:1], v.kind().Name[:1])
				require.Equal(t, code[1:], fmt.Sprint(v.kind().Size))
			}
		}
	}

	count := make([]float32, 24)
	for i := range count {
		count[i] = float32(i)
	}
	for file, want := range map[string]Array{
		"fortran.npy":  {[]int{2, 3, 4}, count},
		"extremes.npy": {[]int{2, 2}, []int64{math.MinInt64, -1, 0, math.MaxInt64}},
		"version2.npy": {[]int{2}, []float64{1.5, -2.5}},
		"scalar.npy":   {[]int{}, []float32{1}},
		"text.npy":     {[]int{2}, []string{"cat", "dog"}},
	} {
		a, err := readBytes(contentOf(t, filepath.Join("testdata", file)))
		require.NoError(t, err, file)
		require.Equal(t, want, a, file)
	}
	_, err := Open("testdata/scalar.npy", Options{})
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, "single value")

	for dict, want := range map[string]struct {
		raw    string
		values []string
	}{
		dictOf("|S3", "(2,)"):   {"a\x00\x00dé", []string{"a", "dé"}},
		dictOf(">U2", "(2,)"):   {"\x00\x00\x00é\x00\x00\x00\x00\x00\x01\xf4\x00\x00\x00\x00a", []string{"é", "\U0001f400a"}},
		dictOf("<U1", "(1, 1)"): {"\x00\x00\x00\x00", []string{""}},
		dictOf("|S1", "(2, 1)"): {"ab", []string{"a", "b"}},
		dictOf("|a2", "(1,)"):   {"\x00b", []string{"\x00b"}},
	} {
		raw := strings.ReplaceAll(want.raw, "\x00\x00\x00é", "\x00\x00\x00\xe9")
		a, err := readBytes(rawNPY(dict, []byte(raw)...))
		require.NoError(t, err, dict)
		require.Equal(t, want.values, a.Values, dict)
	}
	for descr, says := range map[string]string{"<U0": `elements of type "<U0"`, "|S99999999999": "elements of type",
		"|S4": "states 2 elements, the file has 1"} {
		_, err := readBytes(rawNPY(dictOf(descr, "(2,)"), []byte("abcdef")...))
		require.ErrorContains(t, err, says, descr)
	}
	for file, says := range map[string]string{
		"half.npy":    `elements of type "<f2": not supported; convert`,
		"complex.npy": `type "<c8": not supported`,
		"objects.npy": `elements of type "|O" (Python objects): not supported`,
	} {
		_, err := Open(filepath.Join("testdata", file), Options{})
		require.ErrorIs(t, err, ErrUnsupported, file)
		require.ErrorContains(t, err, says, file)
		require.ErrorContains(t, err, file)
	}
}

func TestWriteNPYReadsBack(t *testing.T) {
	for _, a := range []Array{
		{[]int{2, 2}, []float32{0.1, -1, math.MaxFloat32, math.SmallestNonzeroFloat32}},
		{[]int{3}, []float64{math.Inf(1), math.Pi, math.Copysign(0, -1)}},
		{[]int{2}, []int8{-128, 127}}, {[]int{2}, []int16{-1, 1}}, {[]int{2}, []int32{-1, 1}},
		{[]int{1, 1, 2}, []int64{math.MinInt64, 1}},
		{[]int{2}, []uint8{0, 255}}, {[]int{2}, []uint16{0, 65535}}, {[]int{2}, []uint32{0, 1}},
		{[]int{2}, []uint64{0, math.MaxUint64}},
		{[]int{2}, []bool{true, false}},
		{[]int{100, 1000}, make([]float32, 100000)},
	} {
		var file bytes.Buffer
		w, err := NewWriter(&file, ".npy", a.Shape[0])
		require.NoError(t, err)
		require.NoError(t, w.Write(Field{"x", a}))
		require.NoError(t, w.Flush())
		back, err := readBytes(file.Bytes())
		require.NoError(t, err)
		require.Equal(t, a, back)

		// npyio must read the same values.
		r, err := npy.NewReader(bytes.NewReader(file.Bytes()))
		require.NoError(t, err)
		require.Equal(t, len(a.Shape), len(r.Header.Descr.Shape))
		v, err := vectorOf(a.Values)
		require.NoError(t, err)
		require.Equal(t, v.kind().Name, npy.TypeFrom(r.Header.Descr.Type).String())
		require.Zero(t, (file.Len()-v.len()*v.kind().Size)%64, "values are not aligned")
	}
	values := []float32{1.5, 2.5}
	var file bytes.Buffer
	require.NoError(t, npy.Write(&file, values))
	a, err := readBytes(file.Bytes())
	require.NoError(t, err)
	require.Equal(t, Array{[]int{2}, values}, a)

	w, err := NewWriter(&file, ".npy", 1)
	require.NoError(t, err)
	require.ErrorIs(t, w.Write(Field{"x", Array{[]int{1}, []string{"a"}}}), ErrUnsupported)
	require.ErrorIs(t, w.Write(Field{"x", Array{[]int{2}, []float32{1}}}), ErrFormat)
}

func TestNPYRefuses(t *testing.T) {
	sound := rawNPY(dictOf("<f4", "(2,)"), make([]byte, 8)...)
	_, err := readBytes(sound)
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		raw  []byte
		kind error
		says string
	}{
		{"nothing", nil, ErrFormat, "it has 0 bytes"},
		{"cut in magic", sound[:4], ErrFormat, "it has 4 bytes"},
		{"cut in length", sound[:9], ErrFormat, "truncated in the header"},
		{"cut in header", sound[:20], ErrFormat, "truncated in the header"},
		{"cut in values", sound[:len(sound)-3], ErrFormat, "states 8 bytes of values, the file has 5"},
		{"no values", sound[:len(sound)-8], ErrFormat, "states 8 bytes of values, the file has 0"},
		{"more", append(sound[:len(sound):len(sound)], 0), ErrFormat, "more bytes than the header states"},
		{"other magic", append([]byte("\x89PNG\r\n"), sound[6:]...), ErrFormat, "not a .npy file"},
		{"pickle", append([]byte("\x80\x04\x95"), sound[3:]...), ErrUnsupported, "pickle"},
		{"version", append([]byte(npyMagic+"\x09"), sound[7:]...), ErrFormat, "version 9"},
		{"long header", append([]byte(npyMagic+"\x02\x00\xff\xff\xff\x7f"), sound[10:]...), ErrFormat,
			"header of 2147483647 bytes"},
		{"1e18 elements", rawNPY(dictOf("|u1", "(1000000000000000000,)")), ErrFormat, "states 1000000000000000000 values of 1 bytes"},
		{"overflow of bytes", rawNPY(dictOf("<f8", "(9000000000000000000,)")), ErrFormat, "truncated"},
		{"overflow of elements", rawNPY(dictOf("<f8", "(9000000000, 9000000000,)")), ErrFormat, "address"},
		{"overflow of a size", rawNPY(dictOf("<f8", "(99999999999999999999,)")), ErrFormat, "address"},
		{"negative size", rawNPY(dictOf("<f8", "(-1,)")), ErrFormat, "expected a size"},
		{"text as a size", rawNPY(dictOf("<f8", "(a,)")), ErrFormat, "expected a size"},
		{"dimensions", rawNPY(dictOf("<f8", "("+strings.Repeat("1,", 65)+")")), ErrFormat, "more than 64 dimensions"},
		{"open tuple", rawNPY(dictOf("<f8", "(1,")), ErrFormat, "expected a dict with descr, fortran_order and shape"},
		{"no descr", rawNPY("{'fortran_order': False, 'shape': (1,)}"), ErrFormat,
			"expected a dict with descr, fortran_order and shape"},
		{"no shape", rawNPY("{'descr': '<f4', 'fortran_order': False}"), ErrFormat,
			"expected a dict with descr, fortran_order and shape"},
		{"order", rawNPY("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}"), ErrFormat,
			"expected a dict with descr, fortran_order and shape"},
		{"open string", rawNPY("{'descr"), ErrFormat, "expected a dict with descr, fortran_order and shape"},
		{"no dict", rawNPY("hello"), ErrFormat, "expected a dict with descr, fortran_order and shape"},
		{"no header", rawNPY(""), ErrFormat, "expected a dict with descr, fortran_order and shape"},
		{"after the dict", rawNPY(strings.TrimSpace(dictOf("<f4", "(1,)")) + "x"), ErrFormat,
			"expected a dict with descr, fortran_order and shape"},
		{"no type", rawNPY(dictOf("", "(1,)")), ErrUnsupported, "elements of type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readBytes(c.raw)
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
		})
	}
	// A dict may contain any spaces and quotes, and its keys in any order.
	a, err := readBytes(rawNPY(`{ "shape" : ( 2 , 1 ) ,"fortran_order":True, "descr":'|i1'}`, 1, 2))
	require.NoError(t, err)
	require.Equal(t, Array{[]int{2, 1}, []int8{1, 2}}, a)
}

// Values that exceed the free memory are an error before memory is allocated for them.
func TestValuesBeyondTheMemory(t *testing.T) {
	require.NoError(t, checkMemory(1000))
	require.ErrorIs(t, checkMemory(1<<60), ErrTooLarge)
	table := newTable("t", Options{})
	table.bytes, table.fields = 1<<60, []*tableField{}
	require.False(t, table.row(nil))
	require.ErrorIs(t, table.found.err(), ErrTooLarge)
}

type member struct {
	name   string
	method uint16
	raw    []byte
}

func archive(t testing.TB, members ...member) []byte {
	t.Helper()
	var file bytes.Buffer
	z := zip.NewWriter(&file)
	for _, m := range members {
		w, err := z.CreateHeader(&zip.FileHeader{Name: m.name, Method: m.method})
		require.NoError(t, err)
		_, err = w.Write(m.raw)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return file.Bytes()
}

func TestNPZRefuses(t *testing.T) {
	one := rawNPY(dictOf("|u1", "(1,)"), 7)
	two := rawNPY(dictOf("|u1", "(2,)"), 7, 8)
	sound := archive(t, member{"x.npy", zip.Store, two}, member{"y.npy", zip.Deflate, two})
	flipped := bytes.Clone(sound)
	flipped[bytes.Index(flipped, two)+len(two)-1] ^= 1

	var lying bytes.Buffer
	z := zip.NewWriter(&lying)
	w, err := z.CreateRaw(&zip.FileHeader{
		Name: "x.npy", Method: zip.Store, CRC32: crc32.ChecksumIEEE(one),
		CompressedSize64: uint64(len(one)), UncompressedSize64: 1 << 40,
	})
	require.NoError(t, err)
	_, err = w.Write(one)
	require.NoError(t, err)
	require.NoError(t, z.Close())

	for _, c := range []struct {
		name string
		raw  []byte
		says string
	}{
		{"nothing", nil, "is empty"},
		{"not a zip", []byte("hello, this is not a zip archive"), "not a .npz file"},
		{"cut", sound[:len(sound)-10], "not a .npz file"},
		{"no member", archive(t), "archive is empty"},
		{"other member", archive(t, member{"notes.txt", zip.Store, one}), `"notes.txt" in the archive is not a .npy file`},
		{"counts", archive(t, member{"x.npy", zip.Store, one}, member{"y.npy", zip.Store, two}), "has 2 samples"},
		{"no samples", archive(t, member{"x.npy", zip.Store, rawNPY(dictOf("|u1", "(0, 8)"))}), "no values"},
		{"no samples but 1e18 of them", archive(t, member{"x.npy", zip.Store,
			rawNPY(dictOf("|u1", "(1000000000000000000, 0)"))}), "no values"},
		{"checksum", flipped, "damaged"},
		{"size", lying.Bytes(), "damaged or truncated"},
		{"member", archive(t, member{"x.npy", zip.Deflate, []byte("hello")}), `array "x": it has 5 bytes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := write(t, "set.npz", c.raw)
			_, err := openNPZ(path, Options{})
			require.ErrorIs(t, err, ErrFormat)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, path)
		})
	}
}

func TestNPZParts(t *testing.T) {
	array := func(v byte) []byte { return rawNPY(dictOf("|u1", "(1,)"), v) }
	path := write(t, "mnist.npz", archive(t,
		member{"x_train.npy", zip.Store, array(1)}, member{"y_train.npy", zip.Store, array(2)},
		member{"x_test.npy", zip.Store, rawNPY(dictOf("|u1", "(2,)"), 3, 4)},
		member{"y_test.npy", zip.Store, rawNPY(dictOf("|u1", "(2,)"), 5, 6)}))
	for split, n := range map[string]int{"": 1, "train": 1, "test": 2, "validation": 2} {
		m := opened(t, path, Options{Split: split})
		require.Equal(t, fmt.Sprintf("%s: %d samples; x uint8 [], y uint8 []", path, n), describe(m))
	}
	_, err := Open(path, Options{Split: "holdout"})
	require.ErrorIs(t, err, ErrNoSplit)

	half := write(t, "half.npz", archive(t, member{"x_train.npy", zip.Store, array(1)}))
	_, err = Open(half, Options{Split: "test"})
	require.ErrorIs(t, err, ErrNoSplit)
	whole := write(t, "whole.npz", archive(t, member{"x.npy", zip.Store, array(1)}))
	_, err = Open(whole, Options{Split: "test"})
	require.ErrorIs(t, err, ErrNoSplit)
	opened(t, whole, Options{Split: "train"})
}

func TestOpenNPY(t *testing.T) {
	dir := t.TempDir()
	put := func(name, shape string, values ...byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, rawNPY(dictOf("|u1", shape), values...), 0o644))
		return path
	}
	x, y := put("x.npy", "(2, 2)", 1, 2, 3, 4), put("y.npy", "(2,)", 0, 9)
	for _, path := range []string{dir, x} {
		m := opened(t, path, Options{})
		require.Equal(t, []FieldSpec{{Name: "x", Shape: []int{2}, Type: "uint8"}, {Name: "y", Shape: []int{}, Type: "uint8"}},
			m.Fields())
		err := Check(m, "y", Values{Classes: 9})
		require.EqualError(t, err, y+": sample 1, column y: found 9, expected a class from 0 to 8; correct the label, or "+
			"train a model with more than 9 classes")
	}
	fraction := dataset(t, "made", Field{Name: "y", Array: Array{Shape: []int{2}, Values: []float32{1, 0.5}}})
	require.EqualError(t, Check(fraction, "y", Values{Classes: 9}),
		"made: sample 1, column y: found 0.5, expected a class from 0 to 8; correct the label",
		"no number of classes makes it a class")
	m := opened(t, put("images.npy", "(2,)", 5, 6), Options{})
	require.Equal(t, "x", m.Fields()[0].Name)
	_, err := Open(x, Options{Split: "test"})
	require.ErrorIs(t, err, ErrNoSplit)
	_, err = Open(filepath.Join(dir, "z.npy"), Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func FuzzNPY(f *testing.F) {
	f.Add(rawNPY(dictOf("<f4", "(2,)"), make([]byte, 8)...))
	f.Add(rawNPY(dictOf(">i2", "(1, 2)"), 1, 2, 3, 4))
	f.Add(rawNPY("{'descr': '|b1', 'fortran_order': True, 'shape': (2, 2)}", 0, 1, 1, 0))
	f.Add(rawNPY(dictOf("|O", "()")))
	f.Add(rawNPY(dictOf(">S2", "(1, 2)"), 'a', 'b', 'c', 0))
	f.Add(rawNPY(dictOf("|u1", "(1000000000000000000,)")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var a Array
		var err error
		testkit.Allocates(t, 1<<20+64*len(raw), func() { a, err = readBytes(raw) })
		// Values on disk equal values in memory.
		stored, openErr := os.Open(write(t, "fuzz.npy", raw))
		require.NoError(t, openErr)
		defer stored.Close()
		m := newDiskFile("fuzz", stored)
		stays, ok, mapErr := m.array(0, int64(len(raw)))
		if err != nil {
			require.False(t, ok && mapErr == nil, "%v", err)
			return
		}
		require.NoError(t, mapErr)
		if n := 0; ok {
			n = stays.values.len()
			require.Equal(t, a.Shape, stays.shape)
			copied := makeVector(stays.values.kind(), n)
			require.NoError(t, stays.values.copyTo(copied, 0, 0, n))
			read, err := vectorOf(a.Values)
			require.NoError(t, err)
			for i := range n {
				require.Equal(t, textOf(read, i), textOf(copied, i))
			}
		}
		if _, isText := a.Values.([]string); isText {
			return // text cannot be written
		}
		var file bytes.Buffer
		require.NoError(t, writeNPY(&file, a))
		again := bytes.Clone(file.Bytes())
		b, err := readBytes(again)
		require.NoError(t, err)
		require.Equal(t, a.Shape, b.Shape)
		file.Reset()
		require.NoError(t, writeNPY(&file, b))
		require.Equal(t, again, file.Bytes())
	})
}

// FuzzNPZ changes an archive, or a member in an archive with correct checksums.
func FuzzNPZ(f *testing.F) {
	one := rawNPY(dictOf("<f4", "(2,)"), make([]byte, 8)...)
	f.Add(archive(f, member{"x.npy", zip.Deflate, one}, member{"y.npy", zip.Store, one}), one)
	f.Add(archive(f, member{"x_train.npy", zip.Store, one}, member{"x_test.npy", zip.Store, one}),
		rawNPY(dictOf("|u1", "(1000000000,)")))
	f.Add([]byte{}, rawNPY(dictOf("<U1", "(2,)"), 'a', 0, 0, 0, 'b', 0, 0, 0))
	f.Add([]byte{}, rawNPY("{'descr': '|b1', 'fortran_order': True, 'shape': (2, 2)}", 0, 1, 1, 0))
	f.Fuzz(func(t *testing.T, raw, content []byte) {
		for _, raw := range [][]byte{raw, archive(t, member{"x.npy", zip.Store, content})} {
			var m *InMemory
			var err error
			testkit.Allocates(t, 8<<20+4096*len(raw), func() {
				m, err = readNPZ("fuzz", bytes.NewReader(raw), int64(len(raw)), Options{}, nil)
			})
			if err != nil {
				require.Nil(t, m)
				require.True(t, slices.ContainsFunc([]error{ErrFormat, ErrUnsupported, ErrTooLarge, ErrField, ErrNoSplit},
					func(one error) bool { return errors.Is(err, one) }), "%v", err)
				continue
			}
			if slices.ContainsFunc(m.Fields(), func(f FieldSpec) bool { return f.Type == "string" }) {
				continue // text cannot be written
			}
			// Writing and reading again gives the same values.
			again := written(t, m)
			m, err = readNPZ("fuzz", bytes.NewReader(again), int64(len(again)), Options{}, nil)
			require.NoError(t, err)
			require.Equal(t, again, written(t, m))
		}
	})
}

// writeNPY writes an array of any shape.
func writeNPY(w io.Writer, a Array) error {
	v, err := arrayVector(a)
	if err != nil {
		return err
	}
	err = writeNPYHeader(w, v.kind(), a.Shape)
	_, failed := w.Write(bytesOf(v, 0, v.len()))
	return errors.Join(err, failed)
}

// written returns an archive of the fields of a dataset.
func written(t testing.TB, m *InMemory) []byte {
	var members []member
	for b, err := range m.Batches(Pass{Batch: m.Len()}) {
		require.NoError(t, err)
		for _, field := range b.Fields {
			var file bytes.Buffer
			require.NoError(t, writeNPY(&file, field.Array))
			members = append(members, member{field.Name + ".npy", zip.Store, file.Bytes()})
		}
	}
	return archive(t, members...)
}

func TestNPYWriterInParts(t *testing.T) {
	whole := Array{Shape: []int{3, 2}, Values: []float32{1, 2, 3, 4, 5, 6}}
	var want, got bytes.Buffer
	require.NoError(t, writeNPY(&want, whole))
	w, err := NewWriter(&got, ".npy", 3)
	require.NoError(t, err)
	require.NoError(t, w.Write(Field{"p", Array{Shape: []int{2, 2}, Values: []float32{1, 2, 3, 4}}}))
	require.ErrorIs(t, w.Flush(), ErrFormat, "a sample is missing")
	require.ErrorIs(t, w.Write(Field{"p", Array{Shape: []int{1, 2}, Values: []int32{5, 6}}}), ErrField)
	require.ErrorIs(t, w.Write(Field{"p", Array{Shape: []int{2, 1}, Values: []float32{5, 6}}}), ErrField)
	require.ErrorIs(t, w.Write(), ErrUnsupported)
	require.NoError(t, w.Write(Field{"p", Array{Shape: []int{1, 2}, Values: []float32{5, 6}}}))
	require.NoError(t, w.Flush())
	require.Equal(t, want.Bytes(), got.Bytes())
}
