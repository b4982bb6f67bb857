// Package texts writes numbers, times, sizes, names, lists and paragraphs in messages and JSON, and suggests
// existing names for a misspelt name.
package texts

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Count returns a number with a noun: "1 step", "3 steps".
func Count[N int | int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.FormatInt(int64(n), 10) + " " + noun
}

// List joins words with commas, and with the word last, such as "or", before the last one: "a, b or
// c".
func List(words []string, last string) string {
	if n := len(words) - 1; n > 0 {
		return strings.Join(words[:n], ", ") + " " + last + " " + words[n]
	}
	return strings.Join(words, "")
}

// Some lists the first names and counts the others.
func Some(names []string) string {
	const most = 8
	if more := len(names) - most; more > 0 {
		return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(more) + " more"
	}
	return strings.Join(names, ", ")
}

// Duration rounds a time to three digits.
func Duration(d time.Duration) string {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

// Wrap breaks a text after a lead into lines of at most width columns. The lines after the first one are
// indented. A word that is longer than a line has a line of its own.
func Wrap(lead string, indent int, text string, width int) string {
	var b strings.Builder
	b.WriteString(lead)
	at, first := utf8.RuneCountInString(lead), true
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case first:
		case at+1+n > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
		first = false
	}
	return b.String()
}
