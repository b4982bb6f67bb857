// Package fault has the errors that package data and its internal packages share.
package fault

import (
	"errors"
	"fmt"
	"io/fs"
)

// The errors of package data with the same names.
var (
	ErrFormat      = errors.New("malformed data")
	ErrUnsupported = errors.New("not supported")
	ErrTooLarge    = errors.New("larger than allowed")
)

// Read returns the error for a read that failed with err, without the path in err.
func Read(err error) error { return fmt.Errorf("read error: %w", WithoutPath(err)) }

// WithoutPath returns the cause of an error about a file.
func WithoutPath(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// Recovered converts a panic of a decoder, which a damaged file may cause, to an error.
func Recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the decoder failed: %v: %w", p, ErrFormat)
	}
}
