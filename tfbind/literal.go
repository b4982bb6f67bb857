package tfbind

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Literal returns a path that TensorFlow does not read as a pattern. path is a prefix of files, or a folder
// with a slash at its end. RestoreV2 expands patterns, and so does not find files that SaveV2 wrote below a
// folder such as a[1]. The literal path replaces the folder by its file descriptor, which is open until release
// is called.
func Literal(path string) (literal string, release func(), err error) {
	const pattern = `*?[\`
	if !strings.ContainsAny(path, pattern) || strings.Contains(path, "://") {
		return path, func() {}, nil
	}
	dir, base := filepath.Split(path)
	if strings.ContainsAny(base, pattern) {
		return "", nil, fmt.Errorf("%s: TensorFlow cannot read files whose names have any of %s; rename them", path, pattern)
	}
	f, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return "", nil, err
	}
	literal = fmt.Sprintf("/proc/self/fd/%d/", f.Fd())
	if _, err := os.Stat(literal); err != nil {
		_ = f.Close()
		return "", nil, fmt.Errorf("%s: TensorFlow cannot read paths with any of %s without /proc: %w", path, pattern, err)
	}
	return literal + base, func() { _ = f.Close() }, nil
}
