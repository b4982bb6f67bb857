package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"steadyfit/internal/files"
	"steadyfit/internal/manifest"
	"steadyfit/savedmodels"
)

// Versions configure SaveVersion.
type Versions struct {
	// Dir is the folder of the versions.
	Dir string
	// Training identifies a training that a restarted process continues. If Dir has a version of
	// the same training, SaveVersion returns it instead of writing another one. If Training is
	// empty, SaveVersion always writes one.
	Training string
}

// versionPrefix begins the name of the folder in which a version is written.
const versionPrefix = ".version-"

// SaveVersion writes the model of SaveModel to a new folder Dir/N and returns its path. N is one more
// than the largest number in Dir. Readers such as TensorFlow Serving see only complete versions:
// SaveVersion writes the files to a hidden folder, syncs them, and renames it. Several processes may
// write to the same Dir.
//
// SaveVersion removes no version. It removes what killed processes left, on a file system with locks.
//
// Each complete function is called with the folder of the files before it is published. After
// an error, path is empty unless the version was published.
func (s *Session) SaveVersion(ctx context.Context, v Versions, complete ...func(dir string) error) (path string,
	err error) {
	if err := v.replaceable(s.model.Dir); err != nil {
		return "", err
	}
	path, err = s.writeVersion(ctx, v, complete)
	return path, s.modelError(v.Dir, err)
}

func (s *Session) writeVersion(ctx context.Context, v Versions, complete []func(string) error) (path string,
	err error) {
	if err := os.MkdirAll(v.Dir, 0o777); err != nil {
		return "", err
	}
	temp, remove, err := files.ScratchIn(v.Dir, versionPrefix)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if path, err = v.written(); err == nil && path == "" {
		whole := filepath.Join(temp, "new")
		var sums *manifest.Manifest
		if sums, err = s.writeFiles(ctx, whole, complete); err == nil {
			path, err = v.publish(sums, whole)
		}
	}
	if err != nil {
		return "", err
	}
	return path, files.SyncPath(v.Dir)
}

// written returns the path of the version that the training v.Training has written; empty if there
// is none.
func (v Versions) written() (string, error) {
	if v.Training == "" {
		return "", nil
	}
	found, err := savedmodels.Versions(v.Dir)
	for _, version := range found {
		// The number distinguishes a version from its copies.
		if m, err := manifest.Read(version.Path); err == nil && m.Version == version.Number && m.Training == v.Training {
			return version.Path, nil
		}
	}
	return "", err
}

// publish renames a complete folder to the next number. The rename fails if another process has
// taken that number. Any file or folder whose name is a number counts, even if it is not a version.
func (v Versions) publish(sums *manifest.Manifest, whole string) (string, error) {
	for {
		entries, err := os.ReadDir(v.Dir)
		if err != nil {
			return "", err
		}
		largest := uint64(0)
		for _, e := range entries {
			if n, err := strconv.ParseUint(e.Name(), 10, 63); err == nil {
				largest = max(largest, n)
			}
		}
		if largest == math.MaxInt64 {
			return "", fmt.Errorf("%s has the number %d, and there is no larger one; rename it", v.Dir, largest)
		}
		next := int64(largest) + 1
		sums.Origin = manifest.Origin{Version: next, Training: v.Training}
		err = sums.Write(whole)
		if err == nil {
			err = files.SyncTree(whole)
		}
		path := filepath.Join(v.Dir, strconv.FormatInt(next, 10))
		if err == nil {
			err = os.Rename(whole, path)
		}
		if !errors.Is(err, fs.ErrExist) {
			return path, err
		}
	}
}

// replaceable rejects a Dir that is a SavedModel or inside the folder of the session's model.
func (v Versions) replaceable(model string) error {
	if _, err := os.Stat(filepath.Join(v.Dir, "saved_model.pb")); err == nil {
		return fmt.Errorf("save a version in %s: the folder is a SavedModel; choose the folder that has the versions", v.Dir)
	}
	if err := outside(v.Dir, model); err != nil {
		return fmt.Errorf("save a version in %s: %w", v.Dir, err)
	}
	return nil
}

// Check reports early what SaveVersion would report at the end of a run, and removes the temporary
// folders of killed processes in Dir. It returns the same errors as CheckOutput.
func (v Versions) Check(model *savedmodels.Model) error {
	if model == nil {
		return errNoModel
	}
	if err := v.replaceable(model.Dir); err != nil {
		return err
	}
	files.ClearScratch(v.Dir, versionPrefix)
	return checkSpace(v.Dir, v.Dir, model)
}
