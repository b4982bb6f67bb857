// Package english writes numbers, times and lists in messages.
package english

import (
	"strconv"
	"strings"
	"time"
)

// Count returns a number with a noun: "1 step", "3 steps".
func Count[N int | int64](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.FormatInt(int64(n), 10) + " " + noun
}

// List joins words, with another word before the last one: "a, b or c".
func List(words []string, last string) string {
	if n := len(words) - 1; n > 0 {
		return strings.Join(words[:n], ", ") + " " + last + " " + words[n]
	}
	return strings.Join(words, "")
}

// Duration rounds a time to three digits.
func Duration(d time.Duration) string {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}
