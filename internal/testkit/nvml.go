package testkit

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/nvml.c
var source []byte

// CompileNVML builds nvml.c into a library, with compiler options such as -DNEW.
func CompileNVML(t testing.TB, library string, options ...string) {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		t.Skipf("needs a C compiler to build nvml.c: %v; name one with CC", err)
	}
	file := filepath.Join(t.TempDir(), "nvml.c")
	require.NoError(t, os.WriteFile(file, source, 0o600))
	args := append([]string{"-Wall", "-Werror", "-shared", "-fPIC", "-O1", "-o", library, file}, options...)
	out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// inChild marks a process that NVMLChild has started.
const inChild = "STEADYFIT_TEST_GPU_CHILD"

// NVMLChild reruns the calling test in a process in which the library built with these options is NVML. It
// returns true in that process. The loader looks up a library once per process, so each library needs a
// process.
func NVMLChild(t *testing.T, options ...string) bool {
	t.Helper()
	if os.Getenv(inChild) != "" {
		return true
	}
	dir := t.TempDir()
	CompileNVML(t, filepath.Join(dir, "libnvidia-ml.so.1"), options...)
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), inChild+"=1", "LD_LIBRARY_PATH="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return false
}
