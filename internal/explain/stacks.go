package explain

import (
	"bufio"
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"steadyfit/internal/allocator"
	"steadyfit/internal/files"
	"steadyfit/internal/tfprocess"
)

// Stack is native memory that a stack of functions allocated and did not free in the sampled steps.
type Stack struct {
	// BytesPerStep is an estimate from samples.
	BytesPerStep float64 `json:"bytes_per_step"`
	// Functions are those of native code, the innermost first.
	Functions []string `json:"functions"`
}

const (
	// profileSettings make jemalloc record the stack of one allocation in 2^16 bytes.
	profileSettings = "prof:true,lg_prof_sample:16"
	// mostStacks and mostFunctions are the maximum numbers in a report.
	mostStacks, mostFunctions = 3, 8
	// leastStack is the least share of the growth for a stack to be reported.
	leastStack = 0.1
)

// profiling returns the variable that makes jemalloc profile the heap of a process, if it is preloaded.
func profiling() []string {
	if !strings.Contains(os.Getenv("LD_PRELOAD"), allocator.Libraries[allocator.Jemalloc].File) {
		return nil
	}
	return []string{"MALLOC_CONF=" + strings.TrimPrefix(os.Getenv("MALLOC_CONF")+","+profileSettings, ",")}
}

// profile is a heap profile of jemalloc in its text format, heap_v2.
type profile struct {
	// live maps each stack, as the text of its addresses, to an estimate of its bytes in use.
	live map[string]float64
	// maps are the mappings of the process, as in /proc/self/maps.
	maps []byte
}

// dumpProfile reads the profile of this process; nil if there is none, or if it cannot be written.
func dumpProfile() *profile {
	dir, remove, err := files.Scratch("steadyfit-heap-")
	if err != nil {
		return nil
	}
	defer func() { _ = remove() }() // a later process removes what is left
	path := filepath.Join(dir, "heap")
	if !tfprocess.DumpHeap(path) {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	p, err := parseProfile(text)
	if err != nil {
		return nil
	}
	return p
}

func parseProfile(text []byte) (*profile, error) {
	text, maps, complete := bytes.Cut(text, []byte("\nMAPPED_LIBRARIES:\n"))
	p := &profile{live: map[string]float64{}, maps: maps}
	var period, stack string
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch {
		case period == "":
			var ok bool
			if period, ok = strings.CutPrefix(line, "heap_v2/"); !ok {
				return nil, fmt.Errorf("heap profile: found %.20q at its start, expected heap_v2/", line)
			}
		case strings.HasPrefix(line, "@ "):
			stack = line[2:]
		case strings.HasPrefix(line, "t*: ") && stack != "":
			var count, size float64
			if _, err := fmt.Sscanf(line, "t*: %f: %f", &count, &size); err != nil {
				return nil, fmt.Errorf("heap profile: %q: %w", line, err)
			}
			p.live[stack] += unsampled(count, size, period)
		}
	}
	switch {
	case lines.Err() != nil:
		return nil, fmt.Errorf("heap profile: %w", lines.Err())
	case period == "" || !complete:
		return nil, errors.New("heap profile: it is incomplete")
	}
	return p, nil
}

// unsampled estimates the bytes of all allocations from those of the sampled ones. An allocation of n
// bytes is sampled with the probability 1-exp(-n/period).
func unsampled(count, size float64, period string) float64 {
	every, _ := strconv.ParseFloat(period, 64)
	if count == 0 || every <= 1 {
		return size
	}
	return size / (1 - math.Exp(-size/count/every))
}

// growth returns the stacks whose memory grew most since an earlier profile.
func (p *profile) growth(since *profile, steps int) (found []Stack) {
	total := 0.0
	type grown struct {
		stack string
		bytes float64
	}
	var all []grown
	for stack, live := range p.live {
		if by := live - since.live[stack]; by > 0 {
			all = append(all, grown{stack, by})
			total += by
		}
	}
	slices.SortFunc(all, func(a, b grown) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.stack, b.stack)) })
	symbols := newSymbols(p.maps)
	defer symbols.close()
	for _, g := range all[:min(len(all), mostStacks)] {
		if g.bytes < leastStack*total {
			break
		}
		found = append(found, Stack{BytesPerStep: g.bytes / float64(max(steps, 1)), Functions: symbols.functions(g.stack)})
	}
	return found
}

// symbols names the functions at addresses of this process.
type symbols struct {
	maps  []mapping
	files map[string]*functions
}

func newSymbols(maps []byte) *symbols {
	s := &symbols{files: map[string]*functions{}}
	for line := range strings.Lines(string(maps)) {
		if m, err := parseMapping(line); err == nil && m.path != "" && strings.Contains(m.access, "x") {
			s.maps = append(s.maps, m)
		}
	}
	return s
}

func (s *symbols) close() {
	for _, f := range s.files {
		if f.file != nil {
			_ = f.file.Close() // it was read only
		}
	}
}

// ofMalloc reports whether a function only passes an allocation on.
func ofMalloc(name string) bool {
	return strings.HasPrefix(name, "operator new") ||
		slices.Contains([]string{"malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "tsl::port::AlignedMalloc"}, name)
}

// functions names the functions of a stack, without those of malloc and those from which Go calls C.
func (s *symbols) functions(stack string) (names []string) {
	for _, text := range strings.Fields(stack) {
		at, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			continue
		}
		name := s.name(at - 1) // the address of a call is before that of its return
		if strings.HasPrefix(name, "_cgo_") || len(names) == mostFunctions {
			break
		}
		if name != "" && !ofMalloc(name) {
			names = append(names, name)
		}
	}
	return names
}

// name returns the function at an address; empty if it is unknown.
func (s *symbols) name(at uint64) string {
	i := slices.IndexFunc(s.maps, func(m mapping) bool { return m.from <= at && at < m.to })
	if i < 0 {
		return ""
	}
	m := s.maps[i]
	f, ok := s.files[m.path]
	if !ok {
		f = readFunctions(m.path)
		s.files[m.path] = f
	}
	return f.at(at - m.from + m.offset)
}

// functions has the functions of an ELF file. TensorFlow's library has over a million of them, so
// their names are not held in memory.
type functions struct {
	file  *elf.File // nil if it cannot be opened
	all   []function
	names *elf.Section
}

type function struct {
	offset, size uint64 // in the file
	name         uint32
}

// readFunctions reads the functions of a library; none if it has no symbols.
func readFunctions(path string) *functions {
	found := &functions{}
	file, err := elf.Open(path)
	if err != nil {
		return found
	}
	if found.file = file; file.Class != elf.ELFCLASS64 {
		return found
	}
	table := file.SectionByType(elf.SHT_SYMTAB)
	if table == nil {
		table = file.SectionByType(elf.SHT_DYNSYM)
	}
	if table == nil || int(table.Link) >= len(file.Sections) {
		return found
	}
	content, err := table.Data()
	if err != nil {
		return found
	}
	found.names = file.Sections[table.Link]
	for ; len(content) >= elf.Sym64Size; content = content[elf.Sym64Size:] {
		value, kind := file.ByteOrder.Uint64(content[8:]), elf.ST_TYPE(content[4])
		for _, p := range file.Progs {
			if kind == elf.STT_FUNC && p.Type == elf.PT_LOAD && p.Vaddr <= value && value < p.Vaddr+p.Filesz {
				found.all = append(found.all, function{value - p.Vaddr + p.Off, file.ByteOrder.Uint64(content[16:]), file.ByteOrder.Uint32(content)})
			}
		}
	}
	slices.SortFunc(found.all, func(a, b function) int { return cmp.Compare(a.offset, b.offset) })
	return found
}

// at returns the name of the function at an offset in the file.
func (f *functions) at(offset uint64) string {
	i, ok := slices.BinarySearchFunc(f.all, offset, func(s function, at uint64) int { return cmp.Compare(s.offset, at) })
	if !ok {
		i--
	}
	if i < 0 || offset >= f.all[i].offset+max(f.all[i].size, 1) {
		return ""
	}
	name := make([]byte, 1<<10)
	n, _ := f.names.ReadAt(name, int64(f.all[i].name))
	text, _, _ := bytes.Cut(name[:n], []byte{0})
	return demangle.Filter(string(text), demangle.NoParams, demangle.NoTemplateParams, demangle.NoClones)
}
