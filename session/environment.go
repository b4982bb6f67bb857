package session

import (
	"fmt"
	"os"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/allocator"
	"steadyfit/internal/reexec"
	"steadyfit/internal/resolved"
	"steadyfit/internal/tfprocess"
	"steadyfit/option"
)

// releaseProfile makes TensorFlow allocate large blocks with malloc instead of its own pool, which
// returns nothing to the system. The profile also makes glibc keep freed blocks in the main arena,
// which has no heaps of 64 MiB. By default glibc unmaps each block, which costs page faults in
// every step. MALLOC_CONF does the same for a preloaded jemalloc.
var releaseProfile = []gpuopts.Variable{
	{Name: "TF_ONEDNN_USE_SYSTEM_ALLOCATOR", Value: "1", For: profileName},
	{Name: "MALLOC_ARENA_MAX", Value: "1", For: profileName},
	{Name: "MALLOC_MMAP_MAX_", Value: "0", For: profileName},
	{Name: "MALLOC_TRIM_THRESHOLD_", Value: "1099511627776", For: profileName},
	{Name: "MALLOC_CONF", Value: allocator.JemallocKeeps, For: profileName},
}

const profileName = "release profile"

// UseEnvironment restarts the program with the environment variables that the options need,
// because TensorFlow, CUDA and the C library read them only once. If the variables are already
// set, it returns nil; call it first in main. The arguments stay the same, and child processes
// inherit the variables.
//
// releaseMemory adds the variables of the release profile. With them, a reload and
// tfbind.TrimMalloc return the memory that TensorFlow has freed, at about the speed of TensorFlow's
// own pool, which returns none (docs/explanation/recovery.md). The profile is for Linux with glibc
// or jemalloc.
//
// If a variable is set to a different value, the error is an *option.Error. If TensorFlow is
// already open, the error is gpuopts.ErrTooLate. A program that cannot restart does not need
// UseEnvironment: the first Open sets the variables of the options.
func UseEnvironment(o gpuopts.Options, releaseMemory bool) error {
	var more []gpuopts.Variable
	if releaseMemory {
		more = releaseProfile
	}
	env, missing, err := missingFor(o, more)
	if err != nil || len(missing) == 0 {
		return err
	}
	return reexec.Exec(env, missing)
}

// missingFor returns the environment with the variables that the options need and those in more,
// and lists the variables that are missing now. If TensorFlow is already open and some are missing,
// the error is gpuopts.ErrTooLate.
func missingFor(o gpuopts.Options, more []gpuopts.Variable) (env []string, missing []gpuopts.Variable, err error) {
	if _, err := o.Check(deviceEnviron()); err != nil {
		return nil, nil, err
	}
	variables, err := o.Environment()
	if err != nil {
		return nil, nil, err
	}
	env, missing, err = gpuopts.With(environ(), append(variables, more...))
	if _, open := tfprocess.Environment(); open && len(missing) > 0 {
		return nil, nil, tooLate(missing)
	}
	return env, missing, err
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

func tooLate(missing []gpuopts.Variable) error {
	var names []string
	for _, v := range missing {
		names = append(names, v.String())
	}
	list := strings.Join(names, " ")
	e := option.New(missing[0].For, "TensorFlow was opened without "+list+" and reads its environment only once",
		"call session.UseEnvironment first in main, or start the program with "+list)
	e.Err = gpuopts.ErrTooLate
	return e
}

// settle applies the process-wide settings of a session, or returns gpuopts.ErrTooLate.
// TensorFlow reads some settings from the environment when it is opened, and others from the
// ConfigProto of the first session. config is the serialized ConfigProto of this session.
func settle(o gpuopts.Options, config []byte) error {
	_, missing, err := missingFor(o, nil)
	if err != nil {
		return err
	}
	for _, v := range missing {
		if err := os.Setenv(v.Name, v.Value); err != nil {
			return fmt.Errorf("%s: set %s: %w", v.For, v.Name, err)
		}
	}
	if first, _, ok := tfprocess.FirstSession(); ok {
		return resolved.Later(first, config)
	}
	return nil
}
