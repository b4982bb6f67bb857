package bundle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/dtype"
	"steadyfit/internal/testkit"
)

// saved is the file prefix of the variables of a model.
var saved = filepath.Join("..", "..", "savedmodels", "testdata", "keras", "variables", "variables")

// Every changed or missing byte is detected or changes nothing.
func TestDamage(t *testing.T) {
	whole, err := os.ReadFile(saved + ".index")
	require.NoError(t, err)
	want, err := parse(whole)
	require.NoError(t, err)
	noticed := 0
	for at := range whole {
		torn := bytes.Clone(whole)
		torn[at] ^= 1 << (at % 8)
		if have, err := parse(torn); err == nil {
			require.Equal(t, want, have, "byte %d", at)
		} else {
			noticed++
		}
		_, err := parse(whole[:at])
		require.Error(t, err)
	}
	require.Greater(t, noticed, len(whole)*9/10)

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "v.index"), []byte("index"), 0o666))
	_, err = Read(filepath.Join(dir, "v"))
	require.ErrorIs(t, err, ErrDamaged)
	_, err = Read(filepath.Join(dir, "w"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Truncated and missing files are detected without TensorFlow.
func TestCheck(t *testing.T) {
	index, err := os.ReadFile(saved + ".index")
	require.NoError(t, err)
	require.NoError(t, Check(saved, index))
	prefix := filepath.Join(t.TempDir(), "v")
	require.ErrorIs(t, Check(prefix, index), os.ErrNotExist)
	values, err := os.ReadFile(saved + ".data-00000-of-00001")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(prefix+".data-00000-of-00001", values[:len(values)-1], 0o666))
	err = Check(prefix, index)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, fmt.Sprintf("it has %d bytes, but its index expects %d", len(values)-1, len(values)))
	require.ErrorIs(t, Check(saved, index[:len(index)-1]), ErrDamaged)
	_, rest, err := handle(index[len(index)-footerBytes:])
	require.NoError(t, err)
	last, _, err := handle(rest)
	require.NoError(t, err)
	index[last.from+last.size] = 1 // the compression type of the block
	require.ErrorIs(t, Check(prefix, index), ErrDamaged)
	_, err = parse(index)
	require.ErrorContains(t, err, "is compressed")
}

func TestDifferences(t *testing.T) {
	f := func(shape ...int64) Tensor { return Tensor{DType: dtype.Float32, Shape: shape} }
	assert.Equal(t, "a is float32 [2], expected float32 [3], b (float32 []) is missing, c (int64 []) is not in the model",
		Differences(map[string]Tensor{"a": f(3), "b": f()}, map[string]Tensor{"a": f(2), "c": {DType: dtype.Int64}}))
	many := map[string]Tensor{}
	for _, name := range strings.Fields("a b c d e f g") {
		many[name] = f(1)
	}
	assert.True(t, strings.HasSuffix(Differences(many, nil), "e (float32 [1]) is missing, and 2 more"))
}

// table returns an index of blocks with their checksums.
func table(blocks ...[]byte) []byte {
	var all []byte
	var last []byte // location of the last block
	for _, b := range blocks {
		last = binary.AppendUvarint(binary.AppendUvarint(nil, uint64(len(all))), uint64(len(b)))
		all = append(append(all, b...), 0)
		sum := crc32.Checksum(all[len(all)-len(b)-1:], crc32.MakeTable(crc32.Castagnoli))
		all = binary.LittleEndian.AppendUint32(all, (sum>>15|sum<<17)+0xa282ead8)
	}
	footer := append([]byte{0, 0}, last...)
	footer = append(footer, make([]byte, footerBytes-8-len(footer))...)
	return append(all, binary.LittleEndian.AppendUint64(footer, magic)...)
}

// entries returns a block with pairs of keys and values.
func entries(pairs ...string) []byte {
	var b []byte
	for i := 0; i < len(pairs); i += 2 {
		b = append(b, 0)
		b = binary.AppendUvarint(b, uint64(len(pairs[i])))
		b = binary.AppendUvarint(b, uint64(len(pairs[i+1])))
		b = append(append(b, pairs[i]...), pairs[i+1]...)
	}
	return append(b, 0, 0, 0, 0) // no positions of complete keys
}

// A table that lists the same block many times would take much time.
func TestBlocksDoNotOverlap(t *testing.T) {
	values := entries("", "\x08\x01", "a", "\x08\x01")
	at := string(binary.AppendUvarint([]byte{0}, uint64(len(values))))
	have, err := parse(table(values, entries("a", at)))
	require.NoError(t, err)
	require.Equal(t, map[string]Tensor{"a": {DType: dtype.Float32}}, have)
	_, err = parse(table(values, entries("a", at, "b", at)))
	require.ErrorContains(t, err, "overlaps the block before it")
}

// FuzzIndex changes an index, or blocks in an index with correct checksums.
func FuzzIndex(f *testing.F) {
	whole, err := os.ReadFile(saved + ".index")
	require.NoError(f, err)
	values := entries("", "\x08\x01", "a", "\x08\x01\x12\x02\x12\x00")
	at := string(binary.AppendUvarint([]byte{0}, uint64(len(values))))
	f.Add(whole, values, entries("a", at))
	f.Add([]byte{}, values, entries("a", at, "b", at))
	f.Fuzz(func(t *testing.T, raw, values, index []byte) {
		for _, raw := range [][]byte{raw, table(values, index)} {
			var have map[string]Tensor
			var err error
			testkit.Allocates(t, 1<<20+4096*len(raw), func() { have, err = parse(raw) })
			var again map[string]Tensor
			again, errAgain := parse(bytes.Clone(raw))
			require.Equal(t, err, errAgain)
			require.Equal(t, have, again)
			if err == nil {
				require.Empty(t, Differences(have, again))
			}
			// Read and Check agree on what is damaged.
			missing := Check(filepath.Join(t.TempDir(), "v"), raw)
			switch {
			case err != nil:
				require.ErrorIs(t, missing, ErrDamaged)
			case missing != nil:
				require.ErrorIs(t, missing, os.ErrNotExist)
			}
		}
	})
}
