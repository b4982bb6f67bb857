//go:build linux && cgo && (amd64 || arm64)

package gpu

import (
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"
)

// load opens NVML and looks up its functions. The library stays open.
func load() (*functions, error) {
	// dlerror is per thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	library, err := purego.Dlopen("libnvidia-ml.so.1", purego.RTLD_LAZY|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("there is no NVIDIA driver, or this container has it without the capability \"utility\": %w",
			err)
	}
	f := &functions{}
	for name, function := range f.symbols() {
		address, err := purego.Dlsym(library, name)
		if err != nil {
			return nil, fmt.Errorf("libnvidia-ml.so.1 has no function %s: its driver is older than 510, or it does not "+
				"belong to an NVIDIA driver", name)
		}
		purego.RegisterFunc(function, address)
	}
	return f, nil
}
