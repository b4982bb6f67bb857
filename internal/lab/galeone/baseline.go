//go:build galeone

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	tf "github.com/galeone/tensorflow/tensorflow/go"
	"github.com/galeone/tfgo"

	"steadyfit/data"
	"steadyfit/internal/lab/measure"
)

func baseline(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("galeone", flag.ContinueOnError)
	flags.SetOutput(stderr)
	impl := flags.String("impl", "galeone", "galeone or tfgo")
	input := flags.String("input", "nested", "nested or flat")
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
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || len(feeds) == 0 || len(fetches) == 0 || *batch < 1 || *steps < 1 || *epochs < 1 {
		return errors.New("all flags except -impl and -input are required")
	}
	return measure.WithData(*folder, func(all data.Batch) error {
		if all.Size != *batch**steps {
			return fmt.Errorf("the data has %d samples, expected %d batches of %d", all.Size, *steps, *batch)
		}
		b, err := load(*impl, *dir)
		if err != nil {
			return err
		}
		step, err := b.loop(all, *batch, *steps, *input, feeds, fetches)
		if err != nil {
			return err
		}
		result, err := measure.Run(measure.Plan{Warmup: *steps, Steps: *steps * *epochs, Chunks: *epochs}, step)
		if err != nil {
			return err
		}
		return result.Sample(1, tf.Version()).Write(stdout)
	})
}

type library struct {
	output func(tensor string) (tf.Output, error)
	run    func(feeds map[tf.Output]*tf.Tensor, fetches []tf.Output) ([]*tf.Tensor, error)
}

func load(impl, dir string) (library, error) {
	switch impl {
	case "galeone":
		saved, err := tf.LoadSavedModel(dir, []string{"serve"}, nil)
		if err != nil {
			return library{}, err
		}
		return library{
			output: func(tensor string) (tf.Output, error) { return output(saved.Graph, tensor) },
			run: func(feeds map[tf.Output]*tf.Tensor, fetches []tf.Output) ([]*tf.Tensor, error) {
				return saved.Session.Run(feeds, fetches, nil)
			},
		}, nil
	case "tfgo":
		m := tfgo.LoadModel(dir, []string{"serve"}, nil) // panics on an error
		return library{
			output: func(tensor string) (tf.Output, error) {
				op, index, err := split(tensor)
				if err != nil {
					return tf.Output{}, err
				}
				return m.Op(op, index), nil
			},
			run: func(feeds map[tf.Output]*tf.Tensor, fetches []tf.Output) ([]*tf.Tensor, error) {
				return m.Exec(fetches, feeds), nil
			},
		}, nil
	}
	return library{}, fmt.Errorf("impl %q is not galeone or tfgo", impl)
}

// loop returns a function that trains on the next batch and returns the loss.
func (b library) loop(all data.Batch, batch, steps int, input string, feeds, fetches []string) (func() (float32, error), error) {
	makers := make([]map[tf.Output]func() (*tf.Tensor, error), steps)
	for k := range makers {
		makers[k] = make(map[tf.Output]func() (*tf.Tensor, error))
	}
	for _, feed := range feeds {
		tensor, field, _ := strings.Cut(feed, "=")
		in, err := b.output(tensor)
		if err != nil {
			return nil, err
		}
		for k := range makers {
			values, ok := all.Slice(k*batch, (k+1)*batch).Field(field)
			if !ok {
				return nil, fmt.Errorf("the data has no field %q", field)
			}
			if makers[k][in], err = maker(values, input); err != nil {
				return nil, err
			}
		}
	}
	var outputs []tf.Output
	for _, name := range fetches {
		o, err := b.output(name)
		if err != nil {
			return nil, err
		}
		outputs = append(outputs, o)
	}
	step := 0
	return func() (float32, error) {
		values := make(map[tf.Output]*tf.Tensor, len(feeds))
		for in, tensor := range makers[step%steps] {
			t, err := tensor()
			if err != nil {
				return 0, err
			}
			values[in] = t
		}
		step++
		results, err := b.run(values, outputs)
		if err != nil {
			return 0, err
		}
		loss, ok := results[0].Value().(float32)
		if !ok {
			return 0, errors.New("the first fetch is not a float32 scalar")
		}
		return loss, nil
	}, nil
}

// maker returns a function that creates a tensor of a batch, either from nested slices, as in
// the binding's documentation, or from a flat slice, which is faster.
func maker(batch data.Array, input string) (func() (*tf.Tensor, error), error) {
	switch input {
	case "nested":
		value := nest(batch).Interface()
		return func() (*tf.Tensor, error) { return tf.NewTensor(value) }, nil
	case "flat":
		shape := make([]int64, len(batch.Shape))
		for i, d := range batch.Shape {
			shape[i] = int64(d)
		}
		return func() (*tf.Tensor, error) {
			t, err := tf.NewTensor(batch.Values)
			if err != nil {
				return nil, err
			}
			return t, t.Reshape(shape)
		}, nil
	}
	return nil, fmt.Errorf("input %q is not nested or flat", input)
}
