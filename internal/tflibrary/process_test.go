package tflibrary

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMappedLibrary(t *testing.T) {
	const rest = "7f0000000000-7f0000001000 r-xp 00000000 fd:01 42      "
	for maps, want := range map[string]string{
		"": "",
		rest + "/usr/lib/libc.so.6\n" + rest + "\n" + rest + "[heap]\n": "",
		rest + "/opt/tf/libtensorflow_framework.so.2\n":                 "",
		rest + "/opt/libtensorflow.so.txt/other.so\n":                   "",
		rest + "/opt/tf/libtensorflow_framework.so.2\n" + rest + "/opt/my tf/libtensorflow_cc.so.2\n" + rest +
			"\n": "/opt/my tf/libtensorflow_cc.so.2",
		rest + "/usr/lib/libtensorflow.so.2.16.1\n": "/usr/lib/libtensorflow.so.2.16.1",
	} {
		require.Equal(t, want, mappedLibrary(maps), maps)
	}
}

func TestLocateProjectRuntime(t *testing.T) {
	t.Setenv(EnvLibrary, "")
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	dir := filepath.Join(root, ".runtime", "tensorflow")
	library := filepath.Join(dir, "libtensorflow_cc.so.2")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(library, nil, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libtensorflow_framework.so.2"), nil, 0o644))
	deep := filepath.Join(root, "a", "b")
	require.NoError(t, os.MkdirAll(deep, 0o755))
	t.Chdir(deep)
	l, err := Locate("")
	require.NoError(t, err)
	require.Equal(t, library, l.Library)
	require.Equal(t, "project .runtime", l.Source)
}
