package main

import (
	"fmt"
	"slices"
	"strings"

	"steadyfit/matrix"
)

const allOfThem = "all"

// selection is the value of --remedies.
type selection []selected

// selected is an entry of --remedies: "REMEDY", "WORKLOAD/REMEDY", "RUNTIME:REMEDY" or
// "RUNTIME:WORKLOAD/REMEDY". An omitted part is empty.
type selected struct{ runtime, workload, remedy string }

// parseSelection parses the entries. No entries mean all remedies.
func parseSelection(entries []string) (selection, error) {
	if len(entries) == 0 {
		entries = []string{allOfThem}
	}
	var s selection
	for _, entry := range entries {
		var e selected
		rest := entry
		if before, after, ok := strings.Cut(rest, ":"); ok {
			e.runtime, rest = before, after
			if !slices.Contains(matrix.Runtimes(), e.runtime) {
				return nil, fmt.Errorf("%s: %w: runtime %q; there are %s", entry, matrix.ErrUnknown, e.runtime, strings.Join(matrix.Runtimes(), ", "))
			}
		}
		if before, after, ok := strings.Cut(rest, "/"); ok {
			e.workload, rest = before, after
			if _, err := matrix.FindWorkload(e.workload); err != nil {
				return nil, fmt.Errorf("%s: %w", entry, err)
			}
		}
		if e.remedy = rest; rest != allOfThem {
			if _, err := matrix.FindRemedy(rest); err != nil {
				return nil, fmt.Errorf("%s: %w", entry, err)
			}
		}
		s = append(s, e)
	}
	return s, nil
}

func (s selection) names(remedy string) bool {
	return slices.ContainsFunc(s, func(e selected) bool { return e.remedy == remedy || e.remedy == allOfThem })
}

// selects reports whether a remedy is applied to a workload on a runtime. An entry with the
// remedy "none" excludes its workload or runtime from less specific entries.
func (s selection) selects(runtime, workload, remedy string) bool {
	least := 0
	for _, e := range s {
		if e.remedy == matrix.Baseline && e.covers(runtime, workload) {
			least = max(least, e.narrowness())
		}
	}
	return slices.ContainsFunc(s, func(e selected) bool {
		return e.covers(runtime, workload) && e.narrowness() >= least && (e.remedy == remedy || e.remedy == allOfThem)
	})
}

func (e selected) covers(runtime, workload string) bool {
	return (e.runtime == "" || e.runtime == runtime) && (e.workload == "" || e.workload == workload)
}

// narrowness is higher for a more specific entry. A workload is more specific than a runtime.
func (e selected) narrowness() int {
	n := 0
	if e.runtime != "" {
		n++
	}
	if e.workload != "" {
		n += 2
	}
	return n
}
