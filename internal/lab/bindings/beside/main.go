// Command beside trains the digits with package train, and then uses what its build tag names in the same process:
//
//	graft     github.com/wamuir/graft
//	galeone   github.com/galeone/tensorflow/tensorflow/go, with github.com/galeone/tfgo
//	official  github.com/tensorflow/tensorflow/tensorflow/go
//	serving   the messages of TensorFlow Serving's API
//
// A binding predicts the test digits with the trained model; messages pass through their encoding. The program prints
// the accuracy of the training and the result of the other.
//
//	beside FOLDER-FOR-THE-TRAINED-MODEL
package main

import (
	"context"
	"fmt"
	"os"

	"steadyfit/fit"
	"steadyfit/train"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "beside:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	trained, err := train.Run(context.Background(), train.Config{
		Model:      "builtin:digits",
		Data:       train.Data{Path: "builtin:digits"},
		Validation: "builtin:digits",
		Seed:       1,
		Shuffle:    true,
		Loop:       fit.Loop{Batch: 32, Epochs: 10},
		Out:        out,
	})
	if err != nil {
		return err
	}
	theirs, err := other(out)
	if err != nil {
		return err
	}
	accuracy := trained.History.Metric("val_accuracy")
	fmt.Printf("ours: accuracy %.4f\ntheirs: %s\n", accuracy[len(accuracy)-1], theirs)
	return nil
}
