package child

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOOMFiles(t *testing.T) {
	for _, test := range []struct{ name, groups, first string }{
		{"version 1", "9:name=systemd:/\n4:memory,cpu:/a/b\n0::/\n", "/sys/fs/cgroup/memory/a/b/memory.oom_control"},
		{"version 2", "0::/user.slice/x.scope\n", "/sys/fs/cgroup/user.slice/x.scope/memory.events.local"},
		{"none", "", "/proc/vmstat"},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := oomFiles(test.groups)
			assert.Equal(t, test.first, files[0])
			assert.Equal(t, "/proc/vmstat", files[len(files)-1])
		})
	}
}

func TestOOMCounter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.events")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o666)) }
	write("low 0\noom 7\noom_kill 3\noom_group_kill 9\n")
	n, ok := readOOMKills(file)
	require.True(t, ok)
	c := OOMCounter{file, n}
	write("low 0\noom 8\noom_kill 5\noom_group_kill 9\n")
	kills, ok := c.New()
	assert.True(t, ok)
	assert.EqualValues(t, 2, kills)
	kills, ok = c.New()
	assert.True(t, ok)
	assert.Zero(t, kills)
	require.NoError(t, os.Remove(file))
	_, ok = c.New()
	assert.False(t, ok)
	_, ok = (&OOMCounter{}).New()
	assert.False(t, ok)
}

func TestState(t *testing.T) {
	assert.NotEmpty(t, State(os.Getpid()))
	assert.Empty(t, State(-1))
}
