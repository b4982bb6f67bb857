package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/files"
	"steadyfit/memory"
)

const (
	// tight is too little for any training: opening TensorFlow alone makes 0.3 GiB resident.
	tight = 512 * memory.MiB
	// scarce is less than the peak of a small image model.
	scarce = memory.GiB
	// Less disk space than little may not suffice for a few checkpoints of a small model, and
	// less than full not for a single one.
	little = 2 * memory.GiB
	full   = 100 * memory.MiB
)

const lessMemory = "lower the need with a smaller `steadyfit fit --batch N`, or stop what else runs here"

// short returns the status for the amount that is left; OK if it is unknown.
func short(left memory.Reading, problem, warning memory.Bytes) Status {
	switch {
	case left.OK && left.Bytes < problem:
		return Problem
	case left.OK && left.Bytes < warning:
		return Warning
	}
	return OK
}

// graded returns a check whose fix depends on its status.
func graded(name string, status Status, found, fix string) Check {
	if status == OK {
		fix = ""
	}
	return Check{Name: name, Status: status, Found: found, Fix: fix}
}

func checkMemory(m machine) []Check {
	groups := cgroup.ReadMemory(m.fs, "self")
	info, _ := m.readText("/proc/meminfo")
	total, available := meminfo(info, "MemTotal"), meminfo(info, "MemAvailable")
	checks := []Check{machineMemory(total, available), memoryLimit(groups, total)}
	if high := groups.High; below(high, total) && !(groups.Limit.Known() && groups.Limit.Bytes < high.Bytes) {
		checks = append(checks, warning("soft limit", fmt.Sprintf("%v (%s): above it the kernel slows the process down", memory.Bytes(high.Bytes), high.File),
			"raise it to the hard limit: `systemctl set-property UNIT MemoryHigh=infinity`, or have the container's owner do it"))
	}
	if limit, limited := addressSpace(m); limited {
		checks = append(checks, warning("address space", fmt.Sprintf("limited to %v: TensorFlow maps more than it uses, and may fail to load", limit),
			"`ulimit -v unlimited`, and limit memory with a cgroup instead"))
	}
	return append(checks, swapSpace(info, groups), hugePages(m), allocator(m))
}

// meminfo parses a line "Name:   123 kB", whose unit is 1024 bytes.
func meminfo(text, name string) memory.Reading {
	n, err := strconv.ParseInt(strings.TrimSuffix(field(text, name), " kB"), 10, 53)
	return memory.Reading{Bytes: memory.Bytes(n) * memory.KiB, OK: err == nil}
}

func machineMemory(total, available memory.Reading) Check {
	if !total.OK && !available.OK {
		return note("machine", "unknown: this system has no /proc/meminfo", "")
	}
	return graded("machine", short(available, tight, scarce), fmt.Sprintf("%v, of which %v are available", total, available), lessMemory)
}

func memoryLimit(g cgroup.Memory, total memory.Reading) Check {
	if !below(g.Limit, total) {
		return ok("limit", "none below the machine's memory")
	}
	limit, left := reading(g.Limit), reading(g.Left)
	found := fmt.Sprintf("%v, of which %v are left (%s)", limit, left, g.Limit.File)
	if !left.OK {
		left = limit
	}
	return graded("limit", short(left, tight, scarce), found,
		"raise the limit (`docker run --memory 4g`, resources.limits.memory in Kubernetes, `systemd-run -p MemoryMax=4G`), or "+lessMemory)
}

// below reports whether a is known and less than total. An unknown total counts as infinite.
func below(a cgroup.Amount, total memory.Reading) bool {
	return a.Known() && (!total.OK || a.Bytes < int64(total.Bytes))
}

func reading(a cgroup.Amount) memory.Reading {
	return memory.Reading{Bytes: memory.Bytes(a.Bytes), OK: a.Known()}
}

// addressSpace returns the limit of ulimit -v. TensorFlow maps far more than it uses: its
// libraries alone take 0.85 GB.
func addressSpace(m machine) (limit memory.Bytes, limited bool) {
	text, _ := m.readText("/proc/self/limits")
	_, rest, _ := strings.Cut(text, "Max address space")
	if fields := strings.Fields(rest); len(fields) > 0 {
		n, err := strconv.ParseInt(fields[0], 10, 64)
		return memory.Bytes(n), err == nil
	}
	return 0, false
}

func swapSpace(info string, g cgroup.Memory) Check {
	total, free := meminfo(info, "SwapTotal"), meminfo(info, "SwapFree")
	switch {
	case !total.OK:
		return note("swap", "unknown", "")
	case total.Bytes == 0, g.Swap.Known() && g.Swap.Bytes == 0:
		return ok("swap", "none: a step that needs more memory than is available ends the process")
	case free.OK && total.Bytes-free.Bytes > scarce:
		return warning("swap", fmt.Sprintf("%v of %v in use: steps that touch swapped memory are slow", total.Bytes-free.Bytes, total), lessMemory)
	}
	return ok("swap", fmt.Sprintf("%v, free %v", total, free))
}

func hugePages(m machine) Check {
	const name, file = "transparent huge pages", "/sys/kernel/mm/transparent_hugepage/enabled"
	text, _ := m.readText(file)
	_, mode, _ := strings.Cut(text, "[")
	switch mode, _, closed := strings.Cut(mode, "]"); {
	case !closed:
		return note(name, "unknown", "")
	case mode == "always":
		return note(name, "always: faster page faults, and up to 2 MiB resident where one page was touched",
			"if resident memory matters more than speed: `echo madvise | sudo tee "+file+"`")
	default:
		return ok(name, mode)
	}
}

// allocator determines the malloc of the process. LD_PRELOAD names the requested one, and the
// memory map shows the loaded one.
func allocator(m machine) Check {
	const name = "malloc"
	c := ok(name, "of the C library")
	if arenas := m.env["MALLOC_ARENA_MAX"]; arenas != "" {
		c.Found += ", at most " + arenas + " arenas (MALLOC_ARENA_MAX)"
	}
	maps, known := m.readText("/proc/self/maps")
	for line := range strings.Lines(maps) {
		// The path is the last field, and may hold blanks.
		if start := strings.IndexByte(line, '/'); start >= 0 && isReplacement(strings.TrimSpace(line[start:])) {
			return ok(name, strings.TrimSpace(line[start:]))
		}
	}
	preload := strings.FieldsFunc(m.env["LD_PRELOAD"], func(r rune) bool { return r == ':' || r == ' ' })
	asked := slices.IndexFunc(preload, isReplacement)
	switch {
	case asked >= 0 && known:
		return warning(name, "of the C library: LD_PRELOAD names "+preload[asked]+", which was not loaded",
			"check the path (`ls -l "+preload[asked]+"`); a program built with CGO_ENABLED=0 preloads nothing")
	case m.env["MALLOC_CONF"] != "":
		return note(name, "of the C library, which does not read MALLOC_CONF (jemalloc does)",
			"preload jemalloc: `LD_PRELOAD=$(ldconfig -p | awk '/libjemalloc.so.2/ {print $NF; exit}') steadyfit ...`")
	}
	return c
}

// isReplacement reports whether a library is an allocator that is commonly preloaded.
func isReplacement(file string) bool {
	name := path.Base(file)
	return strings.Contains(name, ".so") && slices.ContainsFunc([]string{"jemalloc", "tcmalloc", "mimalloc"}, func(r string) bool { return strings.Contains(name, r) })
}

// folder is a folder to which training writes.
type folder struct{ name, path, fix string }

// space is the free space of a file system for this process.
type space struct {
	free     memory.Reading
	writable bool
}

func folders(env map[string]string) (found []folder) {
	work, _ := os.Getwd() // a working directory that was removed has no path
	temp, cache := env["TMPDIR"], env["XDG_CACHE_HOME"]
	if temp == "" {
		temp = "/tmp"
	}
	if cache == "" && env["HOME"] != "" {
		cache = filepath.Join(env["HOME"], ".cache")
	}
	for _, f := range []folder{
		{"working folder", work, "write elsewhere with --out DIR and --checkpoints DIR, or free space there"},
		{"temporary files", temp, "set TMPDIR to a folder with free space, or free space there"},
		{"cache", cache, "set XDG_CACHE_HOME to a folder with free space, or free space there"},
	} {
		if f.path == "" {
			continue
		}
		if abs, err := filepath.Abs(f.path); err == nil {
			f.path = abs
		}
		found = append(found, f)
	}
	return found
}

func checkDisk(m machine) (checks []Check) {
	for _, f := range m.folders {
		checks = append(checks, checkFolder(f, m.space))
	}
	return checks
}

func checkFolder(f folder, ask func(string) (space, error)) Check {
	dir := f.path
	s, err := ask(dir)
	// A folder that does not exist yet will be created in its parent.
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		dir = filepath.Dir(dir)
		s, err = ask(dir)
	}
	switch {
	case err != nil:
		return note(f.name, fmt.Sprintf("%s: unknown: %s", f.path, err), "")
	case !s.writable:
		return warning(f.name, f.path+": not writable", f.fix)
	}
	return graded(f.name, short(s.free, full, little), fmt.Sprintf("%s: %v free", f.path, s.free), f.fix)
}

func diskSpace(dir string) (space, error) {
	if _, err := os.Stat(dir); err != nil {
		return space{}, err
	}
	free, ok := files.FreeSpace(dir)
	return space{memory.Reading{Bytes: memory.Bytes(free), OK: ok}, files.MayWrite(dir)}, nil
}
