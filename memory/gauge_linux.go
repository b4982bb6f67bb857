package memory

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// gauge reads /proc/self/statm, or a file of the control group.
type gauge struct {
	statm  int // -1 if it is not open
	group  group
	page   Bytes
	buffer [128]byte
}

func (g *gauge) open(layer Layer) error {
	g.statm, g.page = -1, Bytes(os.Getpagesize())
	g.group.used = -1
	if layer == CgroupUsed {
		g.group.open(os.Getpid())
		return nil
	}
	fd, err := syscall.Open("/proc/self/statm", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return unreadable("/proc/self/statm", err)
	}
	g.statm = fd
	return nil
}

func (g *gauge) read(layer Layer) Reading {
	if layer == CgroupUsed {
		return g.group.amount(g.group.used)
	}
	if g.statm < 0 {
		return Reading{}
	}
	text, err := readAll(g.statm, g.buffer[:])
	if err != nil {
		return Reading{}
	}
	// size, resident, shared (files and shmem), in pages.
	_, text, _ = bytes.Cut(text, []byte(" "))
	first, text, _ := bytes.Cut(text, []byte(" "))
	second, _, _ := bytes.Cut(text, []byte(" "))
	resident, shared := number(first), number(second)
	if !resident.OK || !shared.OK {
		return Reading{}
	}
	if layer == Anon {
		resident.Bytes -= min(shared.Bytes, resident.Bytes)
	}
	return Known(resident.Bytes * g.page)
}

func (g *gauge) close() error {
	g.group.close()
	if g.statm < 0 {
		return nil
	}
	fd := g.statm
	g.statm = -1
	return os.NewSyscallError("close "+strconv.Itoa(fd), syscall.Close(fd))
}
