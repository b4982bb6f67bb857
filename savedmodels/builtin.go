package savedmodels

import (
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
	"sync"

	"steadyfit/internal/nearest"
)

// The folder itself is named, rather than its content, so that what begins
// with a dot or underscore (an exporter's unfinished work) stays out.
//
//go:embed builtin
var builtinFS embed.FS

const builtinRoot = "builtin"

// BuiltinNames lists the models that ship with the project, sorted.
func BuiltinNames() []string { return builtinNames(builtinFS) }

func builtinNames(files fs.FS) []string {
	names := []string{}
	entries, err := fs.ReadDir(files, builtinRoot)
	if err != nil {
		return names // the folder is part of the program; without it there are none
	}
	for _, e := range entries {
		if _, err := fs.Stat(files, path.Join(builtinRoot, e.Name(), modelFile)); err == nil {
			names = append(names, e.Name())
		}
	}
	return names
}

// Builtin opens a model that ships with the project. TensorFlow reads models
// from files, so that the model is first written to a folder of the user's
// cache, steadyfit/models/NAME-HASH; later calls check that the files there
// are whole and use them again. Several processes may do so at once. Where
// there is no cache that can be written, a private folder under os.TempDir is
// used, which stays after the process. An unknown name gives ErrUnknownBuiltin
// and lists the names that there are.
func Builtin(name string) (*Model, error) {
	var places []string
	cache, cacheErr := os.UserCacheDir()
	if cacheErr == nil {
		places = append(places, filepath.Join(cache, "steadyfit", "models"))
	}
	dir, err := materialise(builtinFS, name, places)
	if err != nil {
		return nil, err
	}
	return Open(dir)
}

// materialise writes a model to the first of places that takes it, else to a
// new private folder, and returns its folder.
func materialise(files fs.FS, name string, places []string) (string, error) {
	content, hash, err := builtinFiles(files, name)
	if err != nil {
		return "", err
	}
	var errs []error
	for _, place := range places {
		dir, err := install(place, name+"-"+hash[:16], content)
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	private, err := privateFolder()
	if err == nil {
		var dir string
		if dir, err = install(private, name+"-"+hash[:16], content); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("built-in model %s: nowhere to write it: %w", name, errors.Join(append(errs, err)...))
}

// privateFolder is made once in a process. A fixed name in a folder that all
// users share could be taken by another user.
var privateFolder = sync.OnceValues(func() (string, error) {
	return os.MkdirTemp("", "steadyfit-models-")
})

// file is a file of a model; its name has forward slashes.
type file struct {
	name string
	data []byte
}

// builtinFiles reads a model, and hashes the names and content of its files.
func builtinFiles(files fs.FS, name string) ([]file, string, error) {
	names := builtinNames(files)
	known := false
	for _, n := range names {
		known = known || n == name
	}
	if !known {
		if len(names) == 0 {
			return nil, "", fmt.Errorf("%w: %q; this build has none", ErrUnknownBuiltin, name)
		}
		return nil, "", fmt.Errorf("%w: %q; there are %s", ErrUnknownBuiltin, name, enumerate(nearest.Sort(name, names), 10))
	}
	root := path.Join(builtinRoot, name)
	var out []file
	sum := sha256.New()
	err := fs.WalkDir(files, root, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, p)
		if err != nil {
			return err
		}
		f := file{p[len(root)+1:], data}
		fmt.Fprintf(sum, "%d %s %d ", len(f.name), f.name, len(data))
		sum.Write(data)
		out = append(out, f)
		return nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("built-in model %s: %w", name, err)
	}
	return out, hex.EncodeToString(sum.Sum(nil)), nil
}

// install puts files into parent/name, in one step as others see it.
func install(parent, name string, files []file) (string, error) {
	dir := filepath.Join(parent, name)
	if whole(dir, files) {
		return dir, nil
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(parent, "."+name+"-")
	if err != nil {
		return "", err
	}
	// What is left of it once it is renamed away is nothing.
	defer os.RemoveAll(temp)
	for _, f := range files {
		target := filepath.Join(temp, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(target, f.data, 0o600); err != nil {
			return "", err
		}
	}
	if err := os.Rename(temp, dir); err == nil || whole(dir, files) {
		return dir, nil
	}
	// Another process was first, or what is there is damaged. Replacing the
	// files one by one serves both: each is right before and after.
	for _, f := range files {
		name := filepath.FromSlash(f.name)
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			return "", err
		}
		if err := os.Rename(filepath.Join(temp, name), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// whole reports whether dir holds just these files with this content.
func whole(dir string, files []file) bool {
	for _, f := range files {
		data, err := readFile(filepath.Join(dir, filepath.FromSlash(f.name)), int64(len(f.data)))
		if err != nil || !bytes.Equal(data, f.data) {
			return false
		}
	}
	return true
}
