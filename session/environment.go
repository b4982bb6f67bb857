package session

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"steadyfit/gpuopts"
	"steadyfit/option"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// UseEnvironment has the process run its program again, from the start and with the
// same arguments, with the environment variables that the options need: TensorFlow,
// CUDA and the C library read theirs once. It returns nil where they are set, so it is
// the first thing that main calls, before flags and files: nothing else of the process
// is kept. Processes that it starts inherit the variables.
//
// A variable that is set to something else is an *option.Error, and a
// TensorFlow that is open already is gpuopts.ErrTooLate. A program that cannot be
// started anew need not call this: Open sets the variables itself, where TensorFlow is
// not open yet.
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

// environ is the environment that TensorFlow reads: once it is open, that in which it was
// opened, whatever was set since.
func environ() []string {
	if env, open := tfbind.Environment(); open {
		return env
	}
	return os.Environ()
}

// deviceEnviron is the environment that TensorFlow reads when it makes its devices, with the
// first session: once there was one, that of then.
func deviceEnviron() []string {
	if env, made := tfbind.FirstEnvironment(); made {
		return env
	}
	return os.Environ()
}

// startWith starts the program anew with variables that are missing. call is what main
// calls for that.
func startWith(variables []gpuopts.Variable, call string) error {
	env, missing, err := gpuopts.With(environ(), variables)
	if err != nil || len(missing) == 0 {
		return err
	}
	if tfbind.Loaded() {
		return tooLate(missing, call)
	}
	return again(env, missing)
}

// StartAnew has the process run its program again, from the start and with the same
// arguments, with variables that are missing, whatever it has done so far: nothing of it is
// kept, TensorFlow included. It returns nil where they are set. A variable that is set to
// something else is an *option.Error. A supervised process cannot be started anew: its
// parent would take it for dead.
func StartAnew(variables []gpuopts.Variable) error {
	env, missing, err := gpuopts.With(os.Environ(), variables)
	if err != nil || len(missing) == 0 {
		return err
	}
	if supervise.InChild() {
		return fmt.Errorf("%s: a supervised process cannot be started anew", missing[0].For)
	}
	return again(env, missing)
}

// again starts the program anew. It returns only with an error.
func again(env []string, missing []gpuopts.Variable) error {
	path, err := os.Executable()
	if err == nil {
		err = syscall.Exec(path, os.Args, env)
	}
	return option.Errorf("{"+missing[0].For+"}: starting %s anew: %w", path, err)
}

// tooLate is the error of variables that an open TensorFlow has not been given.
func tooLate(missing []gpuopts.Variable, call string) error {
	var names []string
	for _, v := range missing {
		names = append(names, v.String())
	}
	list := strings.Join(names, " ")
	e := option.New(missing[0].For, "TensorFlow has been opened without "+list+" and reads that once",
		"call "+call+" first in main, or start the program with "+list)
	e.Err = gpuopts.ErrTooLate
	return e
}

// settle has what a session asks of the whole process in force, or says why that
// cannot be: what TensorFlow reads from the environment, and what it has set up with
// the first session. config is the session's serialized ConfigProto.
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
	if len(missing) > 0 && tfbind.Loaded() {
		return tooLate(missing, "session.UseEnvironment")
	}
	for _, v := range missing {
		if err := os.Setenv(v.Name, v.Value); err != nil {
			return fmt.Errorf("%s: set %s: %w", v.For, v.Name, err)
		}
	}
	if first, ok := tfbind.FirstConfig(); ok {
		return gpuopts.Later(first, config)
	}
	return nil
}
