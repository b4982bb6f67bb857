package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"steadyfit/internal/files"
	"steadyfit/savedmodels"
)

// versionPrefix begins the name of the folder in which a version is written.
const versionPrefix = ".version-"

// SaveVersion writes the model of SaveModel to a new folder dir/N and returns its path. N is one more
// than the largest number in dir. Readers such as TensorFlow Serving see only complete versions:
// SaveVersion writes the files to a hidden folder, syncs them, and renames it. Several processes may
// write to the same dir.
//
// SaveVersion removes no version. It removes what killed processes left, on a file system with locks.
//
// Each complete function is called with the folder of the files before it is published. After
// an error, path is empty unless the version was published.
func (s *Session) SaveVersion(ctx context.Context, dir string, complete ...func(dir string) error) (path string,
	err error) {
	if err := replaceableVersions(dir); err != nil {
		return "", err
	}
	path, err = s.writeVersion(ctx, dir, complete)
	return path, s.modelError(dir, err)
}

func (s *Session) writeVersion(ctx context.Context, dir string, complete []func(string) error) (path string,
	err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	temp, remove, err := files.ScratchIn(dir, versionPrefix)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, remove()) }()
	whole := filepath.Join(temp, "new")
	if err = s.writeFiles(ctx, whole, complete); err == nil {
		path, err = publish(whole, dir)
	}
	if err != nil {
		return "", err
	}
	return path, files.SyncPath(dir)
}

// publish renames a complete folder to the next number in dir. The rename fails if another process has
// taken that number. Any file or folder whose name is a number counts, even if it is not a version.
func publish(whole, dir string) (string, error) {
	for {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return "", err
		}
		largest := uint64(0)
		for _, e := range entries {
			if n, err := strconv.ParseUint(e.Name(), 10, 63); err == nil {
				largest = max(largest, n)
			}
		}
		path := filepath.Join(dir, strconv.FormatUint(largest+1, 10))
		if err = os.Rename(whole, path); !errors.Is(err, fs.ErrExist) {
			return path, err
		}
	}
}

// replaceableVersions rejects a folder that is a SavedModel.
func replaceableVersions(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "saved_model.pb")); err == nil {
		return fmt.Errorf("save a version in %s: the folder is a SavedModel; choose the folder that has the versions", dir)
	}
	return nil
}

// CheckVersions reports early what SaveVersion would report at the end of a run, and removes the temporary
// folders of killed processes in dir. It returns the same errors as CheckOutput.
func CheckVersions(dir string, model *savedmodels.Model) error {
	if model == nil {
		return errNoModel
	}
	if err := replaceableVersions(dir); err != nil {
		return err
	}
	files.ClearScratch(dir, versionPrefix)
	return checkSpace(dir, dir, model)
}
