package files

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Inputs are the existing files and folders that a command reads.
type Inputs []input

type input struct{ what, path string }

// NewInputs returns the files and folders of a model, data and validation data. Each of the three may be empty, and the
// last two may be patterns. Devices and pipes are no inputs, since nothing can replace their content.
func NewInputs(model, data, validation string) (in Inputs) {
	for _, given := range [][2]string{{"model", model}, {"data", data}, {"validation data", validation}} {
		paths, _ := Glob(given[1]) // an error means that the path is not a pattern
		for _, path := range append(paths, given[1]) {
			if info, err := os.Stat(path); err == nil && (info.IsDir() || info.Mode().IsRegular()) {
				in = append(in, input{given[0], path})
			}
		}
	}
	return in
}

// Glob is filepath.Glob, but takes the folder of the pattern literally if there are such files in it.
func Glob(pattern string) (paths []string, err error) {
	dir, base := filepath.Split(pattern)
	names, err := fs.Glob(os.DirFS(dir), base)
	for _, name := range names {
		paths = append(paths, filepath.Join(dir, name))
	}
	if paths == nil {
		return filepath.Glob(pattern)
	}
	return paths, err
}

// Check returns an error if an output, which may be empty, is an input or is inside of one.
func (in Inputs) Check(output string) error {
	if output == "" {
		return nil
	}
	for _, i := range in {
		switch {
		case Same(output, i.path):
			return fmt.Errorf("this is the %s itself, which would be overwritten; give another path", i.what)
		case Within(output, i.path):
			return fmt.Errorf("this is inside the %s %s, which must not change; give another path", i.what, i.path)
		}
	}
	return nil
}

// CheckFolder is Check for a folder that is replaced as a whole. An input inside of it is an error, too.
func (in Inputs) CheckFolder(output string) error {
	if err := in.Check(output); err != nil {
		return err
	}
	for _, i := range in {
		if Within(i.path, output) {
			return fmt.Errorf("the %s %s is inside this folder, which would be replaced; give another path", i.what, i.path)
		}
	}
	return nil
}

// Within reports whether a path is a folder, or inside of it. Links are followed. Neither has to exist. An empty path
// is inside of nothing, and nothing is inside of it.
func Within(path, folder string) bool {
	if path == "" || folder == "" {
		return false
	}
	path, folder = real(path), real(folder)
	return path == folder || strings.HasPrefix(path, strings.TrimSuffix(folder, "/")+"/")
}

// real returns an absolute path without links, as far as the path exists.
func real(path string) string {
	path, err := filepath.Abs(path)
	for rest := ""; err == nil; path, rest = filepath.Dir(path), filepath.Join(filepath.Base(path), rest) {
		if found, missing := filepath.EvalSymlinks(path); missing == nil || path == "/" {
			return filepath.Join(found, rest)
		}
	}
	return path
}
