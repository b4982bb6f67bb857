// Command tenants fine-tunes one open base model for many tenants in one process. Each tenant
// has its own adapter, optimizer and checkpoints. A second run resumes all of them.
//
//	.runtime/venv/bin/python scripts/export.py --model my_model.keras --lora 4 --train-only head --out out/base
//	GLIBC_TUNABLES=glibc.malloc.tcache_count=0 go run ./examples/tenants -model out/base -data train.npz -dir out/tenants
//
// glibc counts free blocks in the caches of threads as memory in use. These fill up over some
// hundred tenants. Without the caches, memory that is in use and grows is a leak.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
	"steadyfit/train"
)

type options struct {
	model, data, dir               string
	tenants, epochs, batch, visits int
}

func main() {
	var o options
	flag.StringVar(&o.model, "model", "", "base model, with frozen weights")
	flag.StringVar(&o.data, "data", "builtin:digits", "training data")
	flag.StringVar(&o.dir, "dir", "out/tenants", "folder for a folder per tenant")
	flag.IntVar(&o.tenants, "tenants", 200, "number of tenants")
	flag.IntVar(&o.epochs, "epochs", 1, "epochs of each tenant")
	flag.IntVar(&o.batch, "batch", 32, "samples per step")
	flag.IntVar(&o.visits, "visits", 1, "predictions for each tenant after the training")
	flag.Parse()
	if err := run(context.Background(), o, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	model, err := savedmodels.Open(o.model)
	if err != nil {
		return err
	}
	ds, err := train.OpenData(model, model.Roles.Train, train.Data{Path: o.data}, "train", data.Pass{Batch: o.batch})
	if err != nil {
		return err
	}
	defer ds.Close()
	s, err := session.OpenModel(ctx, model, session.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	ds.UseJPEG(s.DecodeJPEG) // as Keras does
	sampler, err := memory.NewSampler(0, malloc)
	if err != nil {
		return err
	}
	defer sampler.Close()
	t := &tenancy{options: o, out: out, session: s, sampler: sampler}
	for i := range o.tenants {
		if err := t.train(ctx, i, ds); err != nil {
			return fmt.Errorf("tenant %d: %w", i, err)
		}
	}
	t.print("trained", t.tenants)
	for range o.visits {
		for i := range o.tenants {
			if err := t.serve(ctx, i, ds); err != nil {
				return fmt.Errorf("tenant %d: %w", i, err)
			}
		}
	}
	t.print("served", t.tenants*t.visits)
	return nil
}

// tenancy is one session that serves the tenants in turn.
type tenancy struct {
	options
	out     io.Writer
	session *session.Session
	sampler *memory.Sampler
	swaps   []time.Duration
	growth  memory.Series // one sample per tenant
}

func (t *tenancy) folder(i int) string { return filepath.Join(t.dir, strconv.Itoa(i)) }

// train trains the adapter of a tenant, from its checkpoints if there are any.
func (t *tenancy) train(ctx context.Context, i int, ds *data.InMemory) error {
	if err := t.swap(ctx, nil); err != nil { // the weights of the base, and a new optimizer
		return err
	}
	loop := fit.Loop{Session: t.session, Batch: t.batch, Epochs: t.epochs, Log: slog.New(slog.DiscardHandler)}
	folder := filepath.Join(t.folder(i), "checkpoints")
	loop.Resume = folder
	loop.Hook(fit.Checkpoint{Folder: folder, Keep: 1}.Hook())
	if _, err := loop.Run(ctx, ds.Shuffle(uint64(i))); err != nil {
		return err
	}
	a, err := t.session.Adapter(ctx)
	if err != nil {
		return err
	}
	return errors.Join(a.Write(t.folder(i)), t.sample())
}

// serve evaluates one batch with the adapter of a tenant.
func (t *tenancy) serve(ctx context.Context, i int, ds *data.InMemory) error {
	a, err := session.ReadAdapter(t.folder(i), t.session.Model())
	if err != nil {
		return err
	}
	if err := t.swap(ctx, a); err != nil {
		return err
	}
	out := make([]float64, len(t.session.EvaluateMetrics()))
	for batch, err := range ds.Batches(data.Pass{Batch: t.batch}) {
		if err == nil {
			err = t.session.Evaluate(ctx, batch, out)
		}
		if err != nil {
			return err
		}
		break
	}
	return t.sample()
}

func (t *tenancy) swap(ctx context.Context, a *session.Adapter) error {
	start := time.Now()
	err := t.session.Swap(ctx, a)
	t.swaps = append(t.swaps, time.Since(start))
	return err
}

// sample measures the memory of the process after a tenant.
func (t *tenancy) sample() error {
	var p memory.Sample
	if err := t.sampler.Sample(len(t.swaps), &p); err != nil {
		return err
	}
	t.growth.Append(&p)
	return nil
}

// malloc adds the memory that malloc has in use and keeps free. Anonymous memory alone is misleading: it
// grows for some hundred tenants without a leak, while malloc uses pages for the first time.
func malloc(add func(memory.Layer, memory.Reading)) {
	m, ok := tfbind.MallocInfo()
	add(memory.MallocUsed, memory.Reading{Bytes: memory.Bytes(m.InUse), OK: ok})
	add(memory.MallocFree, memory.Reading{Bytes: memory.Bytes(m.Free), OK: ok})
}

// print prints the times of the swaps and the verdicts on memory since the last print. The first
// swap is separate, because it prepares TensorFlow's operations. A step of the verdicts is a
// tenant.
func (t *tenancy) print(what string, visits int) {
	if visits == 0 {
		return
	}
	first, rest := t.swaps[0], t.swaps[1:]
	if slices.Sort(rest); len(rest) == 0 {
		rest = t.swaps
	}
	at := func(share float64) float64 { return rest[int(share*float64(len(rest)-1))].Seconds() * 1e3 }
	fmt.Fprintf(t.out, "%s %d tenants: swap %.2f ms median, %.2f ms 99th percentile, %.2f ms longest, %.2f ms first\n",
		what, t.tenants, at(0.5), at(0.99), at(1), first.Seconds()*1e3)
	for _, layer := range []memory.Layer{memory.MallocUsed, memory.Anon} {
		fmt.Fprintf(t.out, "  %s: %v\n", layer, t.growth.Judge(memory.Criteria{Layer: layer}))
	}
	t.swaps, t.growth = nil, memory.Series{}
}
