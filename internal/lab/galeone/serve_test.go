//go:build galeone

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/data"
	"steadyfit/savedmodels"
	"steadyfit/serve"
)

// BenchmarkServe predicts single samples in several goroutines, with galeone's binding and with package serve, in turn
// in one process. STEADYFIT_BENCH_MODEL is the model; its only input takes floats.
func BenchmarkServe(b *testing.B) {
	var model *savedmodels.Model
	var err error
	if dir := os.Getenv("STEADYFIT_BENCH_MODEL"); dir != "" {
		model, err = savedmodels.Open(dir)
	} else {
		model, err = savedmodels.Builtin("digits")
	}
	if err != nil {
		b.Fatal(err)
	}
	for _, way := range []struct {
		name string
		open func(b *testing.B, m *savedmodels.Model) (predict func(sample []float32) error)
	}{{"galeone", withGaleone}, {"serve", withServe(0)}, {"serve-joined", withServe(32)}} {
		predict := way.open(b, model)
		sample := make([]float32, sizeOf(model))
		for i := range sample {
			sample[i] = float32(i%17) / 17
		}
		for _, goroutines := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("way=%s/goroutines=%d", way.name, goroutines), func(b *testing.B) {
				b.ReportAllocs()
				var group sync.WaitGroup
				for g := range goroutines {
					group.Go(func() {
						for i := g; i < b.N; i += goroutines {
							if err := predict(sample); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				group.Wait()
			})
		}
	}
}

func input(m *savedmodels.Model) (*savedmodels.Signature, savedmodels.Tensor) {
	sig, err := m.Signature(m.Roles.Predict)
	if err != nil {
		panic(err)
	}
	return sig, sig.DataInputs()[0]
}

func sizeOf(m *savedmodels.Model) int {
	_, in := input(m)
	n := int64(1)
	for _, d := range in.Shape[1:] {
		n *= max(d, 1)
	}
	return int(n)
}

// withGaleone makes a tensor for each call, and reads the first output, as its users do.
func withGaleone(b *testing.B, m *savedmodels.Model) func([]float32) error {
	saved, err := tf.LoadSavedModel(m.Dir, []string{"serve"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	sig, in := input(m)
	feed := output(saved.Graph, in.Op)
	var fetches []tf.Output
	for _, t := range sig.Outputs {
		fetches = append(fetches, output(saved.Graph, t.Op))
	}
	shape := []int64{1}
	for _, d := range in.Shape[1:] {
		shape = append(shape, max(d, 1))
	}
	return func(sample []float32) error {
		x, err := tf.NewTensor(sample)
		if err == nil {
			err = x.Reshape(shape)
		}
		if err != nil {
			return err
		}
		out, err := saved.Session.Run(map[tf.Output]*tf.Tensor{feed: x}, fetches, nil)
		if err != nil {
			return err
		}
		for _, t := range out {
			_ = t.Value()
		}
		return nil
	}
}

func withServe(batch int) func(*testing.B, *savedmodels.Model) func([]float32) error {
	return func(b *testing.B, m *savedmodels.Model) func([]float32) error {
		_, in := input(m)
		p, err := serve.Open(context.Background(), m.Dir, serve.Options{Batch: batch, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = p.Close() })
		calls := sync.Pool{New: func() any { return newCall(in) }}
		return func(sample []float32) error {
			c := calls.Get().(*call)
			defer calls.Put(c)
			return c.predict(p, sample)
		}
	}
}

// call has the memory of a call.
type call struct{ in, out data.Batch }

func newCall(in savedmodels.Tensor) *call {
	shape := []int{1}
	for _, d := range in.Shape[1:] {
		shape = append(shape, int(max(d, 1)))
	}
	return &call{in: data.Batch{Size: 1, Fields: []data.Field{{Name: in.Name, Array: data.Array{Shape: shape}}}}}
}

func (c *call) predict(p *serve.Predictor, sample []float32) error {
	if c.in.Fields[0].Values == nil {
		c.in.Fields[0].Values = append([]float32{}, sample...)
	}
	copy(c.in.Fields[0].Values.([]float32), sample)
	return p.Predict(context.Background(), &c.in, &c.out)
}
