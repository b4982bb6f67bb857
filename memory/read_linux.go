package memory

import (
	"bytes"
	"fmt"
	"syscall"
)

// statusSize is more than /proc/self/status has ever been; the memory lines
// come in its first half.
const statusSize = 8 << 10

// Read asks the operating system how much memory this process uses, now. It
// costs one read of /proc/self/status, some 20 us, and allocates a few bytes, so
// that watching memory does not move it.
//
// Amounts that this kernel does not tell are absent from the result. If it
// tells none, the error is ErrUnavailable.
func Read() (Usage, error) {
	fd, err := syscall.Open("/proc/self/status", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return Usage{}, fmt.Errorf("%w: /proc/self/status: %w; mount /proc to have it", ErrUnavailable, err)
	}
	defer syscall.Close(fd)
	var buffer [statusSize]byte
	n := 0
	for n < len(buffer) {
		m, err := syscall.Read(fd, buffer[n:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return Usage{}, fmt.Errorf("%w: /proc/self/status: %w", ErrUnavailable, err)
		}
		if m <= 0 {
			break
		}
		n += m
	}
	return parseStatus(buffer[:n])
}

// parseStatus reads the text of /proc/<pid>/status, which says "kB" and means
// units of 1024 bytes.
func parseStatus(status []byte) (Usage, error) {
	var u Usage
	for len(status) > 0 {
		line := status
		if end := bytes.IndexByte(status, '\n'); end >= 0 {
			line, status = status[:end], status[end+1:]
		} else {
			status = nil
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		switch string(name) {
		case "VmRSS":
			u.RSS = kilobytes(value)
		case "RssAnon":
			u.Anon = kilobytes(value)
		case "RssFile":
			u.File = kilobytes(value)
		case "VmHWM":
			u.Peak = kilobytes(value)
		}
	}
	if u == (Usage{}) {
		return u, fmt.Errorf("%w: /proc/self/status says nothing about memory", ErrUnavailable)
	}
	return u, nil
}

// kilobytes reads "   1696 kB".
func kilobytes(text []byte) Reading {
	text, ok := bytes.CutSuffix(bytes.TrimSpace(text), []byte(" kB"))
	if !ok || len(text) == 0 {
		return Reading{}
	}
	var n Bytes
	for _, c := range text {
		if c < '0' || c > '9' {
			return Reading{}
		}
		n = n*10 + Bytes(c-'0')
	}
	return Known(n * KiB)
}
