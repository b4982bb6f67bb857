package tfbind

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// inProcess returns the path of the TensorFlow library that the linker or another binding has
// loaded. It is empty if there is none or the system does not report it.
func inProcess() string {
	maps, err := os.ReadFile("/proc/self/maps") // Linux
	if err != nil {
		return ""
	}
	return mappedLibrary(string(maps))
}

// mappedLibrary finds the library with the C API in the text of /proc/PID/maps.
func mappedLibrary(maps string) string {
	for line := range strings.Lines(maps) {
		// The path is the last field, and may hold blanks.
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

// sameFile reports whether both paths exist and name the same file.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}
