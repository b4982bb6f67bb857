package files

import (
	"fmt"
	"os"
	"path/filepath"
)

// Inputs are the paths that a command reads. Any of them may be empty; Data and Validation may be
// patterns.
type Inputs struct{ Model, Data, Validation string }

func (in Inputs) check(refuses func(what, path string) error) error {
	for _, input := range [][2]string{{"model", in.Model}, {"data", in.Data}, {"validation data", in.Validation}} {
		paths, _ := filepath.Glob(input[1]) // an error means that the path is not a pattern
		for _, path := range append(paths, input[1]) {
			if err := refuses(input[0], path); err != nil {
				return err
			}
		}
	}
	return nil
}

// Check returns an error if an output, which may be empty, is an input or is inside of one.
func (in Inputs) Check(output string) error {
	return in.check(func(what, path string) error {
		switch {
		case output == "" || !Within(output, path):
			return nil
		case Same(output, path):
			return fmt.Errorf("this is the %s itself, which would be overwritten; give another path", what)
		}
		return fmt.Errorf("this is inside the %s %s, which must not change; give another path", what, path)
	})
}

// CheckFolder is Check for a folder that is replaced as a whole. An input inside of it is an error, too.
func (in Inputs) CheckFolder(output string) error {
	if err := in.Check(output); err != nil {
		return err
	}
	return in.check(func(what, path string) error {
		if output == "" || !Within(path, output) {
			return nil
		}
		return fmt.Errorf("the %s %s is inside this folder, which would be replaced; give another path", what, path)
	})
}

// Within reports whether a path is an existing file or folder, or inside of it. The path itself may not
// exist. Links are followed.
func Within(path, folder string) bool {
	info, err := os.Stat(folder)
	if err != nil {
		return false
	}
	for path, err = filepath.Abs(path); err == nil; {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		if at, err := os.Stat(path); err == nil && os.SameFile(at, info) {
			return true
		}
		parent := filepath.Dir(path)
		if parent == path {
			break
		}
		path = parent
	}
	return false
}
