// Package tflibrary finds the TensorFlow library that package tfbind opens.
package tflibrary

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// EnvLibrary is the environment variable that names the TensorFlow to use: a library, its
// folder, or a site-packages/tensorflow folder.
const EnvLibrary = "STEADYFIT_TENSORFLOW"

// MinVersion and MaxVersion are the oldest and newest supported TensorFlow, which the tests
// were run with.
const (
	MinVersion = "2.16"
	MaxVersion = "2.21"
)

// ErrNone means that no usable TensorFlow library was found; see LoadError.
var ErrNone = errors.New("no usable TensorFlow library")

// Location is a TensorFlow library on disk.
type Location struct {
	// Library is the absolute path of the library with the C API.
	Library string
	// Framework is the absolute path of libtensorflow_framework in the same folder.
	Framework string
	// Source is the step of the search that found the library.
	Source string
}

// Attempt is a place that the search examined.
type Attempt struct {
	// Source is the step of the search, such as "STEADYFIT_TENSORFLOW".
	Source string
	// Path is the examined path; empty if the step had none.
	Path string
	// Reason is why the place was rejected.
	Reason string
}

// LoadError reports that no TensorFlow can be used. It matches ErrNone.
type LoadError struct {
	// Problem is the reason in one sentence.
	Problem string
	// Tried lists the places in the order of the search.
	Tried []Attempt
	// Fix says what to do.
	Fix string
}

func (e *LoadError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %s", ErrNone, e.Problem)
	if len(e.Tried) > 0 {
		b.WriteString("\ntried:")
		for _, a := range e.Tried {
			b.WriteString("\n  " + a.Source)
			if a.Path != "" {
				b.WriteString(" " + a.Path)
			}
			b.WriteString(": " + a.Reason)
		}
	}
	if e.Fix != "" {
		b.WriteString("\nfix: " + e.Fix)
	}
	return b.String()
}

// Is reports whether target is ErrNone.
func (e *LoadError) Is(target error) bool { return target == ErrNone }

// libraryNames are the files with the C API, in order of preference: first those of the Python
// wheel, then those of the C distribution.
var libraryNames = []string{
	"libtensorflow_cc.so.2", "libtensorflow_cc.so", "libtensorflow.so.2", "libtensorflow.so",
}

var frameworkNames = []string{"libtensorflow_framework.so.2", "libtensorflow_framework.so"}

// InstallFix says how to install TensorFlow.
const InstallFix = "run `pip install tensorflow-cpu` in a virtual environment and activate it, or `make runtime` in the steadyfit checkout, or set " +
	EnvLibrary + " to the folder that holds libtensorflow_cc.so.2"

// Locate searches for TensorFlow without opening it, where tfbind.Load says. If path or else
// STEADYFIT_TENSORFLOW is not empty, it names the only place to search. The error is a *LoadError.
func Locate(path string) (Location, error) {
	for _, named := range []struct{ source, path string }{
		{"path", path}, {EnvLibrary, os.Getenv(EnvLibrary)},
	} {
		if named.path == "" {
			continue
		}
		l, reason := examine(named.path)
		if reason != "" {
			return Location{}, &LoadError{
				Problem: named.source + " " + named.path + " cannot be used: " + reason,
				Tried:   []Attempt{{named.source, named.path, reason}},
				Fix: "name a TensorFlow library, a folder that holds libtensorflow_cc.so.2 and " +
					"libtensorflow_framework.so.2, or a site-packages/tensorflow; or leave it out to search",
			}
		}
		l.Source = named.source
		return l, nil
	}

	var tried []Attempt
	for _, step := range []struct {
		source  string
		folders func() ([]string, string)
	}{
		{"project .runtime", projectRuntimes},
		{"environment of the program", ownPackages},
		{"virtual environment", virtualEnv},
		{"python3", pythonPackages},
		{"system library path", systemFolders},
	} {
		folders, none := step.folders()
		if len(folders) == 0 {
			tried = append(tried, Attempt{step.source, "", none})
		}
		for _, dir := range folders {
			l, reason := examine(dir)
			if reason == "" {
				l.Source = step.source
				return l, nil
			}
			tried = append(tried, Attempt{step.source, dir, reason})
		}
	}
	return Location{}, &LoadError{Problem: "none was found", Tried: tried, Fix: InstallFix}
}

// examine looks for TensorFlow at a path. If there is none, it returns the reason.
func examine(path string) (Location, string) {
	// dlopen searches other folders for a name without a slash.
	path, err := filepath.Abs(path)
	if err != nil {
		return Location{}, err.Error()
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Location{}, "does not exist"
	}
	if err != nil {
		return Location{}, err.Error()
	}
	if !info.IsDir() {
		return pair(path)
	}
	for _, dir := range []string{path, filepath.Join(path, "tensorflow"), filepath.Join(path, "lib")} {
		for _, name := range libraryNames {
			if library := filepath.Join(dir, name); isFile(library) {
				return pair(library)
			}
		}
	}
	return Location{}, "holds no " + libraryNames[0] + " or " + libraryNames[2]
}

// pair returns the Location of a library with the framework library in the same folder.
func pair(library string) (Location, string) {
	dir := filepath.Dir(library)
	for _, name := range frameworkNames {
		if f := filepath.Join(dir, name); isFile(f) {
			return Location{Library: library, Framework: f}, ""
		}
	}
	return Location{}, "incomplete installation: " + filepath.Base(library) + " exists, but " + frameworkNames[0] +
		" is not beside it in " + dir + "; install that TensorFlow again"
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func projectRuntimes() ([]string, string) {
	var found []string
	seen := map[string]bool{}
	look := func(dir string) {
		r := filepath.Join(dir, ".runtime")
		if info, err := os.Stat(r); err == nil && info.IsDir() && !seen[r] {
			seen[r] = true
			found = append(found, r)
		}
	}
	if dir, err := os.Getwd(); err == nil {
		for {
			look(dir)
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	if exe, err := os.Executable(); err == nil {
		dir := filepath.Dir(exe)
		look(dir)
		look(filepath.Dir(dir))
	}
	return found, "no folder .runtime in the working directory, its parents, or beside the program"
}

func virtualEnv() ([]string, string) {
	env := os.Getenv("VIRTUAL_ENV")
	if env == "" {
		return nil, "none is active (VIRTUAL_ENV is not set)"
	}
	matches, _ := filepath.Glob(filepath.Join(env, "lib", "python3*", "site-packages", "tensorflow"))
	return matches, env + " holds no site-packages/tensorflow"
}

// ownPackages looks in the environment in which pip has installed the program.
func ownPackages() ([]string, string) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err.Error()
	}
	python := filepath.Join(filepath.Dir(exe), "python3")
	if !isFile(python) {
		return nil, "no python3 beside the program"
	}
	return packageOf(python)
}

func pythonPackages() ([]string, string) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil, "no python3 on the PATH"
	}
	return packageOf(python)
}

// packageOf asks a Python for the folder of the package tensorflow. It does not import the package.
func packageOf(python string) ([]string, string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-c",
		"import importlib.util as u; s = u.find_spec('tensorflow'); "+
			"print(s.submodule_search_locations[0] if s else '')").Output()
	if err != nil {
		return nil, python + " failed: " + err.Error()
	}
	dir := strings.TrimSpace(string(out))
	if dir == "" {
		return nil, python + " has no package tensorflow"
	}
	return []string{dir}, ""
}

// systemFolders returns the folders of LD_LIBRARY_PATH and the usual folders of C libraries
// that have a TensorFlow.
func systemFolders() ([]string, string) {
	candidates := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	candidates = append(candidates, "/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64",
		"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/opt/tensorflow/lib")
	var folders []string
	for _, dir := range candidates {
		for _, name := range libraryNames {
			if isFile(filepath.Join(dir, name)) {
				folders = append(folders, dir)
				break
			}
		}
	}
	return folders, "no libtensorflow in LD_LIBRARY_PATH, /usr/local/lib, /usr/lib or /opt/tensorflow/lib"
}
