//go:build !linux

package memory

import (
	"fmt"
	"os"

	"github.com/shirou/gopsutil/v3/process"
)

// Read asks the operating system how much memory this process uses, now. This
// system tells the resident memory alone; the other amounts are absent. If it
// does not tell even that, the error is ErrUnavailable.
func Read() (Usage, error) {
	self, err := process.NewProcess(int32(os.Getpid()))
	if err != nil {
		return Usage{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	info, err := self.MemoryInfo()
	if err != nil {
		return Usage{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return Usage{RSS: Known(Bytes(info.RSS))}, nil
}
