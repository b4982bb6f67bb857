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

// UseEnvironment restarts the program with the same arguments and with the environment
// variables that the options need: TensorFlow, CUDA and the C library read theirs once. It
// returns nil if they are set, so it is the first call in main. Child processes inherit
// the variables.
//
// A variable with another value is an *option.Error, and a TensorFlow that is open already
// is gpuopts.ErrTooLate. A program that cannot restart need not call this: Open sets the
// variables itself if TensorFlow is not open yet.
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

// environ is the environment that TensorFlow reads: that in which it was opened, or else
// the present one.
func environ() []string {
	if env, open := tfbind.Environment(); open {
		return env
	}
	return os.Environ()
}

// deviceEnviron is the environment that TensorFlow reads for its devices: that of the first
// session, or else the present one.
func deviceEnviron() []string {
	if env, made := tfbind.FirstEnvironment(); made {
		return env
	}
	return os.Environ()
}

// startWith restarts the program with the variables that are missing. call names the
// exported function.
func startWith(variables []gpuopts.Variable, call string) error {
	env, missing, err := gpuopts.With(environ(), variables)
	if err != nil || len(missing) == 0 {
		return err
	}
	if tfbind.Loaded() {
		return tooLate(missing, call)
	}
	return restart(env, missing)
}

// Restart restarts the program with the same arguments and with the variables that are
// missing, whatever it has done so far, TensorFlow included. It returns nil if they are
// set. A variable with another value is an *option.Error. A supervised process cannot
// restart: its parent would count a crash.
func Restart(variables []gpuopts.Variable) error {
	env, missing, err := gpuopts.With(os.Environ(), variables)
	if err != nil || len(missing) == 0 {
		return err
	}
	if supervise.InChild() {
		return fmt.Errorf("%s: a supervised process cannot restart", missing[0].For)
	}
	return restart(env, missing)
}

// restart restarts the program. It returns only with an error.
func restart(env []string, missing []gpuopts.Variable) error {
	path, err := os.Executable()
	if err == nil {
		err = syscall.Exec(path, os.Args, env)
	}
	return option.Errorf("{"+missing[0].For+"}: restarting %s: %w", path, err)
}

// tooLate is the error of variables that an open TensorFlow was not given.
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

// settle applies the settings of a session that hold for the whole process, or returns why
// that is too late: TensorFlow reads some from the environment when it is opened, and
// others with the first session. config is the session's serialized ConfigProto.
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
