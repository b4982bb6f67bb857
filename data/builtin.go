package data

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed builtin/*.npz
var builtins embed.FS

// Builtin returns the two parts of a dataset that is part of this module. A name that is not
// in BuiltinNames returns fs.ErrNotExist.
//
// digits: 8x8 images of handwritten digits, x uint8 [64] from 0 to 16, and y int64 [], the
// digit.
func Builtin(name string) (train, test *InMemory, err error) {
	if train, err = openBuiltin(name, "train", nil); err != nil {
		return nil, nil, err
	}
	if test, err = openBuiltin(name, "test", nil); err != nil {
		return nil, nil, err
	}
	return train, test, nil
}

// BuiltinNames lists the names of the datasets for Builtin, sorted.
func BuiltinNames() []string {
	// Glob fails only for an invalid pattern or an unreadable folder. The pattern is valid and
	// the folder is embedded.
	files, _ := fs.Glob(builtins, "builtin/*-train.npz")
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(f, "builtin/"), "-train.npz"))
	}
	return names
}

func openBuiltin(name, split string, l *limit) (*InMemory, error) {
	if split == "" {
		split = "train"
	}
	raw, err := builtins.ReadFile("builtin/" + name + "-" + split + ".npz")
	if err != nil {
		return nil, fmt.Errorf("no builtin dataset %q; there are %q: %w", name, BuiltinNames(), fs.ErrNotExist)
	}
	return readNPZ("builtin:"+name+"-"+split, bytes.NewReader(raw), int64(len(raw)), "", l, nil)
}
