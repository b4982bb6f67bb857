// Package launch runs the ranks of one training as child processes of this machine. Each rank finds
// its cluster in the variable TF_CONFIG (package cluster), with ports of this machine that are free.
package launch

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"steadyfit/internal/child"
)

// Options configure Run.
type Options struct {
	// Args are the program of each rank and its arguments.
	Args []string
	// Ranks is the number of ranks.
	Ranks int
	// MinRanks is the number of ranks, including rank 0, that can continue when others are lost; 0
	// means all. A rank is lost if a signal ended it, or if it failed with exit code 1 or 5 (out of
	// memory). A rank that failed with another exit code would fail again.
	MinRanks int
	// Stderr receives the standard error of all ranks, in whole lines. The lines of ranks other than 0
	// begin with the rank, as in "[rank 1] ".
	Stderr io.Writer
	// Grace is the time for a rank to end after SIGTERM; 0 means 1 min. It must cover a step and a
	// checkpoint.
	Grace time.Duration
	// Log receives a warning for each lost rank.
	Log *slog.Logger

	killAfter time.Duration // replaces killAfter in tests
}

// Error reports a rank that failed.
type Error struct {
	Rank, Ranks int
	// Code is the exit code of the rank; 1 if a signal ended it.
	Code  int
	cause string
	// passing is true if the rank may succeed in another attempt.
	passing bool
}

func (e *Error) Error() string { return fmt.Sprintf("rank %d of %d %s", e.Rank, e.Ranks, e.cause) }

// killAfter is the time between the signal that ends a supervised training at once and SIGKILL.
const killAfter = 5 * time.Second

// Run runs the ranks until all have ended. Rank 0 writes to the standard output of this process; the
// output of the other ranks is discarded. When ctx ends, Run sends SIGTERM to the ranks. When a rank
// fails, Run stops the others in the same way, unless the rank is lost and Options.MinRanks are left:
// these continue until rank 0 has succeeded. The error is that of the first rank that failed; if ctx
// has ended and rank 0 failed, it is the error of rank 0. The kernel kills the ranks when the calling
// thread ends.
func Run(ctx context.Context, o Options) error {
	addresses, err := FreeAddresses(o.Ranks)
	if err != nil {
		return err
	}
	g := &group{ended: make(chan int), most: o.Ranks - cmp.Or(o.MinRanks, o.Ranks), log: cmp.Or(o.Log, slog.New(slog.DiscardHandler))}
	out := &output{w: o.Stderr}
	for rank := range o.Ranks {
		if err := g.start(ctx, o, addresses, rank, out); err != nil {
			for range g.ranks {
				g.signal(len(stages) - 1)
				g.end(<-g.ended)
			}
			return fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	return g.wait(ctx, cmp.Or(o.Grace, time.Minute), cmp.Or(o.killAfter, killAfter))
}

type group struct {
	ranks []*rank
	ended chan int // receives each rank whose process has ended
	most  int      // number of ranks that may be lost
	log   *slog.Logger
}

// Exit codes of a rank that may succeed in another attempt.
const failedCode, memoryCode = 1, 5

type rank struct {
	*child.Process
	log  *lines
	done bool
}

func (g *group) start(ctx context.Context, o Options, addresses []string, index int, out *output) (err error) {
	config := map[string]any{"cluster": map[string][]string{"worker": addresses}, "task": map[string]any{"type": "worker", "index": index}}
	r := &rank{log: &lines{out: out}}
	command := child.Command{Args: o.Args, Variable: "TF_CONFIG", Spec: config, Log: r.log, KillWithParent: true}
	if index == 0 {
		command.Stdout = os.Stdout
	} else {
		r.log.prefix = fmt.Sprintf("[rank %d] ", index)
	}
	// The end of ctx must not kill a rank: it gets a signal instead.
	if r.Process, err = child.Start(context.WithoutCancel(ctx), command); err != nil {
		return err
	}
	g.ranks = append(g.ranks, r)
	go func() {
		<-r.Exited()
		g.ended <- index
	}()
	return nil
}

// stages are the signals that end a rank. After the second signal, a training under supervision kills
// its process. 0 stands for SIGKILL to the process group of the rank.
var stages = []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, 0}

func (g *group) wait(ctx context.Context, grace, kill time.Duration) error {
	done := ctx.Done()
	var failed, first *Error // errors of the first rank that failed, and of rank 0
	stage, lost, complete := 0, 0, false
	var next <-chan time.Time
	stop := func() {
		if stage == 0 {
			g.signal(stage)
			stage, next = 1, time.After(grace)
		}
	}
	for range g.ranks {
		for waiting := true; waiting; {
			select {
			case index := <-g.ended:
				waiting = false
				err := g.end(index)
				if index == 0 {
					first, complete = err, err == nil
				}
				switch {
				case complete && g.most > 0:
					stop() // some ranks may still wait for a restart of rank 0
				case err == nil || failed != nil:
				case index > 0 && lost < g.most && err.passing && stage == 0:
					lost++
					g.log.Warn("a rank was lost; the others continue", "error", err)
				default:
					failed = err
					stop()
				}
			case <-done:
				done = nil
				stop()
			case <-next:
				g.signal(stage)
				if stage++; stage < len(stages) {
					next = time.After(kill)
				}
			}
		}
	}
	switch {
	case failed == nil:
		return nil
	case ctx.Err() != nil && first != nil:
		return first
	}
	return failed
}

// signal sends the signal of a stage to the ranks that have not ended.
func (g *group) signal(stage int) {
	for _, r := range g.ranks {
		switch s := stages[stage]; {
		case r.done:
		case s == 0:
			_ = r.Kill("killed because it had not ended in time") // a rank that cannot be signalled has ended
		default:
			_ = r.Signal(s)
		}
	}
}

// end collects a rank that has ended. It returns nil if the rank succeeded.
func (g *group) end(index int) *Error {
	r := g.ranks[index]
	exit := r.End(nil)
	r.done = true
	r.log.flush()
	switch {
	case exit.Code == 0:
		return nil
	case exit.Code > 0:
		return &Error{index, len(g.ranks), exit.Code, fmt.Sprintf("ended with exit code %d", exit.Code), exit.Code == failedCode || exit.Code == memoryCode}
	}
	return &Error{index, len(g.ranks), 1, "was " + exit.Cause, true}
}

// The ports of ranks are below those that Linux uses for outgoing connections, so that a rank finds its
// port free when it restarts.
const lowPort, highPort = 10000, 32768

// maxRanks is far above the number of ranks that a machine can run well.
const maxRanks = 256

// FreeAddresses returns addresses of this machine on which no process listens.
func FreeAddresses(n int) (addresses []string, err error) {
	if n > maxRanks {
		return nil, fmt.Errorf("%d ranks on this machine: expected at most %d", n, maxRanks)
	}
	for _, offset := range rand.Perm(highPort - lowPort) {
		if len(addresses) == n {
			break
		}
		port := strconv.Itoa(lowPort + offset)
		// Servers of TensorFlow listen on all addresses.
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			continue
		}
		defer listener.Close() // only after the last one was found, so that all differ
		addresses = append(addresses, net.JoinHostPort("127.0.0.1", port))
	}
	if len(addresses) < n {
		return nil, fmt.Errorf("found %d free ports from %d to %d, and %d ranks need one each", len(addresses), lowPort, highPort-1, n)
	}
	return addresses, nil
}
