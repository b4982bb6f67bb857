package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"steadyfit/cluster"
	"steadyfit/internal/child"
	"steadyfit/internal/contract"
	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/worker"
)

// newD1 trains as one of two ranks. The other one is a child process with the same Spec, which
// nobody measures. The parameter rank is the rank of this process.
func newD1(ctx context.Context, b *builder) *loop.Loop {
	c := &cluster.Cluster{}
	other := "1"
	if b.Choice("rank", "0", "1") == "1" {
		c.Rank, other = 1, "0"
	}
	workers := b.Param("workers", "") // set in the child
	if workers == "" {
		workers = strings.Join(worker.Must(cluster.FreeAddresses(2)), ",")
		b.startRank(ctx, other, workers)
	}
	c.Workers = strings.Split(workers, ",")
	b.cluster = c
	t, l := b.inMemory(ctx, b.Spec.SetSize())
	ranked, ok := t.engine.(interface{ Ranks() contract.RankGroup })
	if !ok {
		worker.Check(&worker.ParameterError{Failure: worker.NotApplicable, Name: "eager", Value: "1",
			Reason: "eager execution has no ranks"})
	}
	ranks := ranked.Ranks()
	train := l.Step
	l.Step = func(ctx context.Context, n int) float64 {
		loss := train(ctx, n)
		if n == b.Spec.Steps {
			worker.Check(ranks.Leave(func() {}))
		}
		return loss
	}
	l.Epoch, l.Trace = nil, nil // a trace would show only one rank
	return l
}

// otherGrace is the longest time for the other rank to end after this one.
const otherGrace = 30 * time.Second

// startRank starts the other rank, and answers its messages as package runner would.
func (b *builder) startRank(ctx context.Context, rank, workers string) {
	spec := b.Spec
	spec.Params = map[string]string{}
	maps.Copy(spec.Params, b.Spec.Params)
	spec.Params["rank"], spec.Params["workers"] = rank, workers
	p := worker.Must(child.Start(ctx, child.Command{Variable: worker.Env, Spec: spec, Log: os.Stderr,
		KillWithParent: true}))
	var last worker.Message
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for line := range p.Messages() {
			last = worker.Message{}
			if json.Unmarshal(line, &last) == nil && (last.Kind == worker.KindPhase || last.Kind == worker.KindStep) {
				_, _ = p.Requests.Write([]byte{'\n'}) // a child that has ended needs no answer
			}
		}
	}()
	b.onClose(func() error {
		if !p.Wait(otherGrace) {
			_ = p.Kill(fmt.Sprintf("killed because it had not ended after %v", otherGrace)) // End reports why the process ended
		}
		<-ended
		if exit := p.End(nil); exit.Code != 0 || last.Kind != worker.KindEnd || last.Failure != "" {
			return fmt.Errorf("rank %s: %s %s", rank, exit.Cause, last.Text)
		}
		return nil
	})
}
