// Command own trains your own SavedModel in a handwritten loop, for programs that already have
// one. The data is an .npz file whose arrays have the names of the inputs of the train
// signature.
//
//	python examples/export/lstm.py out/lstm
//	go run ./examples/own out/lstm/model out/lstm/train.npz out/lstm/trained
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"steadyfit/data"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 3 {
		return errors.New("usage: own MODEL DATA.npz OUT")
	}
	model, err := savedmodels.Open(args[0])
	if err != nil {
		return err
	}
	train, err := data.Open(args[1], data.Options{})
	if err != nil {
		return err
	}
	s, err := session.OpenModel(ctx, model, session.Options{})
	if err != nil {
		return err
	}
	defer s.Close()

	step, err := s.Prepare(s.Roles().Train) // resolves names and makes buffers
	if err != nil {
		return err
	}
	defer step.Close()
	for epoch := range 5 {
		if err := s.ResetMetrics(ctx); err != nil { // some models have metrics that cover an epoch
			return err
		}
		var sum float64
		var samples int
		for batch, err := range train.Shuffle(1).Batches(data.Pass{Batch: 32, Epoch: epoch}) {
			if err != nil {
				return err
			}
			if err := step.Feed(batch); err != nil { // copies the batch into native memory
				return err
			}
			if err := step.Run(ctx); err != nil { // one execution in TensorFlow
				return err
			}
			loss, err := step.Float("loss")
			if err != nil {
				return err
			}
			sum += loss * float64(batch.Size)
			samples += batch.Size
		}
		live := tfbind.Live() // the number of native objects does not grow
		fmt.Printf("epoch %d  loss %.4f  steps held %d (%d bytes)  tensors held %d\n",
			epoch+1, sum/float64(samples), live.Steps, live.StepBytes, live.Tensors)
	}
	return s.SaveModel(ctx, args[2])
}
