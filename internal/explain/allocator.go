package explain

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"

	"steadyfit/internal/autotune"
)

// UseAllocator executes this program again if an allocator, which may be empty, needs environment variables that the
// process does not have. oneDNN has the meaning of gpuopts.Options.
func UseAllocator(allocator, oneDNN string) error {
	if allocator == "" {
		return nil
	}
	missing, err := autotune.Configuration{Allocator: allocator, OneDNN: oneDNN}.Environment()
	for _, v := range missing {
		err = errors.Join(err, os.Setenv(v.Name, v.Value))
	}
	path, unknown := os.Executable()
	if err = cmp.Or(err, unknown); err != nil || len(missing) == 0 {
		return err
	}
	return fmt.Errorf("cannot start this program again: %w", syscall.Exec(path, os.Args, os.Environ()))
}
