package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMemoryOfAPlainMachine(t *testing.T) {
	assert.Equal(t, []Check{
		{Name: "machine", Found: "16.0 GiB, of which 12.0 GiB are available"},
		{Name: "limit", Found: "none below the machine's memory"},
		{Name: "swap", Found: "2.0 GiB, free 2.0 GiB"},
		{Name: "transparent huge pages", Found: "madvise"},
		{Name: "malloc", Found: "of the C library"},
	}, checkMemory(box(plain, nil)))
}

func TestMemoryWithoutProc(t *testing.T) {
	for _, c := range checkMemory(box(nil, nil)) {
		assert.NotContains(t, c.Found, "0 B", c.Name)
		assert.LessOrEqual(t, c.Status, Note, c.Name)
	}
}

func TestMemoryFindings(t *testing.T) {
	const maps = "/proc/self/maps"
	for _, c := range []struct {
		name  string
		files tree
		env   map[string]string
		want  Check
	}{
		{"little available", tree{"/proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 716800 kB\n"}, nil,
			Check{"", "machine", Warning, "4.0 GiB, of which 700.0 MiB are available", "lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"}},
		{"none available", tree{"/proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 102400 kB\n"}, nil,
			Check{"", "machine", Problem, "4.0 GiB, of which 100.0 MiB are available", "lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"}},
		{"memory.high", tree{"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mountV2,
			"/sys/fs/cgroup/memory.max": "8589934592\n", "/sys/fs/cgroup/memory.high": "4294967296\n"}, nil,
			Check{"", "soft limit", Warning, "4.0 GiB (/sys/fs/cgroup/memory.high): above it the kernel slows the process down",
				"raise it to the hard limit: `systemctl set-property UNIT MemoryHigh=infinity`, or have the container's owner do it"}},
		{"ulimit -v", tree{"/proc/self/limits": "Max address space         4294967296           unlimited            bytes\n"}, nil,
			Check{"", "address space", Warning, "limited to 4.0 GiB: TensorFlow maps more than it uses, and may fail to load",
				"`ulimit -v unlimited`, and limit memory with a cgroup instead"}},
		{"swapping", tree{"/proc/meminfo": "SwapTotal: 4194304 kB\nSwapFree: 1048576 kB\n"}, nil,
			Check{"", "swap", Warning, "3.0 GiB of 4.0 GiB in use: steps that touch swapped memory are slow", "lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"}},
		{"no swap for this group", tree{"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mountV2, "/sys/fs/cgroup/memory.swap.max": "0\n"}, nil,
			Check{"", "swap", OK, "none: a step that needs more memory than is available ends the process", ""}},
		{"huge pages always", tree{"/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n"}, nil,
			Check{"", "transparent huge pages", Note, "always: faster page faults, and up to 2 MiB resident where one page was touched",
				"if resident memory matters more than speed: `echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`"}},
		{"arenas", nil, map[string]string{"MALLOC_ARENA_MAX": "2"}, Check{"", "malloc", OK, "of the C library, at most 2 arenas (MALLOC_ARENA_MAX)", ""}},
		{"jemalloc", tree{maps: "7f0-7f1 r-xp 0 08:01 3 /usr/lib/x86_64-linux-gnu/libjemalloc.so.2\n"}, map[string]string{"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": "x:1"},
			Check{"", "malloc", OK, "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", ""}},
		{"jemalloc asked for, and not there", nil, map[string]string{"LD_PRELOAD": "/x.so:/opt/libjemalloc.so.2"},
			Check{"", "malloc", Warning, "of the C library: LD_PRELOAD names /opt/libjemalloc.so.2, which was not loaded",
				"check the path (`ls -l /opt/libjemalloc.so.2`); a program built with CGO_ENABLED=0 preloads nothing"}},
		{"MALLOC_CONF alone", nil, map[string]string{"MALLOC_CONF": "dirty_decay_ms:-1"},
			Check{"", "malloc", Note, "of the C library, which does not read MALLOC_CONF (jemalloc does)",
				"preload jemalloc: `LD_PRELOAD=$(ldconfig -p | awk '/libjemalloc.so.2/ {print $NF; exit}') steadyfit ...`"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, check(t, checkMemory(box(plain.with(c.files), c.env)), c.want.Name))
		})
	}
}
