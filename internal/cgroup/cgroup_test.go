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
		used, _, _ := found.memoryFiles()
		require.Equal(t, c.used, used, c.name)
	}
}

// The inactive file pages in memory.stat of both versions are subtracted. A group that does not report them
// is left out.
func TestWorkingSet(t *testing.T) {
	const (
		v1 = "cache 646000640\nrss 536698880\ninactive_file 4096\nactive_file 8192\ntotal_cache " +
			"646262784\ntotal_inactive_anon 535920640\ntotal_inactive_file 75022336\ntotal_active_file 561958912\n"
		v2 = "anon 536698880\nfile 646262784\nkernel 1000\ninactive_anon 1\nactive_anon 2\ninactive_file " +
			"75022336\nactive_file 561958912\n"
	)
	for _, c := range []struct {
		name               string
		version            int
		used, amount, stat string
		want               Amount
	}{
		{"version 2", 2, "memory.current", "1182961664\n", v2, Amount{1182961664 - 75022336, "inner/memory.current"}},
		{"version 1", 1, "memory.usage_in_bytes", "1182961664\n", v1,
			Amount{1182961664 - 75022336, "inner/memory.usage_in_bytes"}},
		{"read at two moments", 2, "memory.current", "70000000\n", v2, Amount{0, "inner/memory.current"}},
		{"not reported", 2, "memory.current", "1182961664\n", "anon 536698880\n", Amount{}},
		{"not a number", 2, "memory.current", "1182961664\n", "anon 0\ninactive_file ?\n", Amount{}},
		{"no use", 2, "memory.current", "", v2, Amount{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := fstest.MapFS{
				"without/" + c.used: {Data: []byte("1\n")},
				"inner/" + c.used:   {Data: []byte(c.amount)}, "inner/memory.stat": {Data: []byte(c.stat)},
			}
			group := Controller{Version: c.version, Dirs: []string{"none", "without", "inner"}}
			assert.Equal(t, c.want, group.WorkingSet(files))
		})
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
