package cgroup

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
	v2 = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
)

// system returns a file system with these control groups and mounts.
func system(groups, mounts string) fs.FS {
	return fstest.MapFS{
		"proc/self/cgroup":    {Data: []byte(groups)},
		"proc/self/mountinfo": {Data: []byte(mounts)},
	}
}

func TestFind(t *testing.T) {
	const container = "41 31 0:38 /docker/abc /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"
	for _, c := range []struct {
		name, groups, mounts string
		dirs                 []string
		used                 string
	}{
		{"version 2", "0::/user/app\n", v2,
			[]string{"/sys/fs/cgroup/user/app", "/sys/fs/cgroup/user", "/sys/fs/cgroup"}, "memory.current"},
		{"version 1", "4:cpu,memory:/app\n0::/\n", v1 + v2,
			[]string{"/sys/fs/cgroup/memory/app", "/sys/fs/cgroup/memory"}, "memory.usage_in_bytes"},
		{"root of version 2", "0::/\n", v2, []string{"/sys/fs/cgroup"}, "memory.current"},
		{"container", "0::/docker/abc/x\n", container, []string{"/sys/fs/cgroup/x", "/sys/fs/cgroup"}, "memory.current"},
		{"outside of what is mounted", "0::/docker/abcd\n", container, []string{"/sys/fs/cgroup"}, "memory.current"},
		{"above what is mounted", "0::/../other\n", v2, []string{"/sys/fs/cgroup"}, "memory.current"},
		{"none", "", v2, nil, ""},
		{"not mounted", "0::/app\n", "", nil, ""},
	} {
		found := Find(system(c.groups, c.mounts), "self", "memory")
		require.Equal(t, c.dirs, found.Dirs, c.name)
		if c.used == "" {
			require.Zero(t, found.Version, c.name)
			continue
		}
		used, _, _ := found.MemoryFiles()
		require.Equal(t, c.used, used, c.name)
	}
}

func TestOOMFiles(t *testing.T) {
	for _, test := range []struct{ name, groups, mounts, first string }{
		{"version 1", "9:name=systemd:/\n4:memory,cpu:/a/b\n0::/\n", v1 + v2, "/sys/fs/cgroup/memory/a/b/memory.oom_control"},
		{"version 2", "0::/user.slice/x.scope\n", v2, "/sys/fs/cgroup/user.slice/x.scope/memory.events.local"},
		{"none", "", "", "/proc/vmstat"},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := Find(system(test.groups, test.mounts), "self", "memory").oomFiles()
			assert.Equal(t, test.first, files[0])
			assert.Equal(t, "/proc/vmstat", files[len(files)-1])
		})
	}
}

func TestOOMCounter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.events")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o666)) }
	write("low 0\noom 7\noom_kill 3\noom_group_kill 9\n")
	n, ok := OOMKills(file)
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
