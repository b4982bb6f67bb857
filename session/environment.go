package session

import (
	"fmt"
	"os"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/reexec"
	"steadyfit/internal/tfprocess"
	"steadyfit/option"
)

// UseEnvironment restarts the program with the environment variables that the options need,
// because TensorFlow, CUDA and the C library read them only once. If the variables are already
// set, it returns nil; call it first in main. The arguments stay the same, and child processes
// inherit the variables.
//
// A variable with a different value returns an *option.Error. If TensorFlow is already open,
// the error is gpuopts.ErrTooLate. A program that cannot restart does not need UseEnvironment:
// the first Open sets the variables.
func UseEnvironment(o gpuopts.Options) error {
	if _, err := o.Check(deviceEnviron()); err != nil {
		return err
	}
	variables, err := o.Environment()
	if err != nil {
		return err
	}
	return startWith(variables, "session.UseEnvironment")
}

// environ returns the environment that TensorFlow was opened with, or the current environment
// if TensorFlow is not open.
func environ() []string {
	if env, open := tfprocess.Environment(); open {
		return env
	}
	return os.Environ()
}

// deviceEnviron returns the environment at TensorFlow's first session, or the current
// environment if there was no session.
func deviceEnviron() []string {
	if _, env, made := tfprocess.FirstSession(); made {
		return env
	}
	return os.Environ()
}

// startWith restarts the program if variables are missing. call names the exported function for
// errors.
func startWith(variables []gpuopts.Variable, call string) error {
	env, missing, err := gpuopts.With(environ(), variables)
	if err != nil || len(missing) == 0 {
		return err
	}
	if _, open := tfprocess.Environment(); open {
		return tooLate(missing, call)
	}
	return reexec.Exec(env, missing)
}

func tooLate(missing []gpuopts.Variable, call string) error {
	var names []string
	for _, v := range missing {
		names = append(names, v.String())
	}
	list := strings.Join(names, " ")
	e := option.New(missing[0].For, "TensorFlow was opened without "+list+" and reads its environment only once",
		"call "+call+" first in main, or start the program with "+list)
	e.Err = gpuopts.ErrTooLate
	return e
}

// settle applies the process-wide settings of a session, or returns gpuopts.ErrTooLate.
// TensorFlow reads some settings from the environment when it is opened, and others from the
// ConfigProto of the first session. config is the serialized ConfigProto of this session.
func settle(o gpuopts.Options, config []byte) error {
	if _, err := o.Check(deviceEnviron()); err != nil {
		return err
	}
	variables, err := o.Environment()
	if err != nil {
		return err
	}
	_, missing, err := gpuopts.With(environ(), variables)
	if err != nil {
		return err
	}
	if _, open := tfprocess.Environment(); open && len(missing) > 0 {
		return tooLate(missing, "session.UseEnvironment")
	}
	for _, v := range missing {
		if err := os.Setenv(v.Name, v.Value); err != nil {
			return fmt.Errorf("%s: set %s: %w", v.For, v.Name, err)
		}
	}
	if first, _, ok := tfprocess.FirstSession(); ok {
		return gpuopts.Later(first, config)
	}
	return nil
}
