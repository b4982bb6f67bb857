package tfbind

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// MinVersion and MaxVersion are the oldest and newest supported TensorFlow, which the tests
// were run with.
const (
	MinVersion = "2.16"
	MaxVersion = "2.21"
)

// Info describes the open TensorFlow.
type Info struct {
	Location
	// Version is the version that the library reports, such as "2.21.0".
	Version string
}

var loaded struct {
	sync.Mutex
	tried bool
	info  Info
	err   error
	env   []string // the environment when the library was opened
}

// Load finds TensorFlow like [Locate] and opens it. If the linker or another binding has loaded
// a TensorFlow, Load uses that one. The library stays open until the process ends, because
// TensorFlow cannot be unloaded. A later Load returns the same Info, or an error if path names
// another library. Functions that need TensorFlow call Load("").
//
// On Linux, Load removes the pages of the library's code and constants from the resident memory
// of the process. They stay in the page cache, and those that are used later are mapped again.
// A breakpoint that a debugger has set in them is lost.
//
// The error is a *LoadError: there is no library, the installation is incomplete, the file is
// not a library, the version is not supported, or another TensorFlow is loaded.
func Load(path string) (Info, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if !loaded.tried {
		env := os.Environ()
		info, err := open(path)
		// After an error without an open library, a later call may try again.
		if err != nil && info.Library == "" {
			return Info{}, err
		}
		loaded.tried, loaded.info, loaded.err, loaded.env = true, info, err, env
		return info, err
	}
	if loaded.err == nil && path != "" {
		l, err := Locate(path)
		if err != nil {
			return Info{}, err
		}
		if l.Library != loaded.info.Library {
			return Info{}, &LoadError{
				Problem: fmt.Sprintf("cannot load %s: this process has already opened %s", l.Library, loaded.info.Library),
				Fix:     "call tfbind.Load before anything else, or start a new process",
			}
		}
	}
	return loaded.info, loaded.err
}

// OneDNN reports whether TensorFlow computes with oneDNN on the CPU. TensorFlow decides that by
// TF_ENABLE_ONEDNN_OPTS or the processor (IsMKLEnabled in tensorflow/core/util/util.cc).
// Without oneDNN, kernels round differently, and large blocks come from malloc instead of a
// pool. known is false if no library is open or the library does not report it.
func OneDNN() (on, known bool) {
	if _, open := Environment(); !open {
		return false, false
	}
	answer := capi.oneDNN()
	return answer == 1, answer >= 0
}

// Environment returns os.Environ at the time when the library was opened. ok is false if no
// library is open. The caller must not change the result.
func Environment() (env []string, ok bool) {
	loaded.Lock()
	defer loaded.Unlock()
	return loaded.env, loaded.tried && loaded.err == nil
}

func open(path string) (Info, error) {
	if capi == nil {
		return Info{}, &LoadError{
			Problem: "this program was built without cgo",
			Fix:     "build with CGO_ENABLED=1 and a C compiler",
		}
	}
	location, err := locate(path)
	if err != nil {
		return Info{}, err
	}
	if err := capi.load(location.Framework, location.Library); err != nil {
		return Info{}, &LoadError{
			Problem: location.Library + " cannot be opened",
			Tried:   []Attempt{{location.Source, location.Library, err.Error()}},
			Fix:     "check that the file is a complete TensorFlow library for this machine (`file " + location.Library + "`), or install it again: " + installFix,
		}
	}
	info := Info{Location: location, Version: capi.version()}
	if !supportedVersion(info.Version) {
		return info, &LoadError{
			Problem: fmt.Sprintf("%s is TensorFlow %s; supported are %s to %s", location.Library, info.Version, MinVersion, MaxVersion),
			Tried:   []Attempt{{location.Source, location.Library, "version " + info.Version}},
			Fix:     "install a supported version: `make runtime` fetches " + MaxVersion,
		}
	}
	return info, nil
}

// locate works like Locate, but if the process has loaded a TensorFlow, it returns that one or
// an error. Two libraries would share some symbols and not others.
func locate(path string) (Location, error) {
	there := inProcess()
	if there == "" {
		return Locate(path)
	}
	if path == "" && os.Getenv(EnvLibrary) == "" {
		l, reason := pair(there)
		if reason != "" {
			return Location{}, &LoadError{Problem: "this process has loaded " + there + ", which cannot be used: " + reason}
		}
		l.Source = "this process"
		return l, nil
	}
	l, err := Locate(path)
	if err == nil && !sameFile(l.Library, there) {
		return Location{}, &LoadError{
			Problem: fmt.Sprintf("%s names %s, but the program or another binding has already loaded %s", l.Source, l.Library, there),
			Fix:     "a process can load only one TensorFlow: name the loaded one or none, or make the other binding use this one",
		}
	}
	return l, err
}

func supportedVersion(v string) bool {
	number := func(v string) int {
		major, rest, _ := strings.Cut(v, ".")
		minor, _, _ := strings.Cut(rest, ".")
		a, errA := strconv.Atoi(major)
		b, errB := strconv.Atoi(minor)
		if errA != nil || errB != nil {
			return -1
		}
		return a*1000 + b
	}
	n := number(v)
	return n >= number(MinVersion) && n <= number(MaxVersion)
}

func library() error {
	_, err := Load("")
	return err
}
