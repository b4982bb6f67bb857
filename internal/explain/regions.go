package explain

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"steadyfit/memory"
)

// regions are the resident pages of a process by kind of mapping.
type regions struct {
	// libraries are the pages of programs and shared libraries, including pages that relocation
	// changed. files are those of other files by name, with shared memory.
	libraries memory.Bytes
	files     []Holder
	// arenas is the memory of the Go heap, and code that of compiled code, such as oneDNN's. native is
	// the rest of anonymous memory without stacks.
	arenas, code, native, stacks memory.Bytes
	// large is the part of native that is not in the heaps of glibc's malloc: blocks that were mapped one
	// by one, such as the regions of TensorFlow's pool, and memory of the Go runtime.
	large     memory.Bytes
	anonymous memory.Bytes
}

func (r *regions) total() memory.Bytes {
	sum := r.libraries + r.arenas + r.code + r.native + r.stacks
	for _, f := range r.files {
		sum += f.Bytes
	}
	return sum
}

// arenasSpan is the range of addresses around an object of the Go heap that contains all arenas.
// The runtime places them one after the other, from a random address that is far from other
// mappings (mallocinit in runtime/malloc.go).
const arenasSpan = 64 << 30

// inArenas reports whether an address is in the arenas of the Go heap.
func inArenas(address uint64) bool {
	near := uint64(uintptr(unsafe.Pointer(onHeap)))
	return address+arenasSpan > near && address < near+arenasSpan
}

// onHeap is an object of the Go heap.
var onHeap = func() *[64]*int { return new([64]*int) }()

// stackMost is the usual limit of the stack of a thread.
const stackMost = 8 << 20

const smaps = "/proc/self/smaps"

// readRegions reads the regions of this process, in some milliseconds.
func readRegions() (regions, error) {
	f, err := os.Open(smaps)
	if err != nil {
		return regions{}, fmt.Errorf("%w: %w", memory.ErrUnavailable, err)
	}
	defer f.Close()
	return parseRegions(f)
}

// mapping is one entry of smaps.
type mapping struct {
	from, to       uint64
	offset         uint64 // in the file
	access, path   string
	rss, anonymous memory.Bytes
}

func parseRegions(text io.Reader) (r regions, err error) {
	var before, m mapping
	var native memory.Bytes // of the mapping before, if it is native
	add := func() {
		// The rest of a heap's address space follows without access.
		if m.to > 0 && !(m.access == "---p" && m.from == before.to && m.to%heapMost == 0) {
			r.large += native
		}
		native = -r.native
		if m.to > 0 {
			r.add(before, m)
		}
		native += r.native
		if m.path == "[heap]" {
			native = 0
		}
		before = m
	}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		line := lines.Bytes()
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && !bytes.ContainsRune(name, ' ') {
			switch string(name) {
			case "Rss":
				m.rss = kilobytes(value)
			case "Anonymous":
				m.anonymous = kilobytes(value)
			}
			continue
		}
		add()
		if m, err = parseMapping(string(line)); err != nil {
			return r, err
		}
	}
	add()
	r.large += native
	if err := lines.Err(); err != nil {
		return r, fmt.Errorf("read the mappings of the process: %w", err)
	}
	return r, nil
}

// parseMapping parses a line such as "7f00-7f01 rw-p 00000000 08:01 1234   /lib/libc.so.6".
func parseMapping(line string) (m mapping, err error) {
	fields := strings.Fields(line)
	if len(fields) >= 5 {
		low, high, _ := strings.Cut(fields[0], "-")
		if m.from, err = strconv.ParseUint(low, 16, 64); err == nil {
			m.to, err = strconv.ParseUint(high, 16, 64)
		}
		if err == nil {
			m.offset, err = strconv.ParseUint(fields[2], 16, 64)
		}
		m.access = fields[1]
		if len(fields) > 5 {
			m.path = strings.Join(fields[5:], " ")
		}
		if err == nil {
			return m, nil
		}
	}
	return m, fmt.Errorf("%w: unexpected line %q in %s", memory.ErrUnavailable, line, smaps)
}

func kilobytes(text []byte) memory.Bytes {
	n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(text)), " kB"), 10, 64)
	return memory.Bytes(n) * memory.KiB
}

func (r *regions) add(before, m mapping) {
	r.anonymous += m.anonymous
	switch file := strings.HasPrefix(m.path, "/"); {
	case m.rss == 0:
	case m.path == "[stack]" || m.isStack(before):
		r.stacks += m.rss
	case m.path == "" && inArenas(m.from):
		r.arenas += m.rss
	case !file && strings.Contains(m.access, "x"):
		r.code += m.rss
	case m.path == "" && before.isLibrary() && before.to == m.from && m.to-m.from <= zeroMost: // variables without initial values
		r.libraries += m.rss
	case !file:
		r.native += m.rss
	case m.isLibrary():
		r.libraries += m.rss
	default:
		name := filepath.Base(m.path)
		i := slices.IndexFunc(r.files, func(h Holder) bool { return h.Name == name })
		if i < 0 {
			i = len(r.files)
			r.files = append(r.files, Holder{Name: name})
		}
		r.files[i].Bytes += m.rss
	}
}

// isStack reports whether a mapping is the stack of a thread, which follows a guard page without access.
func (m *mapping) isStack(before mapping) bool {
	return m.path == "" && before.to == m.from && before.access == "---p" && before.to-before.from == pageSize && m.to-m.from <= stackMost
}

const pageSize = 4096

// zeroMost is the maximum size of a mapping after a library that counts as the variables of the library
// without initial values. TensorFlow has less than 1 MiB of them. A larger mapping may be native memory
// that the kernel placed after the library and merged with the variables. The Go program has 32 MiB of
// such variables, but few of their pages are resident.
const zeroMost = 2 << 20

// heapMost is the address space of a heap of glibc's malloc, and its alignment (malloc/arena.c).
const heapMost = 64 << 20

func (m *mapping) isLibrary() bool {
	name := filepath.Base(m.path)
	executable, err := os.Executable()
	return m.path != "" && (strings.Contains(name, ".so") || err == nil && strings.TrimSuffix(m.path, " (deleted)") == executable)
}
