//go:build tfgo

// Command augment trains the built-in model of handwritten digits on images that a graph of
// tfgo moves, stretches and fades differently in each epoch. tfgo only describes the graph;
// this project's session runs it in the training loop.
//
//	make augment
//
// tfgo links libtensorflow, so the program is only built with the tag tfgo, with the settings
// in bench/galeone.env. The process has one TensorFlow, which both bindings use.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"

	tf "github.com/galeone/tensorflow/tensorflow/go"
	"github.com/galeone/tensorflow/tensorflow/go/op"
	"github.com/galeone/tfgo"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
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
	changed, closeGraph, err := d.apply(ctx, digits.Shuffle(1), 1)
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

// apply returns a dataset with the field x through the graph.
func (d description) apply(ctx context.Context, ds data.Dataset, seed int64) (changed data.Dataset,
	closeGraph func() error, err error) {
	text := new(bytes.Buffer)
	if _, err := d.graph.WriteTo(text); err != nil {
		return nil, nil, fmt.Errorf("serialize the graph: %w", err)
	}
	return session.Preprocess(ctx, ds, text.Bytes(), session.PreprocessingOptions{
		Name: "move", Field: "x", Input: name(d.pixels), Output: name(d.changed), SeedInput: name(d.seed), Seed: seed,
	})
}

func name(o tf.Output) string { return fmt.Sprintf("%s:%d", o.Op.Name(), o.Index) }
