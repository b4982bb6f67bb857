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
		return nil, fmt.Errorf("there is no NVIDIA driver, or this container has it without the capability \"utility\": %w", err)
	}
	f := &functions{}
	for _, s := range f.symbols() {
		found := false
		for _, name := range s.names {
			if address, err := purego.Dlsym(library, name); err == nil {
				purego.RegisterFunc(s.function, address)
				found = true
				break
			}
		}
		if s.needed && !found {
			return nil, fmt.Errorf("libnvidia-ml.so.1 does not belong to an NVIDIA driver: it has no function %s", s.names[0])
		}
	}
	return f, nil
}
