// Package allocator finds the libraries that replace malloc where they are preloaded.
package allocator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Jemalloc is the name of jemalloc.
const Jemalloc = "jemalloc"

// JemallocKeeps is the value of MALLOC_CONF with which jemalloc keeps freed memory, large
// blocks included, so that a step does not fault its pages in again.
const JemallocKeeps = "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"

// ErrUnknown: no allocator of that name.
var ErrUnknown = errors.New("unknown allocator")

// Library is an allocator that can be preloaded.
type Library struct {
	// File is its file name, Package its Debian package, and Variables the prefix of the
	// environment variables that it reads.
	File, Package, Variables string
}

// Libraries are by the name of the allocator.
var Libraries = map[string]Library{
	Jemalloc:   {"libjemalloc.so.2", "libjemalloc2", "MALLOC_CONF"},
	"tcmalloc": {"libtcmalloc_minimal.so.4", "libtcmalloc-minimal4", "TCMALLOC_"},
	"mimalloc": {"libmimalloc.so.2", "libmimalloc2.0", "MIMALLOC_"},
}

// folders are the library folders of distributions.
var folders = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"}

// Find finds the library of an allocator on the system.
func Find(name string) (path string, err error) {
	a, ok := Libraries[name]
	if !ok {
		return "", fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	all := append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), folders...)
	for _, folder := range all {
		path := filepath.Join(folder, a.File)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s in %s; install it (Debian: apt-get install %s), or put its folder into LD_LIBRARY_PATH",
		a.File, strings.Join(all, ", "), a.Package)
}
