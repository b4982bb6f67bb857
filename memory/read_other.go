//go:build !linux

package memory

import (
	"errors"
	"fmt"
	"os"

	ps "github.com/shirou/gopsutil/v3/process"
)

// Read returns the resident memory of this process; other amounts are unknown on this system. If
// nothing is reported, the error is ErrUnavailable.
func Read() (Usage, error) {
	var p process
	if err := p.open(os.Getpid()); err != nil {
		return Usage{}, err
	}
	s, err := p.usage()
	return s.Usage, err
}

type status struct {
	Usage
	shared, swap, threads Reading
}

type process struct{ p *ps.Process }

func (p *process) open(pid int) error {
	found, err := ps.NewProcess(int32(pid))
	if errors.Is(err, ps.ErrorProcessNotRunning) {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	p.p = found
	return nil
}

func (p *process) usage() (status, error) {
	info, err := p.p.MemoryInfo()
	if err != nil {
		return status{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return status{Usage: Usage{RSS: Known(Bytes(info.RSS))}}, nil
}

func (p *process) pss() Reading { return Reading{} }

func (p *process) resetPeak() error {
	return fmt.Errorf("%w: this system keeps no peak that can be reset", ErrUnavailable)
}

func (p *process) close() error { return nil }

// group is empty, since only Linux has control groups.
type group struct{}

func (*group) open(int)                    {}
func (*group) read() (used, limit Reading) { return Reading{}, Reading{} }
func (*group) close()                      {}
