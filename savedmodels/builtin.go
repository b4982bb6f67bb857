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
)

//go:embed builtin/*.zip
var builtinFS embed.FS

const (
	builtinRoot = "builtin/"
	archiveExt  = ".zip"
)

// BuiltinNames returns the sorted names of the models that are part of this module. Models named
// digits* are for the built-in data; the others are for measurements.
func BuiltinNames() []string {
	names := []string{}
	archives, _ := fs.Glob(builtinFS, builtinRoot+"*"+archiveExt) // the pattern is valid
	for _, a := range archives {
		names = append(names, strings.TrimSuffix(path.Base(a), archiveExt))
	}
	slices.Sort(names) // Glob sorts names with their extension
	return names
}

var errUnknownBuiltin = errors.New("no such built-in model")

// Builtin opens a model that is part of this module.
// TensorFlow reads models from files, so Builtin writes the model to the folder
// steadyfit/models/NAME-HASH of the user's cache, unless that folder exists. The largest model, image-224,
// takes 63 MB. Several processes may call Builtin at once.
func Builtin(name string, tags ...string) (*Model, error) {
	packed, err := builtinFS.ReadFile(builtinRoot + name + archiveExt)
	if err != nil {
		return nil, fmt.Errorf("%w: %q; there are %s", errUnknownBuiltin, name, strings.Join(BuiltinNames(), ", "))
	}
	sum := sha256.Sum256(packed)
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("built-in model %s: no folder to write it to: %w", name, err)
	}
	model, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
	if err != nil {
		return nil, fmt.Errorf("built-in model %s: %w", name, err)
	}
	dir, err := install(filepath.Join(cache, "steadyfit", "models"), name+"-"+hex.EncodeToString(sum[:8]), model)
	if err != nil {
		return nil, fmt.Errorf("built-in model %s: %w; XDG_CACHE_HOME names another folder for it", name, err)
	}
	return Open(dir, tags...)
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
