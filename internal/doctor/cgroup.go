package doctor

import (
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"steadyfit/memory"
)

// cgroups are the control groups that hold this process to less than the
// machine has, as far as they can be seen from here: a container sees its own
// group, seldom those above it.
type cgroups struct {
	// limit is the smallest hard memory limit of the process's group and the
	// groups above; limitFile is the file that sets it.
	limit     memory.Reading
	limitFile string
	// left is what can still be taken before a limit is reached. Cached files
	// count as left, since the kernel drops them first.
	left memory.Reading
	// soft is the smallest memory.high, above which the kernel slows the
	// process down; version 2 only.
	soft     memory.Reading
	softFile string
	// swap is the smallest memory.swap.max; version 2 only.
	swap memory.Reading
	// cores is the smallest CPU quota in cores; 0 means none.
	cores     float64
	coresFile string
}

func readCgroups(fsys fs.FS) cgroups {
	var c cgroups
	folders, version := controller(fsys, "memory")
	for _, dir := range folders {
		c.addMemory(fsys, dir, version)
	}
	folders, version = controller(fsys, "cpu")
	for _, dir := range folders {
		c.addCPU(fsys, dir, version)
	}
	return c
}

func (c *cgroups) addMemory(fsys fs.FS, dir string, version int) {
	limitFile, usageFile, cacheName := "memory.max", "memory.current", "inactive_file"
	if version == 1 {
		limitFile, usageFile, cacheName = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
	}
	stat, _ := readText(fsys, path.Join(dir, "memory.stat"))
	if limit := readLimit(fsys, path.Join(dir, limitFile)); limit.OK {
		if lower(limit, c.limit) {
			c.limit, c.limitFile = limit, path.Join(dir, limitFile)
		}
		if usage := readLimit(fsys, path.Join(dir, usageFile)); usage.OK {
			held := max(usage.Bytes-statValue(stat, cacheName).Bytes, 0)
			if left := memory.Known(max(limit.Bytes-held, 0)); lower(left, c.left) {
				c.left = left
			}
		}
	}
	if version == 1 {
		// Says the limit of groups that are above what is mounted here, too.
		if limit := statValue(stat, "hierarchical_memory_limit"); limit.OK && lower(limit, c.limit) {
			c.limit, c.limitFile = limit, path.Join(dir, "memory.stat")
		}
		return
	}
	if soft := readLimit(fsys, path.Join(dir, "memory.high")); lower(soft, c.soft) {
		c.soft, c.softFile = soft, path.Join(dir, "memory.high")
	}
	if swap := readLimit(fsys, path.Join(dir, "memory.swap.max")); lower(swap, c.swap) {
		c.swap = swap
	}
}

func (c *cgroups) addCPU(fsys fs.FS, dir string, version int) {
	file := path.Join(dir, "cpu.max")
	text, _ := readText(fsys, file)
	if version == 1 {
		file = path.Join(dir, "cpu.cfs_quota_us")
		quota, _ := readText(fsys, file)
		period, _ := readText(fsys, path.Join(dir, "cpu.cfs_period_us"))
		text = quota + " " + period
	}
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return
	}
	// "max" and -1 mean no quota; both fail here.
	quota, errQuota := strconv.ParseUint(fields[0], 10, 63)
	period, errPeriod := strconv.ParseUint(fields[1], 10, 63)
	if errQuota != nil || errPeriod != nil || quota == 0 || period == 0 {
		return
	}
	if cores := float64(quota) / float64(period); c.cores == 0 || cores < c.cores {
		c.cores, c.coresFile = cores, file
	}
}

// lower reports whether a is known and below b, where unknown means no limit.
func lower(a, b memory.Reading) bool { return a.OK && (!b.OK || a.Bytes < b.Bytes) }

// unlimited is where the kernel's ways of writing "no limit" begin: version 1
// rounds the largest number down to a whole page.
const unlimited = math.MaxInt64 >> 1

// readLimit reads a file that holds a number of bytes or "max", which is
// unknown here.
func readLimit(fsys fs.FS, file string) memory.Reading {
	text, _ := readText(fsys, file)
	return limitOf(strings.TrimSpace(text))
}

func limitOf(text string) memory.Reading {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n >= unlimited {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(n))
}

// statValue finds "name 123" in the text of memory.stat.
func statValue(stat, name string) memory.Reading {
	for line := range strings.Lines(stat) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key == name {
			return limitOf(value)
		}
	}
	return memory.Reading{}
}

// controller finds the folders that control one resource of this process: its
// own group first, then the groups above it up to the one that is mounted. A
// controller that is mounted as version 1 is not in version 2, so 1 goes first.
func controller(fsys fs.FS, name string) (dirs []string, version int) {
	groups, _ := readText(fsys, "/proc/self/cgroup")
	mounts, _ := readText(fsys, "/proc/self/mountinfo")
	for version = 1; version <= 2; version++ {
		group, ok := groupPath(groups, name, version)
		if !ok {
			continue
		}
		root, point, ok := groupMount(mounts, name, version)
		if !ok {
			continue
		}
		return upwards(group, root, point), version
	}
	return nil, 0
}

// groupPath reads /proc/self/cgroup: "4:memory:/app" in version 1, "0::/app" in
// version 2.
func groupPath(text, name string, version int) (string, bool) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if version == 2 && fields[0] == "0" && fields[1] == "" ||
			version == 1 && slices.Contains(strings.Split(fields[1], ","), name) {
			return fields[2], true
		}
	}
	return "", false
}

// groupMount reads /proc/self/mountinfo: which group is mounted, and where.
func groupMount(text, name string, version int) (root, point string, ok bool) {
	for line := range strings.Lines(text) {
		left, right, found := strings.Cut(line, " - ")
		mount, kind := strings.Fields(left), strings.Fields(right)
		if !found || len(mount) < 5 || len(kind) < 3 {
			continue
		}
		if version == 2 && kind[0] == "cgroup2" ||
			version == 1 && kind[0] == "cgroup" && slices.Contains(strings.Split(kind[2], ","), name) {
			return mount[3], mount[4], true
		}
	}
	return "", "", false
}

// upwards lists the folders from a group up to the mount. In a container that
// shows the host's name of the group, the mount's root is that same name, so
// it is taken off; a group outside the mount is seen as the mount itself.
func upwards(group, root, point string) []string {
	rest := group
	if root != "/" {
		trimmed, within := strings.CutPrefix(group, root)
		if !within || (trimmed != "" && trimmed[0] != '/') {
			trimmed = "/"
		}
		rest = trimmed
	}
	if rest = path.Clean("/" + rest); strings.HasPrefix(group, "/..") {
		rest = "/"
	}
	var dirs []string
	for ; rest != "/"; rest = path.Dir(rest) {
		dirs = append(dirs, path.Join(point, rest))
	}
	return append(dirs, point)
}
