package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/memory"
)

func TestFolder(t *testing.T) {
	f := folder{"working folder", "/data/runs", "write elsewhere"}
	for _, c := range []struct {
		name  string
		space space
		want  Check
	}{
		{"room", space{memory.Known(10 * memory.GiB), true}, Check{Found: "/data/runs: 10.0 GiB free"}},
		{"little", space{memory.Known(memory.GiB), true}, Check{Status: Warning, Found: "/data/runs: 1.0 GiB free", Fix: "write elsewhere"}},
		{"full", space{memory.Known(memory.MiB), true}, Check{Status: Problem, Found: "/data/runs: 1.0 MiB free", Fix: "write elsewhere"}},
		{"read-only", space{memory.Known(10 * memory.GiB), false}, Check{Status: Warning, Found: "/data/runs: not writable", Fix: "write elsewhere"}},
		{"unknown", space{writable: true}, Check{Found: "/data/runs: unknown free"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Name = f.name
			// The folder is not made yet; its parent is.
			ask := func(dir string) (space, error) {
				if dir == f.path {
					return space{}, fmt.Errorf("statfs: %w", fs.ErrNotExist)
				}
				return c.space, nil
			}
			assert.Equal(t, c.want, checkFolder(f, ask))
		})
	}
	refused := checkFolder(f, func(string) (space, error) { return space{}, fs.ErrPermission })
	assert.Equal(t, Check{Name: f.name, Status: Note, Found: "/data/runs: unknown: permission denied"}, refused)
}

func TestDiskSpaceIsReal(t *testing.T) {
	s, err := diskSpace(t.TempDir())
	require.NoError(t, err)
	assert.True(t, s.writable)
	_, err = diskSpace(filepath.Join(t.TempDir(), "none"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func TestFolders(t *testing.T) {
	work, err := os.Getwd()
	require.NoError(t, err)
	var paths []string
	for _, f := range folders(map[string]string{"TMPDIR": "/scratch", "HOME": "/u"}) {
		paths = append(paths, f.name+" "+f.path)
	}
	assert.Equal(t, []string{"working folder " + work, "temporary files /scratch", "cache /u/.cache"}, paths)
}
