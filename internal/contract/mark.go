package contract

import "errors"

type marked struct {
	error
	kind error
}

// Mark returns an error with the text of err. With errors.Is, it matches err, kind, and what kind
// wraps.
func Mark(err, kind error) error { return marked{err, kind} }

func (m marked) Unwrap() error        { return m.error }
func (m marked) Is(target error) bool { return errors.Is(m.kind, target) }
