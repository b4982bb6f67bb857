package data

import (
	"errors"
	"fmt"
	"strings"

	"steadyfit/data/internal/fault"
	"steadyfit/internal/texts"
	"steadyfit/option"
)

// Errors for errors.Is. A missing or unreadable file is fs.ErrNotExist or fs.ErrPermission.
var (
	// ErrFormat means that the data is malformed.
	ErrFormat = fault.ErrFormat
	// ErrUnsupported means that this package cannot read the data.
	ErrUnsupported = fault.ErrUnsupported
	// ErrField means that a field does not exist, exists twice, or has the wrong type.
	ErrField = errors.New("wrong field")
	// ErrNoSplit means that the source does not have the part in Options.Split.
	ErrNoSplit = errors.New("no such part")
	// ErrTooLarge means that the values exceed the free memory, or an image exceeds its limit.
	ErrTooLarge = fault.ErrTooLarge
	// ErrLabel means that a label is not a class of the model.
	ErrLabel = errors.New("label out of range")
	// ErrValue means that a value is NaN or infinite, or outside the range of the model's input.
	ErrValue = errors.New("value out of range")
)

var errOption = errors.New("invalid option")

// RowError reports a value that training cannot use. An error for a source joins up to ten of them.
type RowError struct {
	// File is the name of the file or dataset.
	File string
	// Unit is the unit of Row: "line" (from 1) of a text file, "record" (from 0) of a TFRecord file, or "sample" (from 0).
	Unit string
	Row  int
	// Column is the name and number of a column in a text file, or the name of a field and the
	// index of an element. Empty means the whole row.
	Column string
	// Found is the invalid value, Expected the valid ones, and Fix what the user can do, with options in
	// braces as in option.Error.
	Found, Expected, Fix string
	// Err is the kind of error: ErrFormat, ErrLabel or ErrValue.
	Err error
}

// Error returns the text with the Go names of options.
func (e *RowError) Error() string { return e.OptionText(option.GoName) }

// OptionText returns the text of the error. name translates the options in it.
func (e *RowError) OptionText(name option.Name) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %d", e.File, e.Unit, e.Row)
	if e.Column != "" {
		fmt.Fprintf(&b, ", column %s", e.Column)
	}
	fmt.Fprintf(&b, ": found %s, expected %s", e.Found, e.Expected)
	if e.Fix != "" {
		fmt.Fprintf(&b, "; %s", option.Marked(e.Fix, name))
	}
	return b.String()
}

// Unwrap returns Err.
func (e *RowError) Unwrap() error { return e.Err }

// maxProblems is the maximum number of rows, arrays, files or images that an error describes.
const maxProblems = 10

// problems collects errors of a source whose other parts can still be checked.
type problems struct {
	source string
	errs   []error
	all    int // number of problems that were added; errs has the first ones
}

// add adds an error. It returns false once there are maxProblems errors.
func (p *problems) add(err error) bool {
	if p.all++; len(p.errs) < maxProblems {
		p.errs = append(p.errs, err)
	}
	return len(p.errs) < maxProblems
}

// err joins the errors; nil if there are none. If consecutive errors have the same remedy, only the first one shows it.
func (p *problems) err() error {
	if p.all == 0 {
		return nil
	}
	if p.all == 1 {
		return p.errs[0]
	}
	fix := ""
	for _, err := range p.errs {
		if row := (*RowError)(nil); errors.As(err, &row) {
			if row.Fix == fix {
				row.Fix = ""
			} else {
				fix = row.Fix
			}
		}
	}
	which := texts.Count(p.all, "problem")
	if p.all >= maxProblems {
		which = "the first problems"
	}
	return fmt.Errorf("%s: %s:\n%w", p.source, which, errors.Join(p.errs...))
}

// maxQuoted is the maximum number of bytes of a value in a message.
const maxQuoted = 40

// quote quotes a value for a message and truncates it.
func quote(text string) string {
	if len(text) > maxQuoted {
		return fmt.Sprintf("%q...", text[:maxQuoted])
	}
	return fmt.Sprintf("%q", text)
}
