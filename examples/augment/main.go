//go:build tfgo

// Command augment trains the built-in model of handwritten digits on images that a graph of
// tfgo moves, stretches and fades differently in each epoch. tfgo only describes the graph;
// package tfbind runs it in the training loop, in a dataset that wraps the digits.
//
//	make augment
//
// tfgo links libtensorflow, so the program is only built with the tag tfgo, with the settings
// in bench/galeone.env. The process has one TensorFlow, which both bindings use.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/signal"
	"slices"

	tf "github.com/galeone/tensorflow/tensorflow/go"
	"github.com/galeone/tensorflow/tensorflow/go/op"
	"github.com/galeone/tfgo"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	out := "out/augment"
	if len(os.Args) > 1 {
		out = os.Args[1]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	accuracy, err := train(ctx, out, fit.Loop{Batch: 32, Epochs: 10})
	if err != nil {
		return err
	}
	fmt.Printf("test accuracy %.1f%%, trained model in %s\n", 100*accuracy, out)
	return nil
}

// train sets the session and the validation data of the loop and runs it.
func train(ctx context.Context, out string, loop fit.Loop) (accuracy float64, err error) {
	d, err := describe()
	if err != nil {
		return 0, err
	}
	digits, test, err := data.Builtin("digits")
	if err != nil {
		return 0, err
	}
	changed, closeGraph, err := d.apply(digits.Shuffle(1), 1)
	if err != nil {
		return 0, err
	}
	defer closeGraph()

	model, err := savedmodels.Builtin("digits-cnn")
	if err != nil {
		return 0, err
	}
	s, err := session.OpenModel(ctx, model, session.Options{})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	loop.Session, loop.Validation = s, test
	loop.Hook(fit.Progress(os.Stderr))
	// The graph runs in the prefetcher's goroutine, at the same time as steps on earlier
	// batches.
	history, err := loop.Run(ctx, data.Prefetch(changed, 2))
	if err != nil {
		return 0, err
	}
	accuracy, _ = history.Final().Metrics.Get("val_accuracy")
	return accuracy, s.SaveModel(ctx, out)
}

// size is the width and height of an image, in pixels.
const size = 8

// description is a graph of tfgo with its tensors: pixels takes rows of 64 float32, seed takes
// two int64, and changed has the shape of pixels.
type description struct {
	graph                 *tf.Graph
	pixels, seed, changed tf.Output
}

// describe returns a graph that moves and stretches each image by up to a pixel at each edge,
// and changes its intensity by up to a fifth.
func describe() (d description, err error) {
	root := tfgo.NewRoot()
	next := func() *op.Scope { return root.SubScope("augment") } // a scope per operation avoids name clashes
	d.pixels = op.Placeholder(next(), tf.Float, op.PlaceholderShape(tf.MakeShape(-1, size*size)))
	d.seed = op.Placeholder(next(), tf.Int64, op.PlaceholderShape(tf.MakeShape(2)))
	images := op.Reshape(next(), d.pixels, tfgo.Const(root, []int32{-1, size, size, 1}))
	zero, one := tfgo.Const(root, int32(0)), tfgo.Const(root, int32(1))
	count := op.Gather(next(), op.Shape(next(), d.pixels), zero)

	// random has five numbers per image, from -1 to 1: a distance for each edge, and the
	// intensity.
	random := op.StatelessRandomUniform(next(), op.Pack(next(), []tf.Output{count, tfgo.Const(root, int32(5))}), d.seed)
	random = op.Sub(next(), op.Mul(next(), random, tfgo.Const(root, float32(2))), tfgo.Const(root, float32(1)))
	columns := func(from, to int32) tf.Output {
		return op.StridedSlice(next(), random, tfgo.Const(root, []int32{0, from}), tfgo.Const(root, []int32{0, to}),
			tfgo.Const(root, []int32{1, 1}),
			op.StridedSliceBeginMask(1), op.StridedSliceEndMask(1)) // selects all images
	}

	boxes := op.AddV2(next(), op.Mul(next(), columns(0, 4), tfgo.Const(root, float32(1)/size)),
		tfgo.Const(root, []float32{0, 0, 1, 1}))
	moved := op.CropAndResize(next(), images, boxes, op.Range(next(), zero, count, one),
		tfgo.Const(root, []int32{size, size}))
	light := op.AddV2(next(), op.Mul(next(), columns(4, 5), tfgo.Const(root, float32(0.2))), tfgo.Const(root, float32(1)))
	rows := tfgo.NewTensor(root, op.Reshape(next(), moved, tfgo.Const(root, []int32{-1, size * size})))
	d.changed = rows.Mul(light).Output

	d.graph, err = root.Finalize()
	return d, err
}

// apply returns a dataset with the field x of digits through the graph. One pass at a time may run. The caller calls
// closeGraph after the last pass.
func (d description) apply(ds data.Dataset, seed int64) (changed data.Dataset, closeGraph func() error, err error) {
	text := new(bytes.Buffer)
	if _, err := d.graph.WriteTo(text); err != nil {
		return nil, nil, fmt.Errorf("serialize the graph: %w", err)
	}
	s, err := tfbind.NewSession(nil, nil)
	if err != nil {
		return nil, nil, err
	}
	err = s.Graph().Import(text.Bytes(), "")
	var tensors []tfbind.Output
	for _, o := range []tf.Output{d.pixels, d.seed, d.changed} {
		if err == nil {
			var found tfbind.Output
			found, err = s.Graph().Output(fmt.Sprintf("%s:%d", o.Op.Name(), o.Index))
			tensors = append(tensors, found)
		}
	}
	var step *tfbind.Step
	if err == nil {
		step, err = s.Prepare(tensors[:2], tensors[2:])
	}
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return &augmented{ds, step, seed}, func() error { return errors.Join(step.Close(), s.Close()) }, nil
}

// augmented is a dataset of digits whose field x is changed by a graph. The changes depend only on the seed and the
// position of the batch, so a resumed training repeats them. A checkpoint has a hash of the changed samples.
type augmented struct {
	data.Dataset
	step *tfbind.Step
	seed int64
}

func (a *augmented) Fields() []data.FieldSpec {
	fields := slices.Clone(a.Dataset.Fields())
	for i := range fields {
		if fields[i].Name == "x" {
			fields[i].Type = "float32"
		}
	}
	return fields
}

// Batches changes the batches of the dataset. All batches of a pass use the same memory.
func (a *augmented) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		var values any
		for b, err := range a.Dataset.Batches(p) {
			if err == nil {
				b.Fields = slices.Clone(b.Fields)
				for i := range b.Fields {
					if f := &b.Fields[i]; f.Name == "x" && err == nil {
						values, err = a.change(f.Values, b.Size, [2]int64{a.seed, int64(p.Epoch)<<32 + int64(b.Index)}, values)
						f.Values = values
					}
				}
			}
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// change runs the graph on the pixels of n images. The result may use the memory of buffer.
func (a *augmented) change(pixels any, n int, seed [2]int64, buffer any) (changed any, err error) {
	err = tfbind.SetFunc(a.step, 0, func(to []float32) error {
		for i, v := range pixels.([]uint8) {
			to[i] = float32(v)
		}
		return nil
	}, int64(n), size*size)
	if err == nil {
		err = a.step.Set(1, seed[:], 2)
	}
	if err == nil {
		err = a.step.Run(context.Background())
	}
	if err != nil {
		return nil, err
	}
	changed, _, err = a.step.Read(0, buffer)
	return changed, err
}
