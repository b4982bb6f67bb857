package native

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"steadyfit/internal/tfprocess"
)

// Stack is native memory that a stack of functions allocated and did not free.
type Stack struct {
	// BytesPerStep is an estimate from samples.
	BytesPerStep float64 `json:"bytes_per_step"`
	// Functions are those of native code, the innermost first.
	Functions []string `json:"functions"`
}

const (
	// HeapProfileSettings are settings of MALLOC_CONF with which jemalloc records the stack of one allocation
	// in 2^16 bytes.
	HeapProfileSettings = "prof:true,lg_prof_sample:16"
	// mostStacks and mostFunctions are the maximum numbers in a report.
	mostStacks, mostFunctions = 3, 8
	// leastStack is the least share of the growth for a stack to be reported.
	leastStack = 0.1
)

// HeapProfile is a heap profile of jemalloc. It maps each stack, as the text of its addresses, to an estimate
// of its bytes in use.
type HeapProfile map[string]float64

// ReadHeapProfile reads the profile of this process. The result is nil if malloc is not a jemalloc that
// profiles the heap.
func ReadHeapProfile() (HeapProfile, error) {
	dir, err := os.MkdirTemp("", "steadyfit-heap-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "heap")
	if !tfprocess.DumpHeap(path) {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseHeapProfile(text)
}

// parseHeapProfile parses jemalloc's text format, heap_v2.
func parseHeapProfile(text []byte) (HeapProfile, error) {
	text, _, complete := bytes.Cut(text, []byte("\nMAPPED_LIBRARIES:\n"))
	p := HeapProfile{}
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
			p[stack] += unsampled(count, size, period)
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

// Growth returns the stacks whose memory grew most since an earlier profile of this process.
func (p HeapProfile) Growth(since HeapProfile, steps int) (found []Stack) {
	grown, total := map[string]float64{}, 0.0
	for stack, live := range p {
		if by := live - since[stack]; by > 0 {
			grown[stack] = by
			total += by
		}
	}
	all := slices.SortedFunc(maps.Keys(grown), func(a, b string) int {
		return cmp.Or(cmp.Compare(grown[b], grown[a]), cmp.Compare(a, b))
	})
	for _, stack := range all[:min(len(all), mostStacks)] {
		if grown[stack] < leastStack*total {
			break
		}
		found = append(found, Stack{BytesPerStep: grown[stack] / float64(max(steps, 1)), Functions: functions(stack)})
	}
	return found
}

// functions names the functions of a stack, without those of malloc and those from which Go calls C.
func functions(stack string) (names []string) {
	for _, text := range strings.Fields(stack) {
		at, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			continue
		}
		name := tfprocess.FunctionAt(uintptr(at - 1)) // the address of a call is before that of its return
		name = demangle.Filter(name, demangle.NoParams, demangle.NoTemplateParams, demangle.NoClones)
		if strings.HasPrefix(name, "_cgo_") || len(names) == mostFunctions {
			break
		}
		if name != "" && !passesOn(name) {
			names = append(names, name)
		}
	}
	return names
}

// passesOn reports whether a function only passes an allocation on.
func passesOn(name string) bool {
	return strings.HasPrefix(name, "operator new") ||
		slices.Contains([]string{"malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign",
			"tsl::port::AlignedMalloc"}, name)
}
