package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"steadyfit/data"
	"steadyfit/internal/files"
	"steadyfit/internal/native"
	"steadyfit/session"
)

// Profile selects train steps to trace. The zero value traces none.
type Profile struct {
	// First and Last are the numbers of the first and the last step, from 1. At most MaxProfile
	// steps can be traced, since their traces are in memory until the last one.
	First, Last int64
	// File receives the times of all operations in the Trace Event Format, which Perfetto and
	// chrome://tracing open. It is replaced. A process that resumes between First and Last writes
	// another file, with the number of its first step in the name, as in trace-15.json.
	File string
}

// MaxProfile is the maximum number of steps of a Profile.
const MaxProfile = 1000

// ParseProfile parses steps=FIRST:LAST or steps=FIRST:LAST,file=PATH. The file is trace.json by default.
func ParseProfile(text string) (Profile, error) {
	p := Profile{File: "trace.json"}
	steps, file, named := strings.Cut(text, ",")
	if named {
		if p.File, named = strings.CutPrefix(file, "file="); !named || p.File == "" {
			return p, fmt.Errorf("found %q after the steps; expected file=PATH", file)
		}
	}
	steps, ok := strings.CutPrefix(steps, "steps=")
	first, last, both := strings.Cut(steps, ":")
	var bad [2]error
	p.First, bad[0] = strconv.ParseInt(first, 10, 64)
	p.Last, bad[1] = strconv.ParseInt(last, 10, 64)
	if !ok || !both || errors.Join(bad[:]...) != nil {
		return p, errors.New("expected steps=FIRST:LAST, as in steps=10:20, and optionally ,file=PATH")
	}
	return p, nil
}

// String returns the profile in the format of ParseProfile.
func (p Profile) String() string {
	if p == (Profile{}) {
		return ""
	}
	return fmt.Sprintf("steps=%d:%d,file=%s", p.First, p.Last, p.File)
}

func (c *Config) checkProfile() error {
	p := c.Profile
	if p == (Profile{}) {
		return nil
	}
	switch info, err := os.Stat(p.File); {
	case p.First < 1 || p.Last < p.First:
		return refuse("Config.Profile", p, "the first step is at least 1, and the last step is not before it")
	case p.Last-p.First >= MaxProfile:
		return refuse("Config.Profile", p, "at most %d steps can be traced, and these are %d", MaxProfile, p.Last-p.First+1)
	case p.File == "":
		return refuse("Config.Profile", p, "it names no file for the trace")
	case err == nil && !info.Mode().IsRegular():
		return refuse("Config.Profile", p, "%s is no regular file; name another file", p.File)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return wrong("Config.Profile", p, err)
	case c.Session.Device.Executor != "":
		return refuse("Config.Profile", p, "the single-threaded executor cannot trace; leave {Options.Executor} at its default")
	}
	if info, err := os.Stat(filepath.Dir(p.File)); err != nil || !info.IsDir() {
		return refuse("Config.Profile", p, "the folder %s does not exist; create it, or name a file in another folder", filepath.Dir(p.File))
	}
	return nil
}

// profiled is a session that traces the steps of a Profile.
type profiled struct {
	*session.Session
	t       *training
	list    []native.Profiled
	written bool
	// began is the number of steps before the first one of this process; -1 before it.
	began int64
}

func (p *profiled) Train(ctx context.Context, step int64, b data.Batch, out []float64) error {
	return p.trace(step, 1, func() error { return p.Session.Train(ctx, step, b, out) })
}

func (p *profiled) TrainN(ctx context.Context, step int64, n int, out []float64) error {
	return p.trace(step, n, func() error { return p.Session.TrainN(ctx, step, n, out) })
}

// trace runs n steps after earlier ones.
func (p *profiled) trace(earlier int64, n int, do func() error) error {
	if p.began < 0 {
		p.began = earlier
	}
	first, last := earlier+1, earlier+int64(n)
	if last < p.t.Profile.First || first > p.t.Profile.Last {
		return do()
	}
	began := time.Now().Round(0) // TensorFlow's times have no monotonic clock
	metadata, err := p.Traces(do)
	p.list = append(p.list, native.Profiled{First: first, Last: last, Began: began, Ended: time.Now().Round(0), Metadata: metadata})
	if last >= p.t.Profile.Last {
		p.write()
	}
	return err
}

// end writes the steps of a training that ended before the last step of the profile.
func (p *profiled) end() {
	if p == nil {
		return
	}
	if p.write(); !p.written && p.began < p.t.Profile.Last { // otherwise an earlier process has written it
		p.t.Loop.Log.Warn("no trace was written, since the training ran none of the steps", "profile", p.t.Profile)
	}
}

// write writes the steps that were traced since the last call. Errors are warnings, as those of observers.
func (p *profiled) write() {
	if len(p.list) == 0 {
		return
	}
	operations, path := 0, p.t.Profile.File
	if p.began >= p.t.Profile.First { // an earlier process has written the steps before
		extension := filepath.Ext(path)
		path = fmt.Sprintf("%s-%d%s", strings.TrimSuffix(path, extension), p.began+1, extension)
	}
	err := files.Stream(path, func(w io.Writer) (err error) {
		operations, err = native.WriteProfile(w, p.list)
		return err
	})
	first, last := p.list[0].First, p.list[len(p.list)-1].Last
	p.list, p.written = nil, true
	if err != nil {
		p.t.Loop.Log.Warn("the trace could not be written; training continues", "error", err)
		return
	}
	if operations == 0 {
		p.t.Loop.Log.Warn("the trace has no operations, since the single-threaded executor of the checkpoint cannot trace")
	}
	p.t.Loop.Log.Info("trace written", "file", path, "first_step", first, "last_step", last, "operations", operations)
}
