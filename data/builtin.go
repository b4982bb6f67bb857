package data

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"

	"steadyfit/internal/contract"
)

//go:embed builtin/*.npz
var builtins embed.FS

// Builtin returns the training and test parts of a dataset embedded in this module. The name "digits" has 8x8 images of
// handwritten digits: x is uint8 [64] from 0 to 16, and y is the digit as int64. An unknown name is fs.ErrNotExist.
func Builtin(name string) (train, test *InMemory, err error) {
	if train, err = openBuiltin(name, "train"); err == nil {
		test, err = openBuiltin(name, "test")
	}
	return train, test, err
}

func openBuiltin(name, split string) (*InMemory, error) {
	if split == "" {
		split = "train"
	}
	raw, err := builtins.ReadFile("builtin/" + name + "-" + split + ".npz")
	if err != nil {
		return nil, fmt.Errorf("no builtin dataset %q; the only one is digits: %w", name, fs.ErrNotExist)
	}
	return readNPZ(contract.BuiltinPrefix+name+"-"+split, bytes.NewReader(raw), int64(len(raw)), Options{}, nil)
}
