package savedmodels

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"steadyfit/internal/files"
	"steadyfit/internal/nearest"
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
// steadyfit/models/NAME-HASH of the user's cache, or checks the files that are already there.
// If the cache is not writable, Builtin writes to a private folder under os.TempDir and never
// removes it. The largest model, image-224, takes 63 MB. Several processes may call Builtin at
// once.
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

// materialise writes a model to the first writable folder of places, or else to privateFolder,
// and returns the model's folder.
func materialise(builtins fs.FS, name string, places []string) (string, error) {
	model, list, hash, err := builtinFiles(builtins, name)
	if err != nil {
		return "", err
	}
	var errs []error
	for _, place := range append(slices.Clone(places), "") {
		var err error
		if place == "" {
			place, err = privateFolder()
		}
		if err == nil {
			place, err = install(place, name+"-"+hash[:16], model, list)
		}
		if err == nil {
			return place, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("built-in model %s: no folder is writable: %w", name, errors.Join(errs...))
}

// privateFolder makes one folder per process. Its name is random: another user could create a
// folder with a fixed name first.
var privateFolder = sync.OnceValues(func() (string, error) {
	return os.MkdirTemp("", "steadyfit-models-")
})

// file is a file of a model. Its name has forward slashes.
type file struct {
	name string
	size int64  // bytes
	crc  uint32 // CRC-32 (IEEE) of the content
}

var errUnknownBuiltin = errors.New("no such built-in model")

// builtinFiles returns the files of a model, which is stored as a folder or as a zip archive, and a
// hash of their names, sizes and CRCs.
func builtinFiles(builtins fs.FS, name string) (model fs.FS, list []file, hash string, err error) {
	names := builtinNames(builtins)
	if !slices.Contains(names, name) {
		if len(names) == 0 {
			return nil, nil, "", fmt.Errorf("%w: %q; this build has none", errUnknownBuiltin, name)
		}
		return nil, nil, "", fmt.Errorf("%w: %q; there are %s", errUnknownBuiltin, name, enumerate(nearest.Sort(name, names), 10))
	}
	sum := sha256.New()
	model, err = fs.Sub(builtins, path.Join(builtinRoot, name))
	if data, missing := fs.ReadFile(builtins, path.Join(builtinRoot, name+archiveExt)); missing == nil {
		model, err = zip.NewReader(bytes.NewReader(data), int64(len(data)))
	}
	if err == nil {
		err = fs.WalkDir(model, ".", func(p string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			f := file{name: p}
			info, err := e.Info()
			if err != nil {
				return err
			}
			if header, packed := info.Sys().(*zip.FileHeader); packed {
				f.size, f.crc = int64(header.UncompressedSize64), header.CRC32
			} else {
				data, err := fs.ReadFile(model, p)
				if err != nil {
					return err
				}
				f.size, f.crc = int64(len(data)), crc32.ChecksumIEEE(data)
			}
			list = append(list, f)
			fmt.Fprintf(sum, "%q %d %d ", f.name, f.size, f.crc)
			return nil
		})
	}
	if err != nil {
		return nil, nil, "", fmt.Errorf("built-in model %s: %w", name, err)
	}
	return model, list, hex.EncodeToString(sum.Sum(nil)), nil
}

// install writes the files of a model to parent/name. Another process sees either all files or none.
func install(parent, name string, model fs.FS, files []file) (string, error) {
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
	defer os.RemoveAll(temp)
	if err := os.CopyFS(temp, model); err != nil {
		return "", err
	}
	if err := os.Rename(temp, dir); err == nil || whole(dir, files) {
		return dir, nil
	}
	// Another process may have installed the model first, or the existing folder is damaged.
	// Replacing each file is correct in both cases.
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

// whole reports whether dir has these files with the same sizes and CRC-32. The check detects
// accidental damage, such as a full disk or an edited model. It takes about 10 ms for the 63 MB
// of image-224.
func whole(dir string, files []file) bool {
	return !slices.ContainsFunc(files, func(f file) bool {
		return !f.sameAs(filepath.Join(dir, filepath.FromSlash(f.name)))
	})
}

func (f file) sameAs(path string) bool {
	in, size, err := files.Open(path)
	if err != nil {
		return false
	}
	defer in.Close()
	sum := crc32.NewIEEE()
	n, err := io.Copy(sum, io.LimitReader(in, f.size+1))
	return err == nil && size == f.size && n == f.size && sum.Sum32() == f.crc
}
