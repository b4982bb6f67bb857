package train

import (
	"context"
	"path/filepath"
	"time"

	"steadyfit/data"
	"steadyfit/internal/files"
	"steadyfit/internal/native"
	"steadyfit/session"
)

// Profile selects train steps to trace. The zero value traces none.
type Profile struct {
	// First and Last are the numbers of the first and the last step, from 1.
	First, Last int64
	// File receives the times of all operations in the Trace Event Format, which Perfetto and
	// chrome://tracing open. An existing file is replaced, also by a process that resumes between First
	// and Last, and then has the remaining steps.
	File string
}

func (c *Config) checkProfile() error {
	p := c.Profile
	if p == (Profile{}) {
		return nil
	}
	switch {
	case p.First < 1 || p.Last < p.First:
		return refuse("Config.Profile", p.First, "the first step is at least 1, and the last step is not before it")
	case c.Session.Device.Executor != "":
		return refuse("Config.Profile", p.File, "the single-threaded executor cannot trace; leave {Options.Executor} at "+
			"its default")
	}
	return wrong("Config.Profile", p.File, files.Writable(filepath.Dir(p.File), 0))
}

// profiled is a session that traces the steps of a Profile.
type profiled struct {
	*session.Session
	t *training
	// file is open from the first traced step to the last one.
	file *files.Replacement
	to   *native.ProfileWriter
	done bool // the file is complete, could not be written, or was written by an earlier process
}

func (p *profiled) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	return p.trace(step, 1, func() error { return p.Session.Train(ctx, step, b, out) })
}

func (p *profiled) TrainN(ctx context.Context, step int64, n int, out []float64) error {
	return p.trace(step, n, func() error { return p.Session.TrainN(ctx, step, n, out) })
}

// trace calls do, which runs n steps, and traces it if steps of the profile are among them. earlier is
// the number of steps before them.
func (p *profiled) trace(earlier int64, n int, do func() error) error {
	first, last := earlier+1, earlier+int64(n)
	p.done = p.done || first > p.t.Profile.Last
	if p.done || last < p.t.Profile.First {
		return do()
	}
	began := time.Now().Round(0) // TensorFlow's times have no monotonic clock
	metadata, err := p.Trace(do)
	p.write(native.Profiled{First: first, Last: last, Began: began, Ended: time.Now().Round(0), Metadata: metadata})
	if last >= p.t.Profile.Last {
		p.end()
	}
	return err
}

// end completes the file, also of a training that ended before the last step of the profile.
func (p *profiled) end() {
	switch {
	case p == nil || p.done:
	case p.file != nil:
		p.finish(p.to.End())
	default:
		p.t.Loop.Log.Warn("no trace was written, since the training ran none of the steps", "first", p.t.Profile.First)
	}
}

// write adds an execution to the file. Errors are only logged as warnings.
func (p *profiled) write(e native.Profiled) {
	var err error
	if p.file == nil {
		if p.file, err = files.CreateFor(p.t.Profile.File); err == nil {
			p.to = native.NewProfileWriter(p.file)
		}
	}
	if err == nil {
		err = p.to.Write(e)
	}
	if err != nil {
		p.finish(err)
	}
}

// finish completes the file, or removes it after an error.
func (p *profiled) finish(err error) {
	p.done = true
	if p.file != nil {
		err = p.file.Finish(err)
	}
	if err != nil {
		p.t.Loop.Log.Warn("the trace could not be written; training continues", "error", err)
		return
	}
	p.t.Loop.Log.Info("trace written", "file", p.file.Path, "operations", p.to.Operations)
}
