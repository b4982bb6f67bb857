package tfbind_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/tfbind"
)

// envMallocChild is set in the child processes of TestMalloc. It names the file for the result.
const envMallocChild = "STEADYFIT_TEST_MALLOC"

// mallocStages has the measurements of a child in the order in which they were taken.
type mallocStages struct {
	OK                         bool
	WithTensorFlow             bool // whether MallocInfo or TrimMalloc loaded TensorFlow
	Start, Held, Closed, After tfbind.Malloc
	Trimmed                    bool
}

const heldBytes = 64 << 20

// mallocChild runs instead of the tests, before TensorFlow is loaded.
func mallocChild(file string) error {
	var s mallocStages
	_, s.OK = tfbind.MallocInfo()
	s.Trimmed = tfbind.TrimMalloc()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	s.WithTensorFlow = strings.Contains(string(maps), "libtensorflow")

	values := make([]float32, heldBytes/4)
	small, err := tfbind.NewTensor(values[:1<<16], 1<<16) // loads TensorFlow
	if err != nil {
		return err
	}
	defer small.Close()
	s.Start, _ = tfbind.MallocInfo()
	x, err := tfbind.NewTensor(values, int64(len(values)))
	if err != nil {
		return err
	}
	s.Held, _ = tfbind.MallocInfo()
	if err := x.Close(); err != nil {
		return err
	}
	s.Closed, _ = tfbind.MallocInfo()
	s.Trimmed = tfbind.TrimMalloc() && s.Trimmed
	s.After, _ = tfbind.MallocInfo()
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func TestMalloc(t *testing.T) {
	for _, c := range []struct{ name, library, pkg string }{
		{"glibc", "", ""},
		{"jemalloc", "libjemalloc.so.2", "libjemalloc2"},
		{"tcmalloc", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"},
		{"mimalloc", "libmimalloc.so.2", "libmimalloc2.0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "stages.json")
			cmd := exec.Command(os.Args[0], "-test.run=^$")
			// For malloc, a closed tensor in TensorFlow's own pool is still in use.
			cmd.Env = append(os.Environ(), envMallocChild+"="+file, "TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1",
				// These settings make jemalloc keep all free memory until a purge.
				"MALLOC_CONF=oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1")
			if c.library != "" {
				found, _ := filepath.Glob("/usr/lib/*/" + c.library)
				if len(found) == 0 {
					t.Skipf("%s is not installed (Debian: apt-get install %s)", c.library, c.pkg)
				}
				cmd.Env = append(cmd.Env, "LD_PRELOAD="+found[0])
			} else if m, _ := tfbind.MallocInfo(); m.Allocator != c.name {
				t.Skipf("the malloc of this process is %q", m.Allocator)
			}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var s mallocStages
			require.NoError(t, json.Unmarshal(text, &s))

			assert.True(t, s.OK)
			assert.True(t, s.Trimmed)
			assert.False(t, s.WithTensorFlow)
			for _, m := range []tfbind.Malloc{s.Start, s.Held, s.Closed, s.After} {
				assert.Equal(t, c.name, m.Allocator)
			}
			if c.name == "mimalloc" || s.Start.InUse < 0 {
				assert.Equal(t, tfbind.Malloc{Allocator: c.name, InUse: -1, Free: -1, Arenas: -1, Mapped: -1}, s.Held)
				return
			}
			const slack = heldBytes / 16
			assert.InDelta(t, s.Start.InUse+heldBytes, s.Held.InUse, slack)
			assert.InDelta(t, s.Start.InUse, s.Closed.InUse, slack)
			for _, m := range []tfbind.Malloc{s.Start, s.Held, s.Closed, s.After} {
				assert.Positive(t, m.InUse)
				assert.Equal(t, m.Arenas, m.InUse+m.Free)
			}
			assert.GreaterOrEqual(t, s.Held.Arenas, int64(heldBytes))
			// The trim returned everything that was kept after the tensor was closed.
			assert.InDelta(t, s.Held.Arenas-heldBytes, s.After.Arenas, slack)
			assert.Less(t, s.After.Free, int64(heldBytes/4))
			if c.name != "glibc" { // glibc maps a block of that size
				assert.Greater(t, s.Closed.Free, int64(heldBytes))
			}
		})
	}
}

func TestMallocInfoAllocatesNothing(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(100, func() { tfbind.MallocInfo() }))
}

func BenchmarkMallocInfo(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		tfbind.MallocInfo()
	}
}
