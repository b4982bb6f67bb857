package fit

import "steadyfit/session"

// A Session of package session has all optional methods.
var _ interface {
	Session
	stacker
	lossScaler
	stateful
	accumulator
	finalizer
	meter
	variableChecker
	freezer
	ranked
} = (*session.Session)(nil)
