package savedmodels

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"steadyfit/internal/manifest"
)

// DamagedError lists the files of a SavedModel that differ from its manifest: those that are
// Missing, those that are Extra, and those whose content Differs.
type DamagedError = manifest.Damage

// Verify reads all files of a SavedModel that session.Session.SaveModel or SaveVersion wrote, and
// compares them with its manifest, the file SHA256SUMS. It returns the number of files. The error is
// a *DamagedError if files differ. A folder without a manifest is an error, too.
func Verify(ctx context.Context, dir string) (n int, err error) {
	m, err := manifest.Read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, missing := os.Stat(dir); missing != nil {
			return 0, fmt.Errorf("verify: %w", missing)
		}
		err = fmt.Errorf("there is no %s in %s; save the model with this version of steadyfit to write one", manifest.Name, dir)
	}
	if err == nil {
		err = m.Verify(ctx, dir)
	}
	if err == nil || errors.As(err, new(*DamagedError)) {
		return len(m.Sums), err
	}
	return 0, fmt.Errorf("verify: %w", err)
}

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
		if n, err := strconv.ParseUint(e.Name(), 10, 63); err == nil && (exists(filepath.Join(path, modelFile)) || exists(filepath.Join(path, manifest.Name))) {
			found = append(found, Version{int64(n), path})
		}
	}
	slices.SortFunc(found, func(a, b Version) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Path, b.Path))
	})
	return found, nil
}
