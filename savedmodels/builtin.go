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

// BuiltinPrefix is the prefix of the path of a built-in model, as in builtin:digits.
const BuiltinPrefix = "builtin:"

// BuiltinNames lists the models that are part of this module, sorted. Models named digits* are
// for the built-in data; the others are for measurements.
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
	// The sort by ReadDir included the extensions.
	slices.Sort(names)
	return names
}

// Builtin opens a model that is part of this module. An unknown name returns ErrUnknownBuiltin.
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
func materialise(files fs.FS, name string, places []string) (string, error) {
	content, hash, err := builtinFiles(files, name)
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
			place, err = install(place, name+"-"+hash[:16], content)
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
	open func() (io.ReadCloser, error)
}

// builtinFiles lists the files of a model and returns a hash of their names, sizes and CRCs.
func builtinFiles(files fs.FS, name string) ([]file, string, error) {
	names := builtinNames(files)
	if !slices.Contains(names, name) {
		if len(names) == 0 {
			return nil, "", fmt.Errorf("%w: %q; this build has none", ErrUnknownBuiltin, name)
		}
		return nil, "", fmt.Errorf("%w: %q; there are %s", ErrUnknownBuiltin, name, enumerate(nearest.Sort(name, names), 10))
	}
	root := path.Join(builtinRoot, name)
	list := folderFiles
	if _, err := fs.Stat(files, root+archiveExt); err == nil {
		root, list = root+archiveExt, archiveFiles
	}
	out, err := list(files, root)
	if err != nil {
		return nil, "", fmt.Errorf("built-in model %s: %w", name, err)
	}
	sum := sha256.New()
	for _, f := range out {
		fmt.Fprintf(sum, "%q %d %d ", f.name, f.size, f.crc)
	}
	return out, hex.EncodeToString(sum.Sum(nil)), nil
}

// folderFiles lists the files of a model that is stored as a folder.
func folderFiles(files fs.FS, root string) (out []file, err error) {
	err = fs.WalkDir(files, root, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := fs.ReadFile(files, p)
		out = append(out, file{p[len(root)+1:], int64(len(data)), crc32.ChecksumIEEE(data), func() (io.ReadCloser, error) { return files.Open(p) }})
		return err
	})
	return out, err
}

// archiveFiles lists the files of a model that is stored as a zip archive.
func archiveFiles(files fs.FS, root string) (out []file, err error) {
	data, err := fs.ReadFile(files, root)
	if err != nil {
		return nil, err
	}
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	for _, f := range archive.File {
		if !fs.ValidPath(f.Name) {
			return nil, fmt.Errorf("%s: %q: %w", root, f.Name, fs.ErrInvalid)
		}
		out = append(out, file{f.Name, int64(f.UncompressedSize64), f.CRC32, f.Open})
	}
	return out, nil
}

// install writes files to parent/name. Another process sees either all files or none.
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
	defer os.RemoveAll(temp)
	for _, f := range files {
		if err := f.write(filepath.Join(temp, filepath.FromSlash(f.name))); err != nil {
			return "", err
		}
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

func (f file) write(target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	in, err := f.open()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
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
