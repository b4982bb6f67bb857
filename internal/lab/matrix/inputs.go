package matrix

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"

	"steadyfit/internal/lab/machine"
	"steadyfit/internal/tfprocess"
)

// readInputs returns a digest of everything outside the plan that changes the outcome of a run: the machine and the
// variables that every child inherits, the files of the user's model and data, libraries and packages.
func (p *Plan) readInputs() (string, error) {
	sum := sha256.New()
	e := machine.Read(p.GPUs)
	fmt.Fprintln(sum, e.OS, e.Arch, e.Kernel, e.CPU, e.Cores, e.Memory, e.Limit, e.GPUs,
		tfprocess.Influential(os.Environ()))
	for _, path := range []string{p.User, p.Data} {
		root, err := filepath.EvalSymlinks(path)
		if path == "" || err != nil { // none, or a name that is no path, such as builtin:NAME
			continue
		}
		err = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			stamp(sum, path)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("model and data of the workload %q: %w", User, err)
		}
	}
	for _, r := range p.Remedies {
		if path, err := p.Allocator(r.Preload); r.Preload != "" && err == nil {
			stamp(sum, path)
		}
	}
	for _, runtime := range p.Runtimes {
		for _, path := range p.Commands[runtime].Libraries {
			stamp(sum, path) // not the content, which has about 800 MB
			// The names of pip's folders have the version of each package.
			packages, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(path)), "*.dist-info"))
			fmt.Fprintln(sum, packages)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// stamp adds the name, size and time of a file. A new version of a library changes them.
func stamp(sum hash.Hash, path string) {
	if info, err := os.Stat(path); err == nil {
		fmt.Fprintln(sum, path, info.Size(), info.ModTime().UnixNano())
	}
}
