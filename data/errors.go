package data

import (
	"errors"
	"fmt"
	"strings"
)

// The errors of this package, for use with errors.Is. A missing or unreadable file is
// fs.ErrNotExist or fs.ErrPermission.
var (
	// ErrFormat means that the data is malformed.
	ErrFormat = errors.New("malformed data")
	// ErrUnsupported means that this version cannot read the data.
	ErrUnsupported = errors.New("not supported")
	// ErrField means that a field does not exist, exists twice, or has the wrong type.
	ErrField = errors.New("wrong field")
	// ErrNoSplit means that the dataset has no such part.
	ErrNoSplit = errors.New("no such part")
	// ErrTooLarge means that the data exceeds Options.MaxBytes or another limit.
	ErrTooLarge = errors.New("larger than allowed")
	// ErrLabel means that a label is not a class of the model.
	ErrLabel = errors.New("label out of range")
	// ErrInteger means that a value is not an integer in the range.
	ErrInteger = errors.New("not an integer in the range")
	// ErrOption means that an option has an invalid value.
	ErrOption = errors.New("invalid option")
	// ErrNotFinite means that a value is NaN or infinite, or would be in the type of the
	// model's input.
	ErrNotFinite = errors.New("value is not finite")
)

// RowError reports a value that cannot be used for training.
type RowError struct {
	// File is the name of the file, or of a dataset that was made in memory.
	File string
	// Unit is the unit of Row: "line" in a text file, from 1, or "sample", from 0.
	Unit string
	Row  int
	// Column is a column of a text file, by name and number from 1, or a field with the index
	// of the element. It is empty if the whole row is wrong.
	Column string
	// Found, Expected and Fix complete the message.
	Found, Expected, Fix string
	// Err is the kind of error: ErrFormat, ErrLabel, ErrInteger or ErrNotFinite.
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

// quote quotes a found value and shortens it so that a message stays on one line.
func quote(text string) string {
	const limit = 40
	if len(text) > limit {
		return fmt.Sprintf("%q...", text[:limit])
	}
	return fmt.Sprintf("%q", text)
}
