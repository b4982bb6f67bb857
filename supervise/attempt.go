package supervise

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"steadyfit/internal/child"
	"steadyfit/internal/tfprocess"
)

type attempt struct {
	*child.Process
	// crash describes the end of an attempt that crashed.
	crash Crash
	// end is the last message of the child; nil if there was none.
	end *message
	// stepped is true after the first step. progress is true if that step was later than the first
	// steps of all earlier attempts.
	stepped, progress bool
}

// code returns the exit code for the error of Run, in case this attempt is the last one.
func (a *attempt) code() int {
	if a.end == nil {
		return 1
	}
	return max(1, a.end.Code)
}

func (p *parent) attempt(ctx context.Context) (*attempt, error) {
	began := time.Now()
	a := &attempt{crash: Crash{Attempt: p.next.Attempt}}
	stderr := &relay{w: p.Stderr, out: p.out, ended: make(chan struct{})}
	command := child.Command{Args: p.args, Env: p.Env, Variable: child.SupervisedEnv, Spec: p.next, Stdout: os.Stdout,
		Log: stderr}
	environ := slices.Concat(p.Env, os.Environ())
	if stderr.hide = hidden[tfprocess.Lookup(environ, tfprocess.LogLevel)]; stderr.hide != nil {
		command.Env = append(slices.Clone(p.Env), tfprocess.LogLevel+"="+tfprocess.LogWarnings)
	}
	var err error
	// The end of ctx must not kill the child: the parent sends it a signal instead.
	if a.Process, err = child.Start(context.WithoutCancel(ctx), command); err != nil {
		a.crash.Lasted = time.Since(began)
		return a, fmt.Errorf("supervise: %w", err)
	}
	p.log(slog.LevelDebug, "the training process was started", "attempt", p.next.Attempt, "pid", a.PID())
	p.watch(ctx, a, a.Messages, a.Exited, stderr)
	close(stderr.ended)
	exit := a.End(func(line []byte) { p.hear(a, line) })
	if len(stderr.rest) > 0 {
		_, _ = stderr.Write([]byte("\n"))
	}
	c := &a.crash
	c.Lasted, c.OutOfMemory, c.Cause = exit.Time.Sub(began), exit.OutOfMemory, exit.Cause
	if a.end != nil {
		c.OutOfMemory, c.Cause, c.Peer = false, a.end.Text, a.end.End == endPeer
	}
	return a, nil
}

const (
	// ticks is the number of parts into which a deadline is divided.
	ticks = 8
	// startDeadline is the number of deadlines before the first step.
	startDeadline = 10
)

func (p *parent) watch(ctx context.Context, a *attempt, messages <-chan []byte, exited <-chan struct{}, stderr *relay) {
	done := ctx.Done()
	tick, stopTick := p.tick(p.Deadline / ticks)
	defer stopTick()
	silent := 0
	var grace <-chan time.Time
	for {
		select {
		case <-exited:
			return
		case line, ok := <-messages:
			if !ok {
				messages = nil
				break
			}
			silent = 0
			p.hear(a, line)
		case <-tick:
			if stderr.stuck.Load() {
				break
			}
			deadlines := startDeadline
			if a.stepped {
				deadlines = 1
			}
			if silent++; silent > deadlines*ticks && a.end == nil && !p.ending {
				p.warn(a.Kill(fmt.Sprintf("hang: no sign of life for %v", time.Duration(deadlines)*p.Deadline)))
			}
		case s := <-p.signals:
			if s == os.Interrupt && p.interrupted {
				p.warn(a.Kill("killed by a second signal"))
			}
			p.interrupted = true
			p.stop(a, s)
		case <-done:
			done = nil
			p.stop(a, syscall.SIGTERM)
		case <-grace:
			p.warn(a.Kill(fmt.Sprintf("killed because it had not ended after %v", p.Grace)))
		}
		if grace == nil && (p.ending || a.end != nil) {
			grace = p.after(p.Grace)
		}
	}
}

// hear handles a message of the child. A truncated line is ignored.
func (p *parent) hear(a *attempt, line []byte) {
	var m message
	if json.Unmarshal(line, &m) != nil {
		return
	}
	p.next.Step = max(p.next.Step, m.Step)
	if m.End != "" {
		a.end = &m
		a.crash.Step = max(a.crash.Step, m.Step)
		return
	}
	a.crash.Step = m.Step
	if m.Step > p.memoryStep {
		p.next.MemoryCrashes = 0 // this attempt got further than the last crash for lack of memory
	}
	if m.Step > 0 && !a.stepped {
		a.stepped = true
		if m.Step > p.from {
			p.from, p.crashes, a.progress = m.Step, nil, true
		}
	}
}

func (p *parent) stop(a *attempt, s os.Signal) {
	if !p.ending {
		p.warn(a.Signal(s))
	}
	p.ending = true
}

func (p *parent) warn(err error) {
	if err != nil {
		p.log(slog.LevelWarn, "the training process could not be reached", "error", err)
	}
}

// hidden matches the lines that TensorFlow does not log at a level (tfprocess.LogLevel). Its kernels may crash after a
// warning that memory is short, and child.Exit reports that, so a child always logs warnings.
var hidden = map[string]*regexp.Regexp{
	"2": regexp.MustCompile(`(?m)^(W\d{4} |\d{4}-\d\d-\d\d \S+ W |WARNING: All log messages before absl::).*\n`),
	"3": regexp.MustCompile(`(?m)^([WE]\d{4} |\d{4}-\d\d-\d\d \S+ [WE] |WARNING: All log messages before absl::).*\n`),
}

// relay copies the standard error of a child to out.
type relay struct {
	w   io.Writer
	out chan<- func()
	// hide matches lines that are not copied; nil copies all. rest is the beginning of a line that may be one.
	hide *regexp.Regexp
	rest []byte
	// ended is closed when the child has ended. Output that does not fit in out is then dropped.
	ended chan struct{}
	stuck atomic.Bool
}

func (r *relay) Write(b []byte) (int, error) {
	part := bytes.Clone(b)
	if r.hide != nil {
		r.rest = append(r.rest, b...)
		end := bytes.LastIndexByte(r.rest, '\n') + 1
		part = r.hide.ReplaceAll(r.rest[:end], nil)
		r.rest = append(r.rest[:0], r.rest[end:]...)
	}
	write := func() { _, _ = r.w.Write(part) } // a write error must not affect the child
	select {
	case r.out <- write:
		return len(b), nil
	default:
	}
	r.stuck.Store(true)
	defer r.stuck.Store(false)
	select {
	case r.out <- write:
	case <-r.ended:
	}
	return len(b), nil
}
