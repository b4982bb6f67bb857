package savedmodels

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"steadyfit/internal/manifest"
)

// Version is a SavedModel in a folder of versions.
type Version struct {
	Number int64
	Path   string
}

// Versions returns the versions in a folder, oldest first: the folders whose names are numbers, as
// TensorFlow Serving reads them, and that have a SavedModel or the manifest of one. A folder that does
// not exist has none.
func Versions(dir string) ([]Version, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("versions: %w", err)
	}
	var found []Version
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if n, err := strconv.ParseUint(e.Name(), 10, 63); err == nil &&
			(exists(filepath.Join(path, modelFile)) || exists(filepath.Join(path, manifest.Name))) {
			found = append(found, Version{int64(n), path})
		}
	}
	slices.SortFunc(found, func(a, b Version) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Path, b.Path))
	})
	return found, nil
}
