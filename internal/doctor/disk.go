package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"steadyfit/memory"
)

// folder is a place that something is written to.
type folder struct{ name, path, fix string }

// space is what a file system has left for this process.
type space struct {
	free     memory.Reading
	writable bool
}

const (
	// little holds a few checkpoints of a small model.
	little = 2 * memory.GiB
	// full does not hold one.
	full = 100 * memory.MiB
)

func folders(env map[string]string, work string) []folder {
	temp := env["TMPDIR"]
	if temp == "" {
		temp = "/tmp"
	}
	var found []folder
	if work == "" {
		// A working directory that was removed has no path; there is nothing to check then.
		work, _ = os.Getwd()
	}
	if work != "" {
		found = append(found, folder{"working folder", absolute(work), "write elsewhere with --out DIR and --checkpoints DIR, or make room there"})
	}
	found = append(found, folder{"temporary files", absolute(temp), "set TMPDIR to a folder with room, or make room there"})
	cache := env["XDG_CACHE_HOME"]
	if cache == "" && env["HOME"] != "" {
		cache = filepath.Join(env["HOME"], ".cache")
	}
	if cache != "" {
		found = append(found, folder{"cache", absolute(cache), "set XDG_CACHE_HOME to a folder with room, or make room there"})
	}
	return found
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func checkDisk(m machine) []Check {
	var checks []Check
	for _, f := range m.folders {
		checks = append(checks, checkFolder(f, m.space))
	}
	return checks
}

func checkFolder(f folder, ask func(string) (space, error)) Check {
	c := Check{Name: f.name}
	dir := f.path
	s, err := ask(dir)
	// A folder that is made at need is as good as the one it will be made in.
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		dir = filepath.Dir(dir)
		s, err = ask(dir)
	}
	if err != nil {
		c.Status, c.Found = Note, fmt.Sprintf("%s: unknown: %s", f.path, err)
		return c
	}
	c.Found = fmt.Sprintf("%s: %v free", f.path, s.free)
	switch {
	case !s.writable:
		c.Status, c.Found, c.Fix = Warning, f.path+": not writable", f.fix
	case s.free.OK && s.free.Bytes < full:
		c.Status, c.Fix = Problem, f.fix
	case s.free.OK && s.free.Bytes < little:
		c.Status, c.Fix = Warning, f.fix
	}
	return c
}
