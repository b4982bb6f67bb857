// Command train fine-tunes the built-in model of handwritten digits within a memory
// budget, and restarts after crashes.
//
//	go run ./examples/train
package main

import (
	"context"
	"log"
	"os"

	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/train"
)

func config([]byte) (train.Config, error) {
	return train.Config{
		Model:       "builtin:digits", // or the folder of a SavedModel
		Data:        train.Data{Path: "builtin:digits"},
		Shuffle:     true,
		Loop:        fit.Loop{Batch: 32, Epochs: 20},
		Budget:      train.Budget{Limit: 2 * memory.GiB},
		Supervise:   train.Always,
		Checkpoints: fit.Checkpoint{Folder: "out/checkpoints"},
		Out:         "out/digits",
		Progress:    os.Stderr,
	}, nil
}

func main() {
	train.Init(config) // a child process trains here, and main goes no further
	c, _ := config(nil)
	if _, err := train.Run(context.Background(), c); err != nil {
		log.Print(err)
		os.Exit(train.ExitCode(err))
	}
}
