package tflibrary

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"steadyfit/internal/files"
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

// leastSpace is the address space for TensorFlow and the smallest models. With 2.9 GiB, TensorFlow 2.21 aborted.
const leastSpace = 4 << 30

// checkProcess returns an error where TensorFlow would end the process instead of returning one.
func checkProcess() error {
	for _, path := range []string{"/proc/self/exe", "/dev/urandom"} {
		if _, err := os.Lstat(path); err != nil {
			return &LoadError{Problem: fmt.Sprintf("TensorFlow aborts without %s: mount /proc and /dev: %v", path, err)}
		}
	}
	var space syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &space); err == nil && space.Cur < leastSpace {
		return &LoadError{Problem: fmt.Sprintf("the limit of the address space (ulimit -v) is %.1f GiB, and TensorFlow "+
			"needs at least %d GiB: raise it (ulimit -v unlimited)", float64(space.Cur)/(1<<30), leastSpace>>30)}
	}
	return nil
}

// Choose works like Locate, but if the process has loaded a TensorFlow, it returns that one or an
// error. A second TensorFlow, even a copy of the same file, aborts the process while it is opened.
func Choose(path string) (Location, error) {
	if err := checkProcess(); err != nil {
		return Location{}, err
	}
	there := inProcess()
	if there == "" {
		return Locate(path)
	}
	if path == "" && os.Getenv(EnvLibrary) == "" {
		l, reason := pair(there)
		if reason != "" {
			return Location{}, &LoadError{Problem: "this process has loaded " + there + ", which cannot be used: " + reason}
		}
		l.Source = "this process"
		return l, nil
	}
	l, err := Locate(path)
	if err == nil && !files.Same(l.Library, there) {
		return Location{}, &LoadError{
			Problem: fmt.Sprintf("%s names %s, but the program or another binding has already loaded %s", l.Source, l.Library,
				there),
			Fix: "a process can load only one TensorFlow: name the loaded one or none, or make the other binding use " +
				"this one",
		}
	}
	return l, err
}

// Supported reports whether a version of TensorFlow is supported.
func Supported(v string) bool {
	number := func(v string) int {
		major, minor := 0, 0
		if _, err := fmt.Sscanf(v, "%d.%d", &major, &minor); err != nil {
			return -1
		}
		return major*1000 + minor
	}
	n := number(v)
	return n >= number(MinVersion) && n <= number(MaxVersion)
}
