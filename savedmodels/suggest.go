package savedmodels

import (
	"cmp"
	"slices"
	"strings"
)

// nearest returns names ordered by how likely each is what was meant by the
// misspelt want: by edit distance without regard to case, then by name.
func nearest(want string, names []string) []string {
	type scored struct {
		name string
		d    int
	}
	all := make([]scored, len(names))
	for i, n := range names {
		all[i] = scored{n, distance(strings.ToLower(want), strings.ToLower(n))}
	}
	slices.SortFunc(all, func(a, b scored) int {
		return cmp.Or(cmp.Compare(a.d, b.d), cmp.Compare(a.name, b.name))
	})
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = s.name
	}
	return out
}

// distance is the Levenshtein distance of the first 64 bytes of a and b: names
// come from files that may hold anything, and the cost is quadratic.
func distance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
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

// enumerate joins names for a message, the first max of them in full.
func enumerate(names []string, max int) string {
	shown := names
	if len(shown) > max {
		shown = shown[:max]
	}
	s := strings.Join(shown, ", ")
	if n := len(names) - len(shown); n > 0 {
		s += " and " + plural(n, "other")
	}
	return s
}
