package matrix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"steadyfit/matrix/cell"
)

// ours are variables that something other than TensorFlow reads.
var ours = []string{"GOGC", "GOMEMLIMIT", "MALLOC_", "LD_PRELOAD"}

// verify says why a remedy did not take in a run, or "" if it did as far as can
// be seen.
func (p *Plan) verify(j job, o *observed, v *variables) string {
	r := j.remedy
	if r.Preload != "" && !strings.Contains(o.maps, allocators[r.Preload].library) {
		return fmt.Sprintf("%s was not loaded: it is not among the mappings of the process", allocators[r.Preload].library)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		if slices.ContainsFunc(ours, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		if known, err := v.read(j.runtime, name); err == nil && !known {
			return fmt.Sprintf("this TensorFlow does not read %s: the name is nowhere in its libraries", name)
		}
	}
	for _, fact := range slices.Sorted(maps.Keys(r.Traced)) {
		count, traced := o.facts[fact]
		switch {
		case !traced: // this child traces nothing
		case r.Traced[fact] && count == "0":
			return fmt.Sprintf("the graph that ran has no %s", fact)
		case !r.Traced[fact] && count != "0":
			return fmt.Sprintf("the graph that ran has %s %s", count, fact)
		}
	}
	return ""
}

// variables tells which variables of the environment a TensorFlow can read: those
// whose names are in its libraries.
type variables struct {
	names     []string
	libraries map[string][]string // by runtime
	known     map[string]map[string]bool
}

func newVariables(p *Plan) *variables {
	v := &variables{libraries: make(map[string][]string), known: make(map[string]map[string]bool)}
	for _, r := range p.Remedies {
		for name := range r.Env {
			v.names = append(v.names, name)
		}
	}
	for runtime, c := range p.Commands {
		v.libraries[runtime] = c.Libraries
	}
	return v
}

// read reports whether a runtime's TensorFlow has the name of a variable. The
// libraries are searched once, for all names.
func (v *variables) read(runtime, name string) (bool, error) {
	libraries := v.libraries[runtime]
	if len(libraries) == 0 {
		return false, errors.New("no library to look into")
	}
	key := strings.Join(libraries, "\n")
	if v.known[key] == nil {
		found := make(map[string]bool)
		for _, library := range libraries {
			if err := search(library, v.names, found); err != nil {
				return false, err
			}
		}
		v.known[key] = found
	}
	return v.known[key][name], nil
}

// search marks the names that occur in a file, each as a whole string that ends
// with a zero byte.
func search(path string, names []string, found map[string]bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	const most = 128 // longer than any name
	buffer := make([]byte, 4<<20)
	kept := 0
	for {
		n, err := f.Read(buffer[kept:])
		for _, name := range names {
			if !found[name] && bytes.Contains(buffer[:kept+n], append([]byte(name), 0)) {
				found[name] = true
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		end := kept + n
		kept = min(most, end)
		copy(buffer, buffer[end-kept:end])
	}
}

// unmeasurable tells a failure that says that the remedy was not there to be
// measured from a death, which is a result.
func unmeasurable(f cell.Failure) bool { return f == cell.NotApplicable || f == cell.CouldNotApply }
