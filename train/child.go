package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/option"
	"steadyfit/session"
	"steadyfit/supervise"
)

// taskName is the name of the task that trains in a child process.
const taskName = "train"

// job is the specification of a child process that trains.
type job struct {
	// Child is Config.Child as JSON.
	Child json.RawMessage `json:"child"`
	// Chosen is the configuration that the parent has measured to be the fastest; nil if it measured none.
	Chosen *autotune.Configuration `json:"chosen,omitempty"`
}

// Init makes child processes possible. A program that wants them calls it first in main, since main runs
// from its beginning in a child. In a child, Init trains or measures and ends the process without
// returning; in the program, it returns at once.
//
// config returns the Config of a training in a child. spec is Config.Child of the parent as JSON. The
// Config must be the same as in the parent, with hooks and other functions, which cannot be passed to
// another process. Run replaces none of it. Without config, child processes only measure (Config.Autotune).
//
// Without Init, Run trains in this process, and an option that needs a child is an *option.Error.
func Init(config func(spec []byte) (Config, error)) {
	if trial, err := autotune.Init(context.Background()); trial {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:revive // The process exists to measure.
	}
	if config == nil {
		return
	}
	supervise.Init(map[string]supervise.Task{taskName: func(ctx context.Context, w *supervise.Worker, spec []byte) (any,
		error) {
		var j job
		if err := json.Unmarshal(spec, &j); err != nil {
			return nil, err
		}
		c, err := config(j.Child)
		if err != nil {
			return nil, c.outcome(err)
		}
		r, err := newTraining(c, w, j.Chosen).here(ctx)
		return r, c.outcome(err)
	}})
}

// outcome adds the exit code and the text for the parent to an error in a child process.
func (c *Config) outcome(err error) error {
	if err == nil || errors.Is(err, supervise.ErrRestart) {
		return err
	}
	failed := &supervise.Error{Code: ExitCode(err), Text: err.Error(), Err: err}
	if c.Outcome != nil {
		failed.Code, failed.Text = c.Outcome(err)
	}
	return failed
}

// elsewhere is the error of a training that must continue in a child process with other environment variables.
type elsewhere struct {
	chosen  autotune.Configuration
	missing []gpuopts.Variable
}

func (e *elsewhere) Error() string { return fmt.Sprintf("%s needs another process", e.chosen) }

// inChild trains in a child process.
func (t *training) inChild(ctx context.Context, o supervise.Options, missing []gpuopts.Variable,
	chosen *autotune.Configuration) (Result, error) {
	r := noResult()
	for _, v := range missing {
		o.Env = append(o.Env, v.String())
	}
	text, err := json.Marshal(t.Child)
	if err != nil {
		return r, wrong("Config.Child", nil, err)
	}
	o.Result = &r
	err = supervise.Run(ctx, o, taskName, job{text, chosen})
	return r, err
}

// checkChild returns an error if an option needs a child process that the program has not allowed. child is
// true if the training runs in a child, and other is true if it lacks environment variables in this process.
func (t *training) checkChild(child, other bool) error {
	name, value := "Config.Allocator", any(t.Allocator)
	if child && t.Supervise != "" {
		name, value = "Config.Supervise", t.Supervise
	}
	switch {
	case t.Worker != nil && other:
		return &option.Error{Option: name, Value: value,
			Reason: "this child process was started without the environment variables that it needs",
			Fix:    "start it with them (supervise.Options.Env)"}
	case child && !supervise.Known(taskName):
		return &option.Error{Option: name, Value: value, Reason: "needs a child process",
			Fix: "call train.Init first in main, with a function that returns the Config"}
	case t.Autotune != "":
		return autotune.CheckAllowed()
	}
	return nil
}

// environment returns the environment variables that the options need and this process does not have.
func (t *training) environment() (missing []gpuopts.Variable, err error) {
	missing, err = session.Environment(t.Session.Device)
	if err != nil || t.Allocator == "" {
		return missing, err
	}
	more, err := autotune.Configuration{Allocator: t.Allocator, OneDNN: t.Session.Device.OneDNN}.Environment()
	return append(missing, more...), wrong("Config.Allocator", t.Allocator, err)
}
