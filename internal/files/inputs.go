package files

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Inputs are the existing files and folders that a command reads.
type Inputs []input

type input struct {
	what, path string
	info       os.FileInfo
}

// NewInputs returns the files and folders of a model, data and validation data. Each of the three may be
// empty, and the last two may be patterns. Devices and pipes are no inputs, since nothing can replace
// their content.
func NewInputs(model, data, validation string) (in Inputs) {
	for _, given := range [][2]string{{"model", model}, {"data", data}, {"validation data", validation}} {
		paths, _ := filepath.Glob(given[1]) // an error means that the path is not a pattern
		for _, path := range append(paths, given[1]) {
			if info, err := os.Stat(path); err == nil && (info.IsDir() || info.Mode().IsRegular()) {
				in = append(in, input{given[0], path, info})
			}
		}
	}
	return in
}

// Check returns an error if an output, which may be empty, is an input or is inside of one.
func (in Inputs) Check(output string) error {
	if output == "" {
		return nil
	}
	self, _ := os.Stat(output) // nil if it does not exist
	around := parents(output)
	for _, i := range in {
		switch {
		case self != nil && os.SameFile(self, i.info):
			return fmt.Errorf("this is the %s itself, which would be overwritten; give another path", i.what)
		case among(around, i.info):
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

// Within reports whether a path is an existing file or folder, or inside of it. The path itself may not
// exist. Links are followed.
func Within(path, folder string) bool {
	info, err := os.Stat(folder)
	return err == nil && among(parents(path), info)
}

func among(all []os.FileInfo, info os.FileInfo) bool {
	return slices.ContainsFunc(all, func(one os.FileInfo) bool { return os.SameFile(one, info) })
}

// parents returns what exists of a path and of the folders around it. Links are followed.
func parents(path string) (found []os.FileInfo) {
	path, err := filepath.Abs(path)
	for err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		if info, err := os.Stat(path); err == nil {
			found = append(found, info)
		}
		parent := filepath.Dir(path)
		if parent == path {
			break
		}
		path = parent
	}
	return found
}
