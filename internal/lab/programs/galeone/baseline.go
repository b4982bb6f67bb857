//go:build galeone

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	tf "github.com/galeone/tensorflow/tensorflow/go"
	"steadyfit/data"
	"steadyfit/internal/lab/measure"
	"steadyfit/internal/lab/program"
)

func baseline(args []string, stdout, stderr io.Writer) {
	flags := flag.NewFlagSet("galeone", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("model", "", "folder of the SavedModel")
	folder := flags.String("data", "", "folder with x.npy and y.npy: the batches of an epoch")
	batch := flags.Int("batch", 0, "samples per step")
	steps := flags.Int("steps", 0, "steps per epoch")
	epochs := flags.Int("epochs", 0, "epochs after the warm-up epoch")
	var feeds, fetches []string
	flags.Func("feed", "TENSOR=FIELD, repeated", func(s string) error {
		feeds = append(feeds, s)
		return nil
	})
	flags.Func("fetch", "name of an output; repeatable, the loss first", func(s string) error {
		fetches = append(fetches, s)
		return nil
	})
	program.Check(flags.Parse(args))
	if *dir == "" || len(feeds) == 0 || len(fetches) == 0 || *batch < 1 || *steps < 1 || *epochs < 1 {
		program.Check(errors.New("all flags are required"))
	}
	program.Check(measure.WithData(*folder, func(all data.Batch) error {
		if all.Size != *batch**steps {
			return fmt.Errorf("the data has %d samples, expected %d batches of %d", all.Size, *steps, *batch)
		}
		step := load(*dir).loop(all, *batch, *steps, feeds, fetches)
		result, err := measure.Run(measure.Plan{Warmup: *steps, Steps: *steps * *epochs, Chunks: *epochs}, step)
		if err != nil {
			return err
		}
		return result.Sample(tf.Version()).Write(stdout)
	}))
}

type library struct{ *tf.SavedModel }

func load(dir string) library {
	return library{program.Must(tf.LoadSavedModel(dir, []string{"serve"}, nil))}
}

// loop returns a function that trains on the next batch and returns the loss. Tensors are made from nested slices, as
// in the binding's documentation.
func (l library) loop(all data.Batch, batch, steps int, feeds, fetches []string) func() (float32, error) {
	inputs := make([]map[tf.Output]any, steps)
	for k := range inputs {
		inputs[k] = map[tf.Output]any{}
		for _, feed := range feeds {
			name, field, _ := strings.Cut(feed, "=")
			values, ok := all.Slice(k*batch, (k+1)*batch).Field(field)
			if !ok {
				program.Check(fmt.Errorf("the data has no field %q", field))
			}
			inputs[k][output(l.Graph, name)] = nest(values).Interface()
		}
	}
	var outputs []tf.Output
	for _, name := range fetches {
		outputs = append(outputs, output(l.Graph, name))
	}
	step := 0
	return func() (float32, error) {
		values := make(map[tf.Output]*tf.Tensor, len(feeds))
		for in, value := range inputs[step%steps] {
			values[in] = tensor(value)
		}
		step++
		loss, ok := program.Must(l.Session.Run(values, outputs, nil))[0].Value().(float32)
		if !ok {
			program.Check(errors.New("the first fetch is not a float32 scalar"))
		}
		return loss, nil
	}
}
