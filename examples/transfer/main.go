// Command transfer fine-tunes a pretrained network with a frozen base. It trains twice, with and
// without the cache of features, and prints the accuracy and the time of both. The trained models
// have the same weights.
//
//	.runtime/venv/bin/python examples/transfer/pretrain.py out/transfer
//	go run ./examples/transfer -dir out/transfer
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"steadyfit/fit"
	"steadyfit/train"
)

type options struct {
	dir, data, test string
	epochs, batch   int
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "out/transfer", "folder of pretrain.py, which gets the trained models")
	flag.StringVar(&o.data, "data", "", "training data; train.npz of the folder if empty")
	flag.StringVar(&o.test, "test", "", "test data; test.npz of the folder if empty")
	flag.IntVar(&o.epochs, "epochs", 20, "epochs")
	flag.IntVar(&o.batch, "batch", 32, "samples per step")
	flag.Parse()
	if o.data == "" {
		o.data, o.test = filepath.Join(o.dir, "train.npz"), filepath.Join(o.dir, "test.npz")
	}
	if err := run(context.Background(), o, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	for _, c := range []struct {
		name  string
		cache train.Choice
	}{{"without", ""}, {"with", train.On}} {
		start := time.Now()
		result, err := train.Run(ctx, train.Config{
			Model:         filepath.Join(o.dir, "model"),
			Data:          train.Data{Path: o.data},
			Validation:    o.test,
			Shuffle:       true,
			Seed:          1,
			Loop:          fit.Loop{Batch: o.batch, Epochs: o.epochs, Log: slog.New(slog.DiscardHandler)},
			CacheFeatures: c.cache,
			Out:           filepath.Join(o.dir, c.name),
			Report: func(subject string, value any) {
				if subject == "features" {
					fmt.Fprintln(out, "features:", value)
				}
			},
		})
		if err != nil {
			return fmt.Errorf("train %s the cache: %w", c.name, err)
		}
		last := result.History.Final()
		accuracy, _ := last.Metrics.Get("val_accuracy")
		fmt.Fprintf(out, "%-7s the cache: test accuracy %.4f, %d steps, %.2f s, last epoch %.3f s\n",
			c.name, accuracy, last.Step, time.Since(start).Seconds(), last.Seconds)
	}
	return nil
}
