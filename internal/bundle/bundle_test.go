package bundle

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

// digits is the prefix of a built-in model's variables.
var digits = filepath.Join("..", "..", "savedmodels", "builtin", "digits", "variables", "variables")

// Any byte that changes or is gone is noticed, or changes nothing.
func TestDamage(t *testing.T) {
	whole, err := os.ReadFile(digits + ".index")
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

// Files that are cut off or gone are noticed without TensorFlow.
func TestCheck(t *testing.T) {
	index, err := os.ReadFile(digits + ".index")
	require.NoError(t, err)
	require.NoError(t, Check(digits, index))
	prefix := filepath.Join(t.TempDir(), "v")
	require.ErrorIs(t, Check(prefix, index), os.ErrNotExist)
	values, err := os.ReadFile(digits + ".data-00000-of-00001")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(prefix+".data-00000-of-00001", values[:len(values)-1], 0o666))
	err = Check(prefix, index)
	require.ErrorIs(t, err, ErrDamaged)
	require.ErrorContains(t, err, fmt.Sprintf("it has %d bytes, expected %d as its index says", len(values)-1, len(values)))
	require.ErrorIs(t, Check(digits, index[:len(index)-1]), ErrDamaged)
	_, rest, err := handle(index[len(index)-footerBytes:])
	require.NoError(t, err)
	last, _, err := handle(rest)
	require.NoError(t, err)
	index[last.from+last.size] = 1 // which says how the block before it is compressed
	require.NoError(t, Check(prefix, index), "TensorFlow may read it")
	_, err = parse(index)
	require.ErrorIs(t, err, errCompressed)
}

func TestDifferences(t *testing.T) {
	f := func(shape ...int64) Tensor { return Tensor{tfbind.Float32, shape} }
	assert.Equal(t, "a is float32 [2], expected float32 [3], b (float32 []) is missing, c (int64 []) is not one of the model's",
		Differences(map[string]Tensor{"a": f(3), "b": f()}, map[string]Tensor{"a": f(2), "c": {DType: tfbind.Int64}}))
	many := map[string]Tensor{}
	for _, name := range strings.Fields("a b c d e f g") {
		many[name] = f(1)
	}
	assert.True(t, strings.HasSuffix(Differences(many, nil), "e (float32 [1]) is missing, and 2 more"))
}
