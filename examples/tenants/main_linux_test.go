package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/adapter"
	"steadyfit/tfbind"
)

// Each tenant has an adapter of its own. A second run with more epochs resumes each training, and
// ends with the adapters of one longer run.
func TestTenants(t *testing.T) {
	_, err := tfbind.Load("")
	require.NoError(t, err)
	read := func(dir string, epochs int) [][]byte {
		o := options{model: "../../adapter/testdata/digits-lora", data: "builtin:digits", dir: dir, tenants: 3, epochs: epochs, batch: 128, visits: 1}
		require.NoError(t, run(context.Background(), o, io.Discard))
		var all [][]byte
		for _, name := range []string{"0", "1", "2"} {
			text, err := os.ReadFile(filepath.Join(dir, name, adapter.File))
			require.NoError(t, err)
			all = append(all, text)
		}
		return all
	}
	whole, parts := t.TempDir(), t.TempDir()
	want := read(whole, 2)
	assert.False(t, bytes.Equal(want[0], want[1]))
	first := read(parts, 1)
	assert.NotEqual(t, want, first)
	assert.Equal(t, want, read(parts, 2))
	assert.Equal(t, tfbind.Counts{}, tfbind.Live())
}
