// Command train fine-tunes the built-in model of handwritten digits with the fastest
// configuration on this machine, within a memory budget, and restarts after crashes.
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

func main() {
	_, err := train.Run(context.Background(), train.Config{
		Model:       "builtin:digits", // or the folder of a SavedModel
		Data:        train.Data{Path: "builtin:digits"},
		Shuffle:     true,
		Loop:        fit.Loop{Batch: 32, Epochs: 20},
		Autotune:    train.Autotune{Mode: train.On},
		Budget:      train.Budget{Limit: 2 * memory.GiB},
		Supervise:   train.Always,
		Checkpoints: train.Checkpoints{Folder: "out/checkpoints"},
		Out:         "out/digits",
		Progress:    os.Stderr,
	})
	if err != nil {
		log.Print(err)
		os.Exit(train.ExitCode(err))
	}
}
