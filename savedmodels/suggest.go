package savedmodels

import "strings"

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
