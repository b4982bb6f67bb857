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

	"steadyfit/internal/measure"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("baseline", flag.ContinueOnError)
	flags.SetOutput(stderr)
	impl := flags.String("impl", "galeone", "galeone or tfgo")
	input := flags.String("input", "nested", "nested or flat")
	model := flags.String("model", "", "folder of the SavedModel")
	name := flags.String("name", "model", "model's name in the result line")
	batch := flags.Int64("batch", 0, "batch size in the result line")
	plan := measure.Plan{}
	flags.IntVar(&plan.Steps, "steps", 1000, "measured steps")
	flags.IntVar(&plan.Warmup, "warmup", 50, "steps before them")
	flags.IntVar(&plan.Chunks, "chunks", 50, "groups that the steps are timed in")
	var feeds []measure.Feed
	flags.Func("feed", "NAME=DTYPE:SHAPE[:LIMIT], repeated", func(s string) error {
		f, err := measure.ParseFeed(s)
		feeds = append(feeds, f)
		return err
	})
	var fetches []string
	flags.Func("fetch", "output's name, repeated; the first is the loss", func(s string) error {
		fetches = append(fetches, s)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *model == "" || len(feeds) == 0 || len(fetches) == 0 {
		fmt.Fprintln(stderr, "baseline: -model, -feed and -fetch are needed")
		return 2
	}
	result, err := measured(*impl, *input, *model, feeds, fetches, plan)
	if err == nil {
		label := *impl
		if *input != "nested" {
			label += "-" + *input
		}
		err = result.Print(stdout, label, *name, *batch)
	}
	if err != nil {
		fmt.Fprintf(stderr, "baseline: %v\n", err)
		return 1
	}
	return 0
}

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

func measured(impl, input, dir string, feeds []measure.Feed, fetches []string, plan measure.Plan) (measure.Result, error) {
	b, err := open(impl, dir)
	if err != nil {
		return measure.Result{}, err
	}
	inputs := make([]tf.Output, len(feeds))
	makers := make([]func() (*tf.Tensor, error), len(feeds))
	for i, f := range feeds {
		if inputs[i], err = resolve(b, f.Tensor); err != nil {
			return measure.Result{}, err
		}
		if makers[i], err = maker(f, i, input); err != nil {
			return measure.Result{}, err
		}
	}
	outputs := make([]tf.Output, len(fetches))
	for i, name := range fetches {
		if outputs[i], err = resolve(b, name); err != nil {
			return measure.Result{}, err
		}
	}
	return measure.Run(plan, func() (float32, error) {
		values := make(map[tf.Output]*tf.Tensor, len(feeds))
		for i, in := range inputs {
			t, err := makers[i]()
			if err != nil {
				return 0, err
			}
			values[in] = t
		}
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

// maker returns a function that makes feed number i's tensor anew from host
// memory, as a loop does with each batch.
func maker(f measure.Feed, i int, input string) (func() (*tf.Tensor, error), error) {
	var flat any
	switch f.DType {
	case "float":
		flat = f.Floats(i)
	case "int32":
		flat = measure.Integers[int32](f, i)
	case "int64":
		flat = measure.Integers[int64](f, i)
	}
	switch input {
	case "nested":
		value := nest(reflect.ValueOf(flat), f.Shape).Interface()
		return func() (*tf.Tensor, error) { return tf.NewTensor(value) }, nil
	case "flat":
		return func() (*tf.Tensor, error) {
			t, err := tf.NewTensor(flat)
			if err != nil {
				return nil, err
			}
			return t, t.Reshape(f.Shape)
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
