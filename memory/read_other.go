//go:build !linux

package memory

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	ps "github.com/shirou/gopsutil/v3/process"
)

type process struct{ p *ps.Process }

func (p *process) open(pid int) error {
	found, err := ps.NewProcess(int32(cmp.Or(pid, os.Getpid())))
	if errors.Is(err, ps.ErrorProcessNotRunning) {
		return fmt.Errorf("%w: %w", os.ErrProcessDone, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	p.p = found
	return nil
}

func (p *process) usage([]byte) (status, error) {
	info, err := p.p.MemoryInfo()
	if err != nil {
		return status{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return status{Usage: Usage{RSS: Known(Bytes(info.RSS))}}, nil
}

func (p *process) resetPeak() error {
	return fmt.Errorf("%w: this system keeps no peak that can be reset", ErrUnavailable)
}

func (p *process) close() error { return nil }

// group is empty, since only Linux has control groups.
type group struct{}

func (*group) open(int)                    {}
func (*group) read() (used, limit Reading) { return Reading{}, Reading{} }
func (*group) close()                      {}
