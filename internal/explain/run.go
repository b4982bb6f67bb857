package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"steadyfit/internal/child"
	"steadyfit/internal/native"
	"steadyfit/internal/tfprocess"
)

// Env is the environment variable that marks a process that measures.
const Env = "STEADYFIT_EXPLAIN"

// Failure is the error of a process that measures.
type Failure struct {
	// Text is the message for the user, and Code the exit code of the process.
	Text string
	Code int
	// OutOfMemory is true if the kernel killed the process for lack of memory, or an allocation
	// failed.
	OutOfMemory bool
}

func (f *Failure) Error() string { return f.Text }

// message is what the process that measures sends.
type message struct {
	Report  *Report  `json:"report,omitempty"`
	Failure *Failure `json:"failure,omitempty"`
}

// Measuring reports whether [Run] started this process.
func Measuring() bool { return os.Getenv(Env) != "" }

// Send measures in this process and sends the result to the process that called [Run]. describe converts
// an error to the message and exit code of this program. The returned error means that nothing could be
// sent.
func Send(measure func() (*Report, error), describe func(error) *Failure) error {
	parent, err := child.Connect(Env, new(struct{}))
	if err != nil {
		return err
	}
	r, err := measure()
	if err != nil {
		return parent.Send(message{Failure: describe(err)})
	}
	return parent.Send(message{Report: r})
}

// Run starts this program again with the same arguments. Measuring is true in the new process. Run
// returns the report that the process sends. log receives what the process logs. An error of the
// measurement is a *Failure.
func Run(ctx context.Context, log io.Writer) (*Report, error) {
	p, err := child.Start(ctx, child.Command{Variable: Env, Spec: struct{}{}, Env: profiling(), Log: log,
		KillWithParent: true})
	if err != nil {
		return nil, err
	}
	line, err := p.Receive(time.Now().Add(deadline))
	if errors.Is(err, io.EOF) {
		p.Wait(time.Second)
	}
	exit := p.End(nil)
	switch {
	case context.Cause(ctx) != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, child.ErrDeadline):
		return nil, fmt.Errorf("the process that measures did not answer within %v: a step may take too long, or hang",
			deadline)
	case err != nil:
		return nil, &Failure{Text: "the process that measures has ended: " + exit.Cause, Code: exit.Code,
			OutOfMemory: exit.OutOfMemory}
	}
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, fmt.Errorf("the process that measures sent an invalid message: %w", err)
	}
	if m.Failure != nil {
		return nil, m.Failure
	}
	return m.Report, nil
}

// deadline is the time after which a measurement counts as hanging.
const deadline = time.Hour

// profiling returns the variable that makes jemalloc profile the heap of a process, if it is preloaded.
func profiling() []string {
	if !strings.Contains(os.Getenv("LD_PRELOAD"), tfprocess.Allocators[tfprocess.Jemalloc].File) {
		return nil
	}
	return []string{"MALLOC_CONF=" + strings.TrimPrefix(os.Getenv("MALLOC_CONF")+","+native.HeapProfileSettings, ",")}
}
