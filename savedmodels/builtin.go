package savedmodels

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// A pattern without a wildcard skips files whose names begin with a dot or an underscore, such
// as an exporter's temporary files.
//
//go:embed builtin
var builtinFS embed.FS

const (
	builtinRoot = "builtin"
	archiveExt  = ".zip"
)

// BuiltinNames returns the sorted names of the models that are part of this module. Models named
// digits* are for the built-in data; the others are for measurements.
func BuiltinNames() []string { return builtinNames(builtinFS) }

func builtinNames(files fs.FS) []string {
	names := []string{}
	entries, err := fs.ReadDir(files, builtinRoot)
	if err != nil {
		return names
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), archiveExt); ok {
			names = append(names, name)
			continue
		}
		if _, err := fs.Stat(files, path.Join(builtinRoot, e.Name(), modelFile)); err == nil {
			names = append(names, e.Name())
		}
	}
	// ReadDir sorts names with extensions, so the names without them may be out of order.
	slices.Sort(names)
	return names
}

// Builtin opens a model that is part of this module.
// TensorFlow reads models from files, so Builtin writes the model to the folder
// steadyfit/models/NAME-HASH of the user's cache, unless that folder exists.
// If the cache is not writable, Builtin writes to a private folder under os.TempDir and never
// removes it. The largest model, image-224, takes 63 MB. Several processes may call Builtin at
// once.
func Builtin(name string, tags ...string) (*Model, error) {
	var cache string
	if dir, err := os.UserCacheDir(); err == nil {
		cache = filepath.Join(dir, "steadyfit", "models")
	}
	dir, err := materialise(builtinFS, name, cache)
	if err != nil {
		return nil, err
	}
	return Open(dir, tags...)
}

// materialise writes a model to cache, or else to privateFolder, and returns the model's folder.
func materialise(builtins fs.FS, name, cache string) (string, error) {
	model, hash, err := builtinFiles(builtins, name)
	if err != nil {
		return "", err
	}
	folder := name + "-" + hash[:16]
	if cache != "" {
		dir, err := install(cache, folder, model)
		if err == nil {
			return dir, nil
		}
	}
	parent, err := privateFolder()
	if err == nil {
		folder, err = install(parent, folder, model)
	}
	if err != nil {
		return "", fmt.Errorf("built-in model %s: no folder is writable: %w", name, err)
	}
	return folder, nil
}

// privateFolder makes one folder per process. Its name is random: another user could create a
// folder with a fixed name first.
var privateFolder = sync.OnceValues(func() (string, error) {
	return os.MkdirTemp("", "steadyfit-models-")
})

var errUnknownBuiltin = errors.New("no such built-in model")

// builtinFiles returns the files of a model, which is stored as a folder or as a zip archive, and a
// hash of their names and contents.
func builtinFiles(builtins fs.FS, name string) (model fs.FS, hash string, err error) {
	names := builtinNames(builtins)
	if !slices.Contains(names, name) {
		return nil, "", fmt.Errorf("%w: %q; there are %s", errUnknownBuiltin, name, strings.Join(names, ", "))
	}
	sum := sha256.New()
	if packed, missing := fs.ReadFile(builtins, path.Join(builtinRoot, name+archiveExt)); missing == nil {
		sum.Write(packed)
		model, err = zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
	} else if model, err = fs.Sub(builtins, path.Join(builtinRoot, name)); err == nil {
		err = fs.WalkDir(model, ".", func(p string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			data, err := fs.ReadFile(model, p)
			fmt.Fprintf(sum, "%q %d ", p, len(data))
			sum.Write(data)
			return err
		})
	}
	if err != nil {
		return nil, "", fmt.Errorf("built-in model %s: %w", name, err)
	}
	return model, hex.EncodeToString(sum.Sum(nil)), nil
}

// install writes the files of a model to parent/name, unless that folder exists. Another process sees
// either all files or none.
func install(parent, name string, model fs.FS) (string, error) {
	dir := filepath.Join(parent, name)
	if exists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(parent, "."+name+"-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	if err := os.CopyFS(temp, model); err != nil {
		return "", err
	}
	if err := os.Rename(temp, dir); err != nil && !exists(dir) { // another process may have been faster
		return "", err
	}
	return dir, nil
}
