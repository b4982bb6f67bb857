package texts

import (
	"strconv"
	"strings"
	"unicode"
)

// Printable escapes control characters, since a model may contain any names.
func Printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
