// Package reexec restarts the program with other environment variables.
package reexec

import (
	"fmt"
	"os"
	"syscall"

	"steadyfit/gpuopts"
	"steadyfit/internal/child"
	"steadyfit/option"
)

// With restarts the program with the missing variables and the same arguments, even if
// TensorFlow is open. If all variables are set, it returns nil. If a variable
// has a different value, it returns an *option.Error. A supervised process cannot restart, because its
// parent would count a crash.
func With(variables []gpuopts.Variable) error {
	env, missing, err := gpuopts.With(os.Environ(), variables)
	if err != nil || len(missing) == 0 {
		return err
	}
	if child.Supervised.Load() {
		return fmt.Errorf("%s: a supervised process cannot restart", missing[0].For)
	}
	return Exec(env, missing)
}

// Exec restarts the program with the environment env, which has the missing variables. It returns only
// after an error.
func Exec(env []string, missing []gpuopts.Variable) error {
	path, err := os.Executable()
	if err == nil {
		err = syscall.Exec(path, os.Args, env)
	}
	return option.Errorf("{"+missing[0].For+"}: restarting %s: %w", path, err)
}
