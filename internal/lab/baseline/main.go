//go:build galeone

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	tf "github.com/galeone/tensorflow/tensorflow/go"
	"github.com/galeone/tfgo"

	"steadyfit/data"
	"steadyfit/internal/lab/measure"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("baseline", flag.ContinueOnError)
	flags.SetOutput(stderr)
	impl := flags.String("impl", "galeone", "galeone or tfgo")
	input := flags.String("input", "nested", "nested or flat")
	model := flags.String("model", "", "folder of the SavedModel")
	folder := flags.String("data", "", "folder with x.npy and y.npy: the batches of an epoch")
	var p pass
	flags.IntVar(&p.batch, "batch", 0, "samples in a step")
	flags.IntVar(&p.steps, "steps", 0, "steps in an epoch")
	flags.IntVar(&p.epochs, "epochs", 0, "epochs, after one to warm up")
	var feeds []feed
	flags.Func("feed", "TENSOR=FIELD, repeated", func(s string) error {
		tensor, field, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("expected TENSOR=FIELD")
		}
		feeds = append(feeds, feed{tensor, field})
		return nil
	})
	var fetches []string
	flags.Func("fetch", "output's name, repeated; the first is the loss", func(s string) error {
		fetches = append(fetches, s)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *model == "" || len(feeds) == 0 || len(fetches) == 0 || p.batch < 1 || p.steps < 1 || p.epochs < 1 {
		fmt.Fprintln(stderr, "baseline: all flags but -impl and -input are needed")
		return 2
	}
	err := measure.WithData(*folder, func(all data.Batch) error {
		result, err := measured(*impl, *input, *model, all, feeds, fetches, p)
		if err != nil {
			return err
		}
		return result.Sample(1, tf.Version()).Write(stdout)
	})
	if err != nil {
		fmt.Fprintf(stderr, "baseline: %v\n", err)
		return 1
	}
	return 0
}

// pass says how the batches are gone through.
type pass struct{ batch, steps, epochs int }

// feed is an input in the graph and the field of the data that it takes.
type feed struct{ tensor, field string }

// A binding is what the two libraries have in common for this loop.
type binding struct {
	output func(op string, index int) (tf.Output, error)
	run    func(feeds map[tf.Output]*tf.Tensor, fetches []tf.Output) ([]*tf.Tensor, error)
}

func open(impl, dir string) (binding, error) {
	switch impl {
	case "galeone":
		saved, err := tf.LoadSavedModel(dir, []string{"serve"}, nil)
		if err != nil {
			return binding{}, err
		}
		return binding{
			output: func(op string, index int) (tf.Output, error) {
				o := saved.Graph.Operation(op)
				if o == nil {
					return tf.Output{}, fmt.Errorf("no operation %q in the graph", op)
				}
				return o.Output(index), nil
			},
			run: func(feeds map[tf.Output]*tf.Tensor, fetches []tf.Output) ([]*tf.Tensor, error) {
				return saved.Session.Run(feeds, fetches, nil)
			},
		}, nil
	case "tfgo":
		m := tfgo.LoadModel(dir, []string{"serve"}, nil) // panics if it cannot
		return binding{
			output: func(op string, index int) (tf.Output, error) { return m.Op(op, index), nil },
			run: func(feeds map[tf.Output]*tf.Tensor, fetches []tf.Output) ([]*tf.Tensor, error) {
				return m.Exec(fetches, feeds), nil
			},
		}, nil
	default:
		return binding{}, fmt.Errorf("impl %q is not galeone or tfgo", impl)
	}
}

func measured(impl, input, dir string, all data.Batch, feeds []feed, fetches []string, p pass) (measure.Result, error) {
	if all.Size != p.batch*p.steps {
		return measure.Result{}, fmt.Errorf("the data has %d samples, expected %d batches of %d", all.Size, p.steps, p.batch)
	}
	b, err := open(impl, dir)
	if err != nil {
		return measure.Result{}, err
	}
	inputs := make([]tf.Output, len(feeds))
	makers := make([][]func() (*tf.Tensor, error), len(feeds)) // by feed and batch
	for i, f := range feeds {
		if inputs[i], err = resolve(b, f.tensor); err != nil {
			return measure.Result{}, err
		}
		for k := range p.steps {
			values, ok := all.Slice(k*p.batch, (k+1)*p.batch).Field(f.field)
			if !ok {
				return measure.Result{}, fmt.Errorf("the data has no field %q", f.field)
			}
			tensor, err := maker(values, input)
			if err != nil {
				return measure.Result{}, err
			}
			makers[i] = append(makers[i], tensor)
		}
	}
	outputs := make([]tf.Output, len(fetches))
	for i, name := range fetches {
		if outputs[i], err = resolve(b, name); err != nil {
			return measure.Result{}, err
		}
	}
	step := 0
	return measure.Run(measure.Plan{Warmup: p.steps, Steps: p.steps * p.epochs, Chunks: p.epochs}, func() (float32, error) {
		values := make(map[tf.Output]*tf.Tensor, len(feeds))
		for i, in := range inputs {
			t, err := makers[i][step%p.steps]()
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
	})
}

// resolve finds "op:index"; a name without an index means output 0.
func resolve(b binding, tensor string) (tf.Output, error) {
	op, index, found := strings.Cut(tensor, ":")
	n := 0
	if found {
		var err error
		if n, err = strconv.Atoi(index); err != nil {
			return tf.Output{}, fmt.Errorf("tensor %q: %w", tensor, err)
		}
	}
	return b.output(op, n)
}

// maker returns a function that makes the tensor of a batch anew from host memory.
func maker(batch data.Array, input string) (func() (*tf.Tensor, error), error) {
	shape := make([]int64, len(batch.Shape))
	for i, d := range batch.Shape {
		shape[i] = int64(d)
	}
	switch input {
	case "nested":
		value := nest(reflect.ValueOf(batch.Values), shape).Interface()
		return func() (*tf.Tensor, error) { return tf.NewTensor(value) }, nil
	case "flat":
		return func() (*tf.Tensor, error) {
			t, err := tf.NewTensor(batch.Values)
			if err != nil {
				return nil, err
			}
			return t, t.Reshape(shape)
		}, nil
	default:
		return nil, fmt.Errorf("input %q is not nested or flat", input)
	}
}

// nest turns a flat slice into slices of slices that share its memory.
func nest(flat reflect.Value, shape []int64) reflect.Value {
	switch len(shape) {
	case 0:
		return flat.Index(0)
	case 1:
		return flat
	}
	n := int(shape[0])
	part := flat.Len() / n
	var all reflect.Value
	for i := range n {
		inner := nest(flat.Slice(i*part, (i+1)*part), shape[1:])
		if i == 0 {
			all = reflect.MakeSlice(reflect.SliceOf(inner.Type()), 0, n)
		}
		all = reflect.Append(all, inner)
	}
	return all
}
