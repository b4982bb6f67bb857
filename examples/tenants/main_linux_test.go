package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

const model = "../../session/testdata/digits-lora"

// childEnv makes the test binary run the example. Its value is the folder for the tenants.
const childEnv = "STEADYFIT_TEST_TENANTS"

func TestMain(m *testing.M) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	o := options{model: model, data: "builtin:digits", dir: dir, tenants: 100, epochs: 1, batch: 128, visits: 1}
	if err := run(context.Background(), o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Training and serving tenants leaves no memory behind. Without caches of threads, malloc
// reports the memory of all blocks exactly. Threads that Go starts take a few blocks, which the
// verdict may call growth of less than 100 bytes per tenant.
func TestTenantsLeaveNoMemory(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+t.TempDir(), "GLIBC_TUNABLES=glibc.malloc.tcache_count=0")
	out, err := cmd.Output()
	require.NoError(t, err)
	assert.Len(t, regexp.MustCompile(`malloc in use: (flat|plateau|jump|(leak|inconclusive: [^\n]*): [+-]?[0-9]{1,2}([.][0-9]+)? B/step)`).FindAll(out, -1), 2, "%s", out)
}

// Each tenant has an adapter of its own. A second run with more epochs resumes each training, and
// ends with the adapters of one longer run.
func TestTenants(t *testing.T) {
	_, err := tfbind.Load("")
	require.NoError(t, err)
	read := func(dir string, epochs int) [][]byte {
		o := options{model: model, data: "builtin:digits", dir: dir, tenants: 3, epochs: epochs, batch: 128, visits: 1}
		require.NoError(t, run(context.Background(), o, io.Discard))
		var all [][]byte
		for _, name := range []string{"0", "1", "2"} {
			text, err := os.ReadFile(filepath.Join(dir, name, "adapter.safetensors"))
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
