//go:build !linux

package memory

import (
	"errors"
	"fmt"
	"os"

	ps "github.com/shirou/gopsutil/v3/process"
)

// Read asks the operating system how much memory this process uses, now. This
// system tells the resident memory alone; the other amounts are absent. If it
// does not tell even that, the error is ErrUnavailable.
func Read() (Usage, error) { return ReadPID(os.Getpid()) }

// ReadPID is Read for another process. If there is no such process, the error
// is ErrEnded.
func ReadPID(pid int) (Usage, error) {
	var p process
	if err := p.open(pid); err != nil {
		return Usage{}, err
	}
	s, err := p.usage()
	return s.Usage, err
}

// status is what the system says of a process.
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

// group is a control group; only Linux has them.
type group struct{}

func (*group) open(int)                    {}
func (*group) read() (used, limit Reading) { return Reading{}, Reading{} }
func (*group) close()                      {}
