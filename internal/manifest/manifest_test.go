package manifest

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func write(t *testing.T, dir string, contents map[string]string) {
	t.Helper()
	for name, content := range contents {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o666))
	}
}

func verify(t *testing.T, dir string) error {
	t.Helper()
	_, err := Verify(t.Context(), dir)
	return err
}

// Verify names each file that is missing, extra or different, whatever its name is.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"saved_model.pb": "graph", "variables/a": "1", "variables/b": "2",
		"odd \\ name": "", " spaces ": "x"})
	require.NoError(t, Write(t.Context(), dir))
	require.NoError(t, verify(t, dir))
	sums, err := read(dir)
	require.NoError(t, err)
	assert.Len(t, sums, 5)
	if tool, err := exec.LookPath("sha256sum"); err == nil {
		cmd := exec.Command(tool, "--check", "--strict", Name)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}

	write(t, dir, map[string]string{"variables/b": "3", "new/file": ""})
	require.NoError(t, os.Remove(filepath.Join(dir, "variables", "a")))
	err = verify(t, dir)
	assert.Equal(t, &Damage{Dir: dir, Missing: []string{"variables/a"}, Extra: []string{"new/file"},
		Differs: []string{"variables/b"}}, err)
	assert.ErrorContains(t, err, "missing: variables/a; not listed: new/file; another content: variables/b; copy the folder")
	assert.ErrorContains(t, &Damage{Dir: "d", Extra: []string{"x"}}, ": not listed: x; copy")

	// If a folder is in place of a file, or a file in place of a folder, the files are missing.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "variables", "a"), 0o777))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "new")))
	assert.Equal(t, []string{"variables/a"}, verify(t, dir).(*Damage).Missing)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "variables")))
	write(t, dir, map[string]string{"variables": ""})
	assert.Equal(t, []string{"variables/a", "variables/b"}, verify(t, dir).(*Damage).Missing)
}

// A torn manifest does not hide files.
func TestTornManifest(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1", "b": "2"})
	require.NoError(t, Write(t.Context(), dir))
	text, err := os.ReadFile(filepath.Join(dir, Name))
	require.NoError(t, err)
	for n := range len(text) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, Name), text[:n], 0o666))
		if _, err := read(dir); err == nil && n < len(text)-1 { // the last byte is the end of a line
			require.ErrorAs(t, verify(t, dir), new(*Damage), "%d bytes", n)
		}
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	_, err := read(dir)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for _, text := range []string{"x", "00  a\n", "\n/etc\n",
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  ../a\n",
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  /etc/passwd\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, Name), []byte(text), 0o666))
		_, err := read(dir)
		require.ErrorContains(t, err, "line ", "%q", text)
	}
}

// A named pipe is an error, since reading it would block.
func TestIrregularFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	require.NoError(t, Write(t.Context(), dir))
	require.NoError(t, os.Remove(filepath.Join(dir, "a")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "a"), 0o666))
	require.ErrorContains(t, verify(t, dir), "not a regular file")
}

func TestCancelled(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Write(ctx, dir), context.Canceled)
}

// A folder behind a link is read, as in a volume of Kubernetes.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"real/a": "1"})
	require.NoError(t, Write(t.Context(), filepath.Join(dir, "real")))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("real", link))
	require.NoError(t, verify(t, link))
	require.NoError(t, os.Rename(filepath.Join(dir, "real", "a"), filepath.Join(dir, "a")))
	require.NoError(t, os.Symlink("../a", filepath.Join(dir, "real", "a")))
	require.NoError(t, verify(t, link))
}
