package matrix

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"steadyfit/internal/tflibrary"
	"steadyfit/internal/tfprocess"
)

// RunCommand is the argument of steadyfit with which it runs a program of the runtime go.
const RunCommand = "program"

// ErrMissing means that a file of the checkout is missing, which a target of the Makefile makes.
var ErrMissing = errors.New("not found")

// RuntimeCommand returns the command for the children of a runtime. tensorflow names the library of the
// runtime go, as tfbind.Load does. python is the interpreter of the runtime keras; empty means that of
// the checkout. TensorFlow logs only warnings, unless the environment says otherwise.
func RuntimeCommand(name, tensorflow, python string) (c Command, err error) {
	location, err := tflibrary.Locate(tensorflow)
	if err != nil {
		return c, err
	}
	c = Command{Env: []string{tflibrary.EnvLibrary + "=" + location.Library},
		Libraries: []string{location.Library, location.Framework}}
	if _, set := os.LookupEnv(tfprocess.LogLevel); !set {
		c.Env = append(c.Env, tfprocess.LogLevel+"="+tfprocess.LogWarnings)
	}
	var sources []string
	switch name {
	case Go:
		program, err := os.Executable()
		if err != nil {
			return c, err
		}
		c.Args, sources = []string{program, RunCommand}, []string{program}
	case Galeone:
		program, err := project(filepath.Join("out", "bench", "galeone"), "make bench-build")
		if err != nil {
			return c, err
		}
		// The program is linked with the libraries of the checkout.
		runtime := filepath.Join(filepath.Dir(program), "..", "..", ".runtime", "tensorflow")
		c.Libraries = []string{filepath.Join(runtime, "libtensorflow_cc.so.2"),
			filepath.Join(runtime, "libtensorflow_framework.so.2")}
		c.Args, sources = []string{program}, []string{program}
	case Keras:
		if sources, err = kerasCommand(&c, python); err != nil {
			return c, err
		}
	}
	sum := sha256.New()
	for _, path := range sources {
		if text, err := os.ReadFile(path); err == nil {
			sum.Write(text)
		}
	}
	c.Identity = hex.EncodeToString(sum.Sum(nil)[:12])
	return c, nil
}

// kerasCommand completes the command of the runtime keras. It returns the files that affect the
// results: Python, and the scripts.
func kerasCommand(c *Command, python string) (sources []string, err error) {
	common, err := project(filepath.Join("internal", "lab", "programs", "keras", "common.py"), "a checkout of steadyfit")
	if err != nil {
		return nil, err
	}
	if python == "" {
		python, err = project(filepath.Join(".runtime", "venv", "bin", "python"), "make venv")
	} else {
		python, err = filepath.Abs(python)
	}
	if err != nil {
		return nil, err
	}
	c.Args, c.Scripts = []string{python}, filepath.Dir(common)
	// The Python environment has its own TensorFlow.
	if c.Libraries, err = filepath.Glob(filepath.Join(filepath.Dir(python), "..", "lib", "python3*", "site-packages",
		"tensorflow", "libtensorflow_*.so.2")); err != nil {
		return nil, err
	}
	scripts, err := filepath.Glob(filepath.Join(c.Scripts, "*.py"))
	return append([]string{python}, scripts...), err
}

// project returns the path of a file of the checkout. It searches the parents of the working
// folder and of the program.
func project(name, source string) (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if program, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(program))
	}
	for _, dir := range starts {
		for {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				return path, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", fmt.Errorf("%w: %s above %s; %s provides it", ErrMissing, name, strings.Join(starts, " or "), source)
}
