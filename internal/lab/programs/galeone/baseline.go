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
	"steadyfit/internal/lab/program"
)

func baseline(args []string, stdout, stderr io.Writer) {
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
	program.Check(flags.Parse(args))
	if *dir == "" || len(feeds) == 0 || len(fetches) == 0 || *batch < 1 || *steps < 1 || *epochs < 1 {
		program.Check(errors.New("all flags except -impl and -input are required"))
	}
	program.Check(measure.WithData(*folder, func(all data.Batch) error {
		if all.Size != *batch**steps {
			return fmt.Errorf("the data has %d samples, expected %d batches of %d", all.Size, *steps, *batch)
		}
		step := load(*impl, *dir).loop(all, *batch, *steps, *input, feeds, fetches)
		result, err := measure.Run(measure.Plan{Warmup: *steps, Steps: *steps * *epochs, Chunks: *epochs}, step)
		if err != nil {
			return err
		}
		return result.Sample(1, tf.Version()).Write(stdout)
	}))
}

type library struct {
	output func(tensor string) tf.Output
	run    func(feeds map[tf.Output]*tf.Tensor, fetches []tf.Output) ([]*tf.Tensor, error)
}

func load(impl, dir string) (l library) {
	switch impl {
	case "galeone":
		saved := program.Must(tf.LoadSavedModel(dir, []string{"serve"}, nil))
		l.output = func(tensor string) tf.Output { return output(saved.Graph, tensor) }
		l.run = func(feeds map[tf.Output]*tf.Tensor, fetches []tf.Output) ([]*tf.Tensor, error) {
			return saved.Session.Run(feeds, fetches, nil)
		}
	case "tfgo":
		m := tfgo.LoadModel(dir, []string{"serve"}, nil) // panics on an error
		l.output = func(tensor string) tf.Output { return m.Op(split(tensor)) }
		l.run = func(feeds map[tf.Output]*tf.Tensor, fetches []tf.Output) ([]*tf.Tensor, error) {
			return m.Exec(fetches, feeds), nil
		}
	default:
		program.Check(fmt.Errorf("impl %q is not galeone or tfgo", impl))
	}
	return l
}

// loop returns a function that trains on the next batch and returns the loss.
func (l library) loop(all data.Batch, batch, steps int, input string, feeds, fetches []string) func() (float32, error) {
	makers := make([]map[tf.Output]func() *tf.Tensor, steps)
	for k := range makers {
		makers[k] = make(map[tf.Output]func() *tf.Tensor)
	}
	for _, feed := range feeds {
		tensor, field, _ := strings.Cut(feed, "=")
		in := l.output(tensor)
		for k := range makers {
			values, ok := all.Slice(k*batch, (k+1)*batch).Field(field)
			if !ok {
				program.Check(fmt.Errorf("the data has no field %q", field))
			}
			makers[k][in] = maker(values, input)
		}
	}
	var outputs []tf.Output
	for _, name := range fetches {
		outputs = append(outputs, l.output(name))
	}
	step := 0
	return func() (float32, error) {
		values := make(map[tf.Output]*tf.Tensor, len(feeds))
		for in, tensor := range makers[step%steps] {
			values[in] = tensor()
		}
		step++
		loss, ok := program.Must(l.run(values, outputs))[0].Value().(float32)
		if !ok {
			program.Check(errors.New("the first fetch is not a float32 scalar"))
		}
		return loss, nil
	}
}

// maker returns a function that creates a tensor of a batch, either from nested slices, as in
// the binding's documentation, or from a flat slice, which is faster.
func maker(batch data.Array, input string) func() *tf.Tensor {
	switch input {
	case "nested":
		value := nest(batch).Interface()
		return func() *tf.Tensor { return program.Must(tf.NewTensor(value)) }
	case "flat":
		shape := make([]int64, len(batch.Shape))
		for i, d := range batch.Shape {
			shape[i] = int64(d)
		}
		return func() *tf.Tensor {
			t := program.Must(tf.NewTensor(batch.Values))
			program.Check(t.Reshape(shape))
			return t
		}
	}
	program.Check(fmt.Errorf("input %q is not nested or flat", input))
	return nil
}
