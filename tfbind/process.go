package tfbind

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// inProcess returns the path of a TensorFlow library that the linker or another binding has
// loaded. It is empty if there is none, or on a system other than Linux.
func inProcess() string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	return mappedLibrary(string(maps))
}

// mappedLibrary finds the library with the C API in the content of /proc/PID/maps.
func mappedLibrary(maps string) string {
	for line := range strings.Lines(maps) {
		// The path is the last field. It may contain spaces.
		start := strings.IndexByte(line, '/')
		if start < 0 {
			continue
		}
		path := strings.TrimSpace(line[start:])
		if name := filepath.Base(path); slices.ContainsFunc(libraryNames, func(known string) bool {
			return name == known || strings.HasPrefix(name, known+".")
		}) {
			return path
		}
	}
	return ""
}

func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}
