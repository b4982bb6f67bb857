package matrix

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// allocators are the libraries that can be preloaded, with the Debian package that
// has each, and how the variables begin that it reads.
var allocators = map[string]struct{ library, pkg, variables string }{
	"jemalloc": {"libjemalloc.so.2", "libjemalloc2", "MALLOC_CONF"},
	"tcmalloc": {"libtcmalloc_minimal.so.4", "libtcmalloc-minimal4", "TCMALLOC_"},
	"mimalloc": {"libmimalloc.so.2", "libmimalloc2.0", "MIMALLOC_"},
}

// libraryFolders are where distributions keep libraries.
var libraryFolders = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"}

// findAllocator finds the library of an allocator on the system.
func findAllocator(name string) (string, error) {
	a, ok := allocators[name]
	if !ok {
		return "", fmt.Errorf("%w: allocator %q", ErrUnknown, name)
	}
	folders := append(filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), libraryFolders...)
	for _, folder := range folders {
		path := filepath.Join(folder, a.library)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s in %s; install it (Debian: apt-get install %s), or put its folder into LD_LIBRARY_PATH",
		a.library, strings.Join(folders, ", "), a.pkg)
}
