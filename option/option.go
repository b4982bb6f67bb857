// Package option has the error type for invalid options, used by all packages of steadyfit.
//
// Libraries use the Go names of options. A program with other names, such as flags, prints errors with
// Text.
package option

import (
	"fmt"
	"regexp"
	"strings"
)

// Error reports an option that is invalid or cannot be satisfied. It is returned before anything has
// changed.
//
// In Reason and Fix, braces mark names of other options, optionally with a value: {Loop.Epochs},
// {Options.Precision float16}.
type Error struct {
	Option string
	// Value is the invalid value. It may be nil.
	Value any
	// Reason is what is wrong, or what values are valid.
	Reason string
	// Fix is what to do. It may be empty if Reason implies it.
	Fix string
	Err error
}

// New returns an error. setting is the name of an option, optionally with a value: "Loop.Batch 0".
func New(setting, reason, fix string) *Error {
	name, value, ok := strings.Cut(setting, " ")
	e := &Error{Option: name, Reason: reason, Fix: fix}
	if ok {
		e.Value = value
	}
	return e
}

// Name translates the Go name of an option and its value, which may be empty, to the user's words.
type Name func(option, value string) string

type named interface {
	error
	OptionText(Name) string
}

// Error returns the text with Go names.
func (e *Error) Error() string { return e.OptionText(GoName) }

func (e *Error) Unwrap() error { return e.Err }

// OptionText returns the text of the error. name translates the options in it.
func (e *Error) OptionText(name Name) string {
	value := ""
	if e.Value != nil {
		value = fmt.Sprint(e.Value)
	}
	text := name(e.Option, value) + ": " + Marked(e.Reason, name)
	if e.Fix != "" {
		text += "; " + Marked(e.Fix, name)
	}
	return text
}

// GoName is a [Name] that returns the Go name of an option and its value.
func GoName(option, value string) string { return strings.TrimSpace(option + " " + value) }

// Errorf is like fmt.Errorf. Braces in the format mark names of options.
func Errorf(format string, args ...any) error {
	return &formatted{format, args, fmt.Errorf(Marked(format, GoName), args...)}
}

type formatted struct {
	format string
	args   []any
	err    error
}

func (f *formatted) Error() string { return f.err.Error() }
func (f *formatted) Unwrap() error { return f.err }
func (f *formatted) OptionText(name Name) string {
	return fmt.Errorf(Marked(f.format, name), f.args...).Error()
}

var marked = regexp.MustCompile(`\{[A-Za-z]+\.[A-Z][A-Za-z.]*( [^{}]*)?\}`)

// Marked replaces each option in braces in a text by its name.
func Marked(text string, name Name) string {
	return marked.ReplaceAllStringFunc(text, func(m string) string {
		option, value, _ := strings.Cut(m[1:len(m)-1], " ")
		return name(option, value)
	})
}

// Text returns the text of an error. name translates the options in it.
func Text(err error, name Name) string {
	text := err.Error()
	walk(err, func(n named) { text = strings.Replace(text, n.Error(), n.OptionText(name), 1) })
	return text
}

// walk calls do for each named error in the tree of an error, outer errors first.
func walk(err error, do func(named)) {
	if n, ok := err.(named); ok {
		do(n)
	}
	switch u := err.(type) {
	case interface{ Unwrap() error }:
		if inner := u.Unwrap(); inner != nil {
			walk(inner, do)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range u.Unwrap() {
			walk(inner, do)
		}
	}
}
