package tfbind

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
		rest + "/usr/lib/libc.so.6\n" + rest + "\n" + rest + "[heap]\n":                                             "",
		rest + "/opt/tf/libtensorflow_framework.so.2\n":                                                             "",
		rest + "/opt/libtensorflow.so.txt/other.so\n":                                                               "",
		rest + "/opt/tf/libtensorflow_framework.so.2\n" + rest + "/opt/my tf/libtensorflow_cc.so.2\n" + rest + "\n": "/opt/my tf/libtensorflow_cc.so.2",
		rest + "/usr/lib/libtensorflow.so.2.16.1\n":                                                                 "/usr/lib/libtensorflow.so.2.16.1",
	} {
		require.Equal(t, want, mappedLibrary(maps), maps)
	}
	dir := t.TempDir()
	one, two, link := filepath.Join(dir, "one"), filepath.Join(dir, "two"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(one, nil, 0o644))
	require.NoError(t, os.WriteFile(two, nil, 0o644))
	require.NoError(t, os.Symlink(one, link))
	require.True(t, sameFile(one, link))
	require.False(t, sameFile(one, two))
	require.False(t, sameFile(one, filepath.Join(dir, "none")))
}
