package session

import (
	"fmt"
	"os"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/internal/resolved"
	"steadyfit/internal/tfprocess"
	"steadyfit/option"
)

// Environment lists the environment variables that the options need and this process does not have, for a
// child process. If a variable is set to a different value, the error is an *option.Error.
func Environment(o gpuopts.Options) (missing []gpuopts.Variable, err error) {
	if missing, err = o.Environment(); err != nil {
		return nil, err
	}
	_, missing, err = gpuopts.With(os.Environ(), missing)
	return missing, err
}

// UseEnvironment sets the environment variables that the options need, which TensorFlow and CUDA read only
// once. Call it before tfbind.Load; Open also calls it. If a variable is set to a different value, the error
// is an *option.Error. If TensorFlow was opened without a variable, the error is gpuopts.ErrTooLate.
func UseEnvironment(o gpuopts.Options) error {
	environ := os.Environ()
	if _, first, made := tfprocess.FirstSession(); made { // TensorFlow has set up its devices
		environ = first
	}
	if _, err := o.Check(environ); err != nil {
		return err
	}
	variables, err := o.Environment()
	if err != nil {
		return err
	}
	env, open := tfprocess.Environment() // that TensorFlow was opened with
	if !open {
		env = os.Environ()
	}
	_, missing, err := gpuopts.With(env, variables)
	if err != nil {
		return err
	}
	if open && len(missing) > 0 {
		return tooLate(missing)
	}
	for _, v := range missing {
		if err := os.Setenv(v.Name, v.Value); err != nil {
			return fmt.Errorf("%s: set %s: %w", v.For, v.Name, err)
		}
	}
	return nil
}

func tooLate(missing []gpuopts.Variable) error {
	var names []string
	for _, v := range missing {
		names = append(names, v.String())
	}
	list := strings.Join(names, " ")
	e := option.New(missing[0].For, "TensorFlow was opened without "+list+" and reads its environment only once",
		"call session.UseEnvironment before the first use of TensorFlow, or start the program with "+list)
	e.Err = gpuopts.ErrTooLate
	return e
}

// settle applies the process-wide settings of a session, or returns gpuopts.ErrTooLate.
// TensorFlow reads some settings from the environment when it is opened, and others from the
// ConfigProto of the first session. config is the serialized ConfigProto of this session.
func settle(o gpuopts.Options, config []byte) error {
	if err := UseEnvironment(o); err != nil {
		return err
	}
	if first, _, ok := tfprocess.FirstSession(); ok {
		return resolved.Later(first, config)
	}
	return nil
}
