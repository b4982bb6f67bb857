package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/lab/measure"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// childSteadyfit is the argument of the child process of steadyfit variants.
const childSteadyfit = "steadyfit"

type passFlags struct {
	model, data, signature string
	batch, steps, epochs   int
}

func (p *passFlags) parse(name string, args []string, stderr io.Writer) error {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.StringVar(&p.model, "model", "", "folder of the SavedModel")
	f.StringVar(&p.data, "data", "", "folder with x.npy and y.npy: the batches of an epoch")
	f.StringVar(&p.signature, "signature", "train", "signature to run")
	f.IntVar(&p.batch, "batch", 0, "samples in a step")
	f.IntVar(&p.steps, "steps", 0, "steps in an epoch")
	f.IntVar(&p.epochs, "epochs", 0, "epochs, after one to warm up")
	f.SetOutput(stderr)
	if err := f.Parse(args); err != nil {
		return usage("%w", err)
	}
	if p.batch < 1 || p.steps < 1 || p.epochs < 1 {
		return usage("-batch %d -steps %d -epochs %d: expected at least 1 each", p.batch, p.steps, p.epochs)
	}
	return nil
}

// training is a session with the batches of an epoch.
type training struct {
	session *session.Session
	step    *session.Step
	calls   []data.Batch
	perCall int
	next    int
}

// open loads the model and splits the samples into batches for one execution each.
func (p *passFlags) open(ctx context.Context, all data.Batch) (*training, error) {
	if all.Size != p.batch*p.steps {
		return nil, fmt.Errorf("the data has %d samples, expected %d batches of %d", all.Size, p.steps, p.batch)
	}
	m, err := savedmodels.Open(p.model)
	if err != nil {
		return nil, err
	}
	t := &training{perCall: 1}
	several := p.signature == m.Roles.TrainN || p.signature == m.Roles.TrainNXLA
	if several {
		t.perCall = stepsPerExecution
	}
	for from := 0; from < all.Size; from += t.perCall * p.batch {
		b := all.Slice(from, from+t.perCall*p.batch)
		if several {
			b.Size = p.batch
			for i := range b.Fields {
				f := &b.Fields[i]
				f.Shape = append([]int{f.Shape[0] / p.batch, p.batch}, f.Shape[1:]...)
			}
		}
		t.calls = append(t.calls, b)
	}
	if t.session, err = session.OpenModel(ctx, m, session.Options{}); err != nil {
		return nil, err
	}
	if t.step, err = t.session.Prepare(p.signature); err != nil {
		return nil, errors.Join(err, t.session.Close())
	}
	return t, nil
}

// execute runs one execution and returns the loss.
func (t *training) execute(ctx context.Context) (float32, error) {
	b := t.calls[t.next]
	t.next = (t.next + 1) % len(t.calls)
	if err := t.step.Feed(b); err != nil {
		return 0, err
	}
	if err := t.step.Run(ctx); err != nil {
		return 0, err
	}
	loss, err := t.step.Float(contract.OutputLoss)
	return float32(loss), err
}

func (t *training) close() error { return errors.Join(t.step.Close(), t.session.Close()) }

// steadyfitChild trains with a session, without package fit.
func steadyfitChild(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var p passFlags
	if err := p.parse(childSteadyfit, args, stderr); err != nil {
		return err
	}
	return measure.WithData(p.data, func(all data.Batch) error {
		t, err := p.open(ctx, all)
		if err != nil {
			return err
		}
		n := len(t.calls)
		r, err := measure.Run(measure.Plan{Warmup: n, Steps: n * p.epochs, Chunks: p.epochs},
			func() (float32, error) { return t.execute(ctx) })
		if err := errors.Join(err, t.close()); err != nil {
			return err
		}
		info, err := tfbind.Load("") // already loaded
		if err != nil {
			return err
		}
		return r.Sample(t.perCall, info.Version).Write(stdout)
	})
}
