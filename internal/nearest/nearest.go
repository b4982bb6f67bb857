// Package nearest suggests existing names for a misspelt name.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// Sort returns names ordered by their Levenshtein distance to want, ignoring case, and then by name. Only
// the first 64 bytes of a name count, since the cost is quadratic and names come from files.
func Sort(want string, names []string) []string {
	type scored struct {
		name     string
		distance int
	}
	all := make([]scored, len(names))
	for i, n := range names {
		all[i] = scored{n, distance(short(want), short(n))}
	}
	slices.SortFunc(all, func(a, b scored) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = s.name
	}
	return out
}

func short(name string) string {
	return strings.ToLower(name[:min(len(name), 64)])
}

// Meant returns the name of which want is probably a misspelling: one that differs in at most two bytes, as
// Sort compares names. It returns "" if there is none, or if want is too short to tell.
func Meant(want string, names []string) string {
	if best := Sort(want, names); len(want) >= 3 && len(best) > 0 && distance(short(want), short(best[0])) <= 2 {
		return best[0]
	}
	return ""
}

// distance returns the Levenshtein distance: the number of bytes to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
