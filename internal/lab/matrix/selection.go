package matrix

import (
	"fmt"
	"slices"
	"strings"
)

// All stands for all workloads or remedies.
const All = "all"

// Selection selects remedies for workloads.
type Selection []selected

// selected is an entry of a selection: "REMEDY", "WORKLOAD/REMEDY", "RUNTIME:REMEDY" or
// "RUNTIME:WORKLOAD/REMEDY". An omitted part is empty.
type selected struct{ runtime, workload, remedy string }

// ParseSelection parses the entries. No entries mean all remedies.
func ParseSelection(entries []string) (Selection, error) {
	if len(entries) == 0 {
		entries = []string{All}
	}
	var s Selection
	for _, entry := range entries {
		var e selected
		rest := entry
		if before, after, ok := strings.Cut(rest, ":"); ok {
			e.runtime, rest = before, after
			if !slices.Contains(Runtimes(), e.runtime) {
				return nil, fmt.Errorf("%s: %w: runtime %q; there are %s", entry, ErrUnknown, e.runtime,
					strings.Join(Runtimes(), ", "))
			}
		}
		if before, after, ok := strings.Cut(rest, "/"); ok {
			e.workload, rest = before, after
			if _, err := FindWorkload(e.workload); err != nil {
				return nil, fmt.Errorf("%s: %w", entry, err)
			}
		}
		if _, err := FindRemedy(rest); err != nil && rest != All {
			return nil, fmt.Errorf("%s: %w", entry, err)
		}
		e.remedy = rest
		s = append(s, e)
	}
	return s, nil
}

// Names reports whether an entry names a remedy.
func (s Selection) Names(remedy string) bool {
	return slices.ContainsFunc(s, func(e selected) bool { return e.remedy == remedy || e.remedy == All })
}

// Selects reports whether a remedy is applied to a workload on a runtime. An entry with the
// remedy "none" excludes its workload or runtime from less specific entries.
func (s Selection) Selects(runtime, workload, remedy string) bool {
	least := 0
	for _, e := range s {
		if e.remedy == Baseline && e.covers(runtime, workload) {
			least = max(least, e.narrowness())
		}
	}
	return slices.ContainsFunc(s, func(e selected) bool {
		return e.covers(runtime, workload) && e.narrowness() >= least && (e.remedy == remedy || e.remedy == All)
	})
}

func (e selected) covers(runtime, workload string) bool {
	return (e.runtime == "" || e.runtime == runtime) && (e.workload == "" || e.workload == workload)
}

// narrowness is higher for a more specific entry. A workload is more specific than a runtime.
func (e selected) narrowness() (n int) {
	if e.runtime != "" {
		n++
	}
	if e.workload != "" {
		n += 2
	}
	return n
}
