package matrix

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"steadyfit/internal/lab/machine"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/tfprocess"
)

// inputs are digests of everything outside the plan that changes the outcome of a run.
type inputs struct {
	user      string            // the content of the user's model and data
	runtimes  map[string]string // libraries and packages
	machine   string            // the machine that runs the children
	variables []string          // the variables that every child inherits
}

func (p *Plan) readInputs() (inputs, error) {
	in := inputs{runtimes: make(map[string]string), variables: tfprocess.Influential(os.Environ())}
	e := machine.Read(p.GPUs)
	in.machine = fmt.Sprint(e.OS, e.Arch, e.Kernel, e.CPU, e.Cores, e.Memory, e.Limit, e.GPUs)
	sum := sha256.New()
	for _, path := range []string{p.User, p.Data} {
		if err := hashInput(sum, path); err != nil {
			return in, fmt.Errorf("model and data of the workload %s: %w", User, err)
		}
	}
	in.user = hex.EncodeToString(sum.Sum(nil))
	sum.Reset()
	for _, name := range p.preloads() {
		if path, err := p.Allocator(name); err == nil {
			stamp(sum, path)
		}
	}
	allocators := hex.EncodeToString(sum.Sum(nil))
	for _, runtime := range p.Runtimes {
		sum.Reset()
		for _, path := range p.Commands[runtime].Libraries {
			stamp(sum, path) // not the content, which has about 800 MB
		}
		if runtime == Keras {
			fmt.Fprintln(sum, packages(p.Commands[runtime].Libraries))
		}
		fmt.Fprintln(sum, allocators)
		in.runtimes[runtime] = hex.EncodeToString(sum.Sum(nil))
	}
	return in, nil
}

func (p *Plan) preloads() []string {
	var names []string
	for _, r := range p.Remedies {
		if r.Preload != "" {
			names = append(names, r.Preload)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// stamp adds the name, size and time of a file. A new version of a library changes them.
func stamp(sum hash.Hash, path string) {
	if info, err := os.Stat(path); err == nil {
		fmt.Fprintln(sum, path, info.Size(), info.ModTime().UnixNano())
	}
}

// hashInput adds the content of a file or folder. A name that is not a path, such as builtin:NAME,
// adds no content.
func hashInput(sum hash.Hash, path string) error {
	if _, err := os.Stat(path); path == "" || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return runner.Hash(sum, path)
}

// packages returns the names and versions of the installed Python packages, which are the names
// of pip's folders NAME-VERSION.dist-info.
func packages(libraries []string) []string {
	var names []string
	for _, library := range libraries {
		found, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(library)), "*.dist-info"))
		for _, path := range found {
			names = append(names, filepath.Base(path))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
