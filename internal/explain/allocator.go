package explain

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/internal/native"
	"steadyfit/internal/tfprocess"
)

// UseAllocator executes this program again if malloc needs other environment variables, since malloc
// reads them at its start: those of an allocator, which may be empty, and those with which jemalloc
// profiles the heap. oneDNN has the meaning of gpuopts.Options.
func UseAllocator(allocator, oneDNN string) (err error) {
	const preload, conf = "LD_PRELOAD", "MALLOC_CONF"
	jemalloc := func() bool {
		return strings.Contains(os.Getenv(preload), tfprocess.Allocators[tfprocess.Jemalloc].File)
	}
	if jemalloc() && strings.HasSuffix(os.Getenv(conf), native.HeapProfileSettings) {
		return nil // this process was executed again
	}
	var missing []gpuopts.Variable
	if allocator != "" {
		missing, err = autotune.Configuration{Allocator: allocator, OneDNN: oneDNN}.Environment()
	}
	for _, v := range missing {
		err = errors.Join(err, os.Setenv(v.Name, v.Value))
	}
	if jemalloc() {
		err = errors.Join(err, os.Setenv(conf, strings.TrimPrefix(os.Getenv(conf)+","+native.HeapProfileSettings, ",")))
	} else if len(missing) == 0 {
		return err
	}
	path, unknown := os.Executable()
	if err = cmp.Or(err, unknown); err != nil {
		return err
	}
	return fmt.Errorf("cannot start this program again: %w", syscall.Exec(path, os.Args, os.Environ()))
}
