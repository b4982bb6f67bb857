package tfprocess

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Jemalloc is a name for FindAllocator.
const Jemalloc = "jemalloc"

// Mmap is glibc's malloc with TensorFlow's large blocks in mappings of their own, which return to the
// system when they are freed. MmapThreshold is the size of a large block, as in oneDNN's pool.
const (
	Mmap          = "mmap"
	MmapThreshold = 256 << 10
)

// JemallocKeeps is a value of MALLOC_CONF that makes jemalloc keep freed memory, so that each step does
// not fault in its pages again.
const JemallocKeeps = "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"

// ErrUnknownAllocator means that no allocator has the given name.
var ErrUnknownAllocator = errors.New("unknown allocator")

// Allocator is a malloc library that can be preloaded.
type Allocator struct {
	// File is the file name, Package the Debian package, and Variables the prefix of environment
	// variables that the library reads.
	File, Package, Variables string
}

// Allocators maps the names of allocators to libraries.
var Allocators = map[string]Allocator{
	Jemalloc:   {"libjemalloc.so.2", "libjemalloc2", "MALLOC_CONF"},
	"tcmalloc": {"libtcmalloc_minimal.so.4", "libtcmalloc-minimal4", "TCMALLOC_"},
	"mimalloc": {"libmimalloc.so.2", "libmimalloc2.0", "MIMALLOC_"},
}

var folders = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
	"/usr/local/lib"}

// FindAllocator returns the path of an allocator's library on this system.
func FindAllocator(name string) (path string, err error) {
	a, ok := Allocators[name]
	if !ok {
		return "", fmt.Errorf("%w: %q", ErrUnknownAllocator, name)
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
