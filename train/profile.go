package train

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"steadyfit/data"
	"steadyfit/internal/files"
	"steadyfit/internal/native"
	"steadyfit/session"
)

// Profile selects train steps to trace. The zero value traces none.
type Profile struct {
	// First and Last are the numbers of the first and the last step, from 1. At most 1000 steps can be traced, since a
	// viewer has the whole file in memory. A training has the trace of one execution in memory.
	First, Last int64
	// File receives the times of all operations in the Trace Event Format, which Perfetto and
	// chrome://tracing open. An existing file is replaced. A process that resumes between First and
	// Last writes another file, with the number of its first step in the name, as in trace-15.json.
	File string
}

// maxProfile is the maximum number of steps of a Profile.
const maxProfile = 1000

// text returns the steps and the file as the option's value in an error.
func (p Profile) text() string { return fmt.Sprintf("steps=%d:%d,file=%s", p.First, p.Last, p.File) }

func (c *Config) checkProfile() error {
	p := c.Profile
	if p == (Profile{}) {
		return nil
	}
	switch info, err := os.Stat(p.File); {
	case p.First < 1 || p.Last < p.First:
		return refuse("Config.Profile", p.text(), "the first step is at least 1, and the last step is not before it")
	case p.Last-p.First >= maxProfile:
		return refuse("Config.Profile", p.text(), "at most %d steps can be traced, and these are %d", maxProfile,
			p.Last-p.First+1)
	case p.File == "":
		return refuse("Config.Profile", p.text(), "it names no file for the trace")
	case err == nil && !info.Mode().IsRegular():
		return refuse("Config.Profile", p.text(), "%s is no regular file; name another file", p.File)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return wrong("Config.Profile", p.text(), err)
	case c.Session.Device.Executor != "":
		return refuse("Config.Profile", p.text(), "the single-threaded executor cannot trace; leave {Options.Executor} at "+
			"its default")
	}
	if info, err := os.Stat(filepath.Dir(p.File)); err != nil || !info.IsDir() {
		return refuse("Config.Profile", p.text(), "the folder %s does not exist; create it, or name a file in another folder",
			filepath.Dir(p.File))
	}
	return nil
}

// profiled is a session that traces the steps of a Profile.
type profiled struct {
	*session.Session
	t *training
	// file is open from the first traced step to the last one.
	file *files.Replacement
	to   *native.ProfileWriter
	// first and last are the numbers of the first and the last step in the file.
	first, last int64
	// done is true if the file is complete, or could not be written.
	done bool
	// began is the number of steps before the first step of this process; -1 until that step.
	began int64
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
	if p.began < 0 {
		p.began = earlier
	}
	first, last := earlier+1, earlier+int64(n)
	if p.done || last < p.t.Profile.First || first > p.t.Profile.Last {
		return do()
	}
	began := time.Now().Round(0) // TensorFlow's times have no monotonic clock
	metadata, err := p.Trace(do)
	p.write(native.Profiled{First: first, Last: last, Began: began, Ended: time.Now().Round(0), Metadata: metadata})
	if !p.done && last >= p.t.Profile.Last {
		p.finish(nil)
	}
	return err
}

// end completes the file of a training that ended before the last step of the profile.
func (p *profiled) end() {
	switch {
	case p == nil || p.done:
	case p.file != nil:
		p.finish(nil)
	case p.began < p.t.Profile.Last: // otherwise an earlier process has written it
		p.t.Loop.Log.Warn("no trace was written, since the training ran none of the steps", "profile", p.t.Profile.text())
	}
}

// write adds an execution to the file. Errors are only logged as warnings.
func (p *profiled) write(e native.Profiled) {
	var err error
	if p.file == nil {
		path := p.t.Profile.File
		if p.began >= p.t.Profile.First { // an earlier process has written the steps before
			extension := filepath.Ext(path)
			path = fmt.Sprintf("%s-%d%s", strings.TrimSuffix(path, extension), p.began+1, extension)
		}
		if p.file, err = files.CreateFor(path); err == nil {
			p.first, p.to = e.First, native.NewProfileWriter(p.file)
		}
	}
	if err == nil {
		p.last, err = e.Last, p.to.Write(e)
	}
	if err != nil {
		p.finish(err)
	}
}

// finish completes the file, or removes it after an error.
func (p *profiled) finish(err error) {
	p.done = true
	if p.file != nil {
		if err == nil {
			err = p.to.End()
		}
		err = p.file.Finish(err)
	}
	if err != nil {
		p.t.Loop.Log.Warn("the trace could not be written; training continues", "error", err)
		return
	}
	if p.to.Operations == 0 {
		p.t.Loop.Log.Warn("the trace has no operations, since the single-threaded executor of the checkpoint cannot trace")
	}
	p.t.Loop.Log.Info("trace written", "file", p.file.Path, "first_step", p.first, "last_step", p.last, "operations",
		p.to.Operations)
}
