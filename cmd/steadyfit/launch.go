package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"steadyfit/cluster"
	"steadyfit/supervise"
	"steadyfit/train"
)

func newLaunch(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "launch [flags] -- fit [flags of fit]",
		Short: "Train in several processes on this machine",
		Long: `Start several processes of fit on this machine, as the ranks of one training. Each
trains on its part of every batch. Rank 0 writes the results; the lines that the
others log begin with their rank.

launch supervises its ranks: with --checkpoints, a rank that dies or hangs is started
again, and all continue from the last checkpoint, as with fit --supervise. When a
rank fails for good, launch stops the others and exits with its code. Ctrl-C is
passed to all ranks.`,
		Example: `  steadyfit launch --workers 4 -- fit --model my/model --data train.npz --batch 128 --checkpoints ckpt --out my/trained`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] != "fit" {
				return errors.New("launch needs fit and its flags, as in launch --workers 2 -- fit --epochs 3")
			}
			return nil
		},
		RunE: s.launch,
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// launchGrace is the time for a step and a checkpoint after Ctrl-C. A second Ctrl-C ends the ranks at once.
const launchGrace = 10 * time.Minute

// endedRank is a rank that has ended for good.
type endedRank struct {
	*settings
	result train.Result
	err    error
}

func (s *settings) launch(cmd *cobra.Command, args []string) error {
	addresses, err := cluster.FreeAddresses(s.ranks)
	if err != nil {
		return usagef("--workers: %w", err)
	}
	var global []string
	if f := cmd.Flags().Lookup("tensorflow"); f.Changed {
		global = append(global, "--tensorflow="+f.Value.String())
	}
	mu := &sync.Mutex{}
	ranks := make([]*settings, s.ranks)
	for i := range ranks {
		log := &lines{mu: mu, w: cmd.ErrOrStderr()}
		if i > 0 {
			log.prefix = fmt.Sprintf("[rank %d] ", i)
		}
		defer log.flush()
		spec := fitSpec{append(global, args...), &cluster.Cluster{Workers: addresses, Rank: i, From: "launch"}}
		if ranks[i], err = spec.configure(cmd.OutOrStdout(), log); err != nil || ranks[i].Child == nil { // as after --help
			return err
		}
	}
	if batch := ranks[0].Loop.Batch; batch < s.ranks {
		return usagef("--batch %d: launch starts %d ranks, which share each batch; expected at least that many", batch,
			s.ranks)
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	ended := make(chan endedRank)
	for _, r := range ranks {
		go func() {
			result, err := train.Run(ctx, r.Config)
			ended <- endedRank{r, result, err}
		}()
	}
	first, failed := await(ended, len(ranks), stop)
	switch {
	case failed == nil:
		return first.printResult(cmd.OutOrStdout(), first.result)
	case cmd.Context().Err() != nil && first.err != nil:
		failed = &first // it has the checkpoints
	}
	return fmt.Errorf("rank %d of %d: %w", failed.Cluster.Rank, len(ranks), failed.err)
}

// await waits until all ranks have ended. When a rank fails, await stops the others. It returns rank 0 and
// the failed rank that launch reports; nil if the training is complete.
func await(ended <-chan endedRank, ranks int, stop func()) (first endedRank, failed *endedRank) {
	for range ranks {
		r := <-ended
		if r.Cluster.Rank == 0 {
			first = r
		}
		if r.err == nil || failed != nil && !failed.followed() {
			continue
		}
		if failed == nil || !r.followed() {
			failed = &r
		}
		stop()
	}
	return first, failed
}

// followed reports whether a rank failed only because another one was lost.
func (r *endedRank) followed() bool {
	var e *supervise.Error
	return errors.As(r.err, &e) && len(e.Crashes) > 0 &&
		!slices.ContainsFunc(e.Crashes, func(c supervise.Crash) bool { return !c.Peer })
}

// lines writes whole lines, each after a prefix. The ranks share a mutex. Write never fails, since a rank
// continues without a reader.
type lines struct {
	mu     *sync.Mutex
	w      io.Writer
	prefix string
	rest   []byte // the beginning of a line
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, b...)
	for {
		line, rest, complete := bytes.Cut(l.rest, []byte("\n"))
		if !complete {
			return len(b), nil
		}
		fmt.Fprintf(l.w, "%s%s\n", l.prefix, line)
		l.rest = rest
	}
}

// flush writes the rest, with the end of a line, when nothing more is written.
func (l *lines) flush() {
	if len(l.rest) > 0 {
		_, _ = l.Write([]byte("\n"))
	}
}
