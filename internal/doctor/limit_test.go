package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/internal/cgroup"
	"steadyfit/memory"
)

const (
	mountV2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n32 31 0:29 / " +
		"/sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
	noLimitOfV1 = "9223372036854771712\n"
)

func TestMemoryLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		files tree
		want  Check
	}{
		{"no cgroup", nil, Check{Found: "none below the machine's memory"}},
		{"version 2, max", tree{
			"/proc/self/cgroup": "0::/app\n", "/proc/self/mountinfo": mountV2,
			"/sys/fs/cgroup/app/memory.max": "max\n", "/sys/fs/cgroup/app/memory.current": "1048576\n",
		}, Check{Found: "none below the machine's memory"}},
		{"version 2, in a container's own namespace", tree{
			"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mountV2,
			"/sys/fs/cgroup/memory.max": "4294967296\n", "/sys/fs/cgroup/memory.current": "2147483648\n",
			"/sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 1073741824\nactive_file 536870912\n",
		}, Check{Found: "4.0 GiB, of which 3.5 GiB are left (/sys/fs/cgroup/memory.max)"}},
		{"version 2, the parent's limit is lower", tree{
			"/proc/self/cgroup": "0::/jobs/train\n", "/proc/self/mountinfo": mountV2,
			"/sys/fs/cgroup/jobs/train/memory.max": "8589934592\n", "/sys/fs/cgroup/jobs/train/memory.current": "1073741824\n",
			"/sys/fs/cgroup/jobs/memory.max": "6442450944\n", "/sys/fs/cgroup/jobs/memory.current": "5368709120\n",
		}, Check{Found: "6.0 GiB, of which 1.0 GiB are left (/sys/fs/cgroup/jobs/memory.max)"}},
		{"version 2, the parent is fuller though its limit is higher", tree{
			"/proc/self/cgroup": "0::/jobs/train\n", "/proc/self/mountinfo": mountV2,
			"/sys/fs/cgroup/jobs/train/memory.max": "4294967296\n", "/sys/fs/cgroup/jobs/train/memory.current": "1073741824\n",
			"/sys/fs/cgroup/jobs/memory.max": "8589934592\n", "/sys/fs/cgroup/jobs/memory.current": "7969177600\n",
		}, Check{Status: Warning, Found: "4.0 GiB, of which 592.0 MiB are left (/sys/fs/cgroup/jobs/train/memory.max)",
			Fix: "raise the limit (`docker run --memory 4g`, resources.limits.memory in Kubernetes, `systemd-run -p MemoryMax=4G`), or lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"}},
		{"version 2, too little", tree{
			"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mountV2, "/sys/fs/cgroup/memory.max": "268435456\n",
		}, Check{Status: Problem, Found: "256.0 MiB, of which unknown are left (/sys/fs/cgroup/memory.max)",
			Fix: "raise the limit (`docker run --memory 4g`, resources.limits.memory in Kubernetes, `systemd-run -p MemoryMax=4G`), or lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"}},
		{"version 2, above what the machine has", tree{
			"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mountV2, "/sys/fs/cgroup/memory.max": "68719476736\n",
		}, Check{Found: "none below the machine's memory"}},
		{"version 2, the group is outside the mount", tree{
			"/proc/self/cgroup": "0::/../other\n", "/proc/self/mountinfo": mountV2, "/sys/fs/cgroup/memory.max": "4294967296\n",
			"/sys/fs/cgroup/memory.current": "0\n",
		}, Check{Found: "4.0 GiB, of which 4.0 GiB are left (/sys/fs/cgroup/memory.max)"}},
		{"version 1, no limit", tree{
			"/proc/self/cgroup": "4:memory:/app\n1:cpu,cpuacct:/app\n", "/proc/self/mountinfo": mountV1,
			"/sys/fs/cgroup/memory/app/memory.limit_in_bytes": noLimitOfV1,
			"/sys/fs/cgroup/memory/memory.limit_in_bytes":     noLimitOfV1,
		}, Check{Found: "none below the machine's memory"}},
		{"version 1, with version 2 mounted for other things", tree{
			"/proc/self/cgroup": "9:name=systemd:/\n4:memory:/app\n0::/\n",
			"/proc/self/mountinfo": mountV1 +
				"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"/sys/fs/cgroup/memory/app/memory.limit_in_bytes": "3221225472\n",
			"/sys/fs/cgroup/memory/app/memory.usage_in_bytes": "1610612736\n",
			"/sys/fs/cgroup/memory/app/memory.stat": "inactive_file 5\ntotal_inactive_file " +
				"536870912\nhierarchical_memory_limit 3221225472\n",
		}, Check{Found: "3.0 GiB, of which 2.0 GiB are left (/sys/fs/cgroup/memory/app/memory.limit_in_bytes)"}},
		{"version 1, Docker with the host's name of the group", tree{
			"/proc/self/cgroup": "4:memory:/docker/abc\n",
			"/proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup " +
				"rw,memory\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n", "/sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
		}, Check{Found: "2.0 GiB, of which 2.0 GiB are left (/sys/fs/cgroup/memory/memory.limit_in_bytes)"}},
		{"version 1, a limit above what is mounted", tree{
			"/proc/self/cgroup": "4:memory:/pod/abc\n",
			"/proc/self/mountinfo": "35 31 0:32 /pod/abc /sys/fs/cgroup/memory ro - cgroup cgroup " +
				"rw,memory\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes": noLimitOfV1,
			"/sys/fs/cgroup/memory/memory.stat":           "hierarchical_memory_limit 2147483648\n",
		}, Check{Found: "2.0 GiB, of which unknown are left (/sys/fs/cgroup/memory/memory.stat)"}},
		{"garbage", tree{
			"/proc/self/cgroup": "0::/\nnonsense\n", "/proc/self/mountinfo": "short - cgroup2\n" + mountV2,
			"/sys/fs/cgroup/memory.max": "-17\n", "/sys/fs/cgroup/cpu.max": "x y\n",
		}, Check{Found: "none below the machine's memory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Name = "limit"
			assert.Equal(t, c.want, memoryLimit(cgroup.ReadMemory(c.files.fs(), "self"), memory.Known(16*memory.GiB)))
		})
	}
}

func TestCores(t *testing.T) {
	for _, c := range []struct {
		name  string
		files tree
		env   map[string]string
		want  Check
	}{
		{"no quota", nil, nil, Check{Found: "8 usable"}},
		{"version 2", tree{"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mountV2,
			"/sys/fs/cgroup/cpu.max": "150000 100000\n"}, nil,
			Check{Status: Warning, Found: "8 usable, quota of 1.5 cores (/sys/fs/cgroup/cpu.max); TensorFlow ignores it and " +
				"starts 8 threads per pool",
				Fix: "`steadyfit fit --intra-threads 2 --inter-threads 2`, or TF_NUM_INTRAOP_THREADS=2 TF_NUM_INTEROP_THREADS=2"}},
		{"version 2, heeded", tree{"/proc/self/cgroup": "0::/\n", "/proc/self/mountinfo": mountV2,
			"/sys/fs/cgroup/cpu.max": "200000 100000\n"},
			map[string]string{"TF_NUM_INTRAOP_THREADS": "2"},
			Check{Found: "8 usable, quota of 2 cores (/sys/fs/cgroup/cpu.max)"}},
		{"version 2, the parent's quota is lower", tree{
			"/proc/self/cgroup": "0::/a/b\n", "/proc/self/mountinfo": mountV2,
			"/sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "/sys/fs/cgroup/a/cpu.max": "400000 100000\n"},
			map[string]string{"TF_NUM_INTRAOP_THREADS": "4"},
			Check{Found: "8 usable, quota of 4 cores (/sys/fs/cgroup/a/cpu.max)"}},
		{"version 1", tree{
			"/proc/self/cgroup": "1:cpu,cpuacct:/app\n", "/proc/self/mountinfo": mountV1,
			"/sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us":  "50000\n",
			"/sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us": "100000\n",
			"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":      "-1\n", "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
			map[string]string{"TF_NUM_INTRAOP_THREADS": "1"},
			Check{Found: "8 usable, quota of 0.5 cores (/sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := box(plain.with(c.files), c.env)
			c.want.Name = "cores"
			assert.Equal(t, c.want, cores(m))
		})
	}
}
