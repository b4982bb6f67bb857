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
// variables that the options need, because TensorFlow, CUDA and the C library read them only
// once. It returns nil if they are already set, so it should be the first call in main. Child
// processes inherit the variables.
//
// A variable with a different value is an *option.Error. If TensorFlow is already open, the
// error is gpuopts.ErrTooLate. Programs that cannot restart need not call this: Open sets the
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

// environ returns the environment that TensorFlow uses: the environment at the time TensorFlow
// was opened, or else the current one.
func environ() []string {
	if env, open := tfbind.Environment(); open {
		return env
	}
	return os.Environ()
}

// deviceEnviron returns the environment that TensorFlow uses for its devices: the environment
// at the time of the first session, or else the current one.
func deviceEnviron() []string {
	if env, made := tfbind.FirstEnvironment(); made {
		return env
	}
	return os.Environ()
}

// startWith restarts the program with the missing variables. call is the name of the exported
// function.
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

// Restart restarts the program with the same arguments and with the missing variables. Unlike
// UseEnvironment, it does so even if TensorFlow is open. It returns nil if all variables are
// set. A variable with a different value is an *option.Error. A supervised process cannot
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

// restart restarts the program. It returns only if that fails.
func restart(env []string, missing []gpuopts.Variable) error {
	path, err := os.Executable()
	if err == nil {
		err = syscall.Exec(path, os.Args, env)
	}
	return option.Errorf("{"+missing[0].For+"}: restarting %s: %w", path, err)
}

// tooLate is the error for variables that were not set when TensorFlow was opened.
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

// settle applies the settings of a session that hold for the whole process, or returns an
// error if it is too late. TensorFlow reads some settings from the environment when it is
// opened, and others with the first session. config is the session's serialized ConfigProto.
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
