package data

import (
	"errors"
	"fmt"
	"strings"
)

// Errors to compare with errors.Is. A file that is missing or may not be read is fs.ErrNotExist
// or fs.ErrPermission.
var (
	// ErrFormat: the data is malformed.
	ErrFormat = errors.New("malformed data")
	// ErrUnsupported: this version does not read such data.
	ErrUnsupported = errors.New("not read by this version")
	// ErrField: a field does not exist, exists twice, or has the wrong type.
	ErrField = errors.New("wrong field")
	// ErrNoSplit: the dataset has no such part.
	ErrNoSplit = errors.New("no such part")
	// ErrTooLarge: the file holds more than Options.MaxBytes.
	ErrTooLarge = errors.New("larger than allowed")
	// ErrLabel: a label is not a class of the model.
	ErrLabel = errors.New("label out of range")
	// ErrInteger: a value is not an integer in the range.
	ErrInteger = errors.New("not an integer of the range")
	// ErrOption: an option has a value that cannot work.
	ErrOption = errors.New("wrong option")
	// ErrNotFinite: a value is NaN or infinite, or would be in the type of the model's input.
	ErrNotFinite = errors.New("value is not finite")
)

// RowError is a value that cannot be used for training.
type RowError struct {
	// File is the file, or the name of a dataset that was made in memory.
	File string
	// Unit is what Row counts: "line" of a text file, from 1, or "sample" from 0.
	Unit string
	Row  int
	// Column is a column of a text file, by name and number from 1, or a field with the index
	// of the element. Empty if the row as a whole is wrong.
	Column string
	// Found, Expected and Fix complete the sentence.
	Found, Expected, Fix string
	// Err is the kind of error: ErrFormat, ErrLabel, ErrInteger, ErrNotFinite.
	Err error
}

func (e *RowError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %d", e.File, e.Unit, e.Row)
	if e.Column != "" {
		fmt.Fprintf(&b, ", column %s", e.Column)
	}
	fmt.Fprintf(&b, ": found %s, expected %s", e.Found, e.Expected)
	if e.Fix != "" {
		fmt.Fprintf(&b, "; %s", e.Fix)
	}
	return b.String()
}

// Unwrap returns the kind of error.
func (e *RowError) Unwrap() error { return e.Err }

// quote shows a found value, cut so that a message stays one line.
func quote(text string) string {
	const limit = 40
	if len(text) > limit {
		return fmt.Sprintf("%q...", text[:limit])
	}
	return fmt.Sprintf("%q", text)
}
