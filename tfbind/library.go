package tfbind

import (
	"fmt"
	"os"
	"sync"

	"steadyfit/internal/tflibrary"
	"steadyfit/internal/tfprocess"
)

func init() {
	tfprocess.OneDNN, tfprocess.Environment, tfprocess.FirstSession = oneDNN, environment, firstSession
	tfprocess.SetMmapThreshold, tfprocess.StartServer = setMmapThreshold, startServer
}

// Info describes the open TensorFlow.
type Info struct {
	// Library is the absolute path of the library with the C API, and Framework that of
	// libtensorflow_framework in the same folder.
	Library, Framework string
	// Source is the step of the search that found the library.
	Source string
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

// Load finds TensorFlow and opens it. path names a library, its folder, or a site-packages/tensorflow
// folder. If path is empty, Load uses the value of STEADYFIT_TENSORFLOW. If either is set, Load searches
// nowhere else. Otherwise Load searches, in this order:
//   - the folder .runtime in the working directory, its parents, the executable's folder and
//     that folder's parent,
//   - the environment of a python3 beside the executable, and the active virtual environment,
//   - the site-packages of python3,
//   - LD_LIBRARY_PATH and the usual folders of C libraries.
//
// If the linker or another binding has already loaded a TensorFlow, Load uses that one. The library
// stays open until the process ends, because TensorFlow cannot be unloaded. A later Load returns
// the same Info, or an error if path names another library. Functions that need TensorFlow call
// Load("").
//
// On Linux, Load removes the pages of the library's code and constants from the resident memory of
// the process. The pages stay in the page cache, and are mapped again when they are used. A
// breakpoint that a debugger has set in such a page is lost.
//
// The error matches ErrNoTensorFlow: there is no library, the installation is incomplete, the file is
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
		if _, err := tflibrary.Choose(path); err != nil {
			return Info{}, err
		}
	}
	return loaded.info, loaded.err
}

// oneDNN implements tfprocess.OneDNN.
func oneDNN() (on, known bool) {
	if _, open := environment(); !open {
		return false, false
	}
	answer := capi.oneDNN()
	return answer == 1, answer >= 0
}

// environment implements tfprocess.Environment.
func environment() (env []string, ok bool) {
	loaded.Lock()
	defer loaded.Unlock()
	return loaded.env, loaded.tried && loaded.err == nil
}

func open(path string) (Info, error) {
	if capi == nil {
		return Info{}, &tflibrary.LoadError{
			Problem: "this program was built without cgo",
			Fix:     "build with CGO_ENABLED=1 and a C compiler",
		}
	}
	location, err := tflibrary.Choose(path)
	if err != nil {
		return Info{}, err
	}
	if err := capi.load(location.Framework, location.Library); err != nil {
		return Info{}, &tflibrary.LoadError{
			Problem: location.Library + " cannot be opened",
			Tried:   []tflibrary.Attempt{{Source: location.Source, Path: location.Library, Reason: err.Error()}},
			Fix: "check that the file is a complete TensorFlow library for this machine (`file " + location.Library +
				"`) and fits into its memory, or install it again: " + tflibrary.InstallFix,
		}
	}
	info := Info{location.Library, location.Framework, location.Source, capi.version()}
	if !tflibrary.Supported(info.Version) {
		return info, &tflibrary.LoadError{
			Problem: fmt.Sprintf("%s is TensorFlow %s; supported are %s to %s", location.Library, info.Version,
				tflibrary.MinVersion, tflibrary.MaxVersion),
			Tried: []tflibrary.Attempt{{Source: location.Source, Path: location.Library, Reason: "version " + info.Version}},
			Fix:   "install a supported version: `make runtime` fetches " + tflibrary.MaxVersion,
		}
	}
	return info, nil
}

// startServer implements tfprocess.StartServer.
func startServer(def []byte) (address string, err error) {
	if err := library(); err != nil {
		return "", err
	}
	return capi.startServer(def)
}

func library() error {
	_, err := Load("")
	return err
}
