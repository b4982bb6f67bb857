//go:build graft || galeone || official

package beside

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"steadyfit/data"
	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/serve"
)

// calls makes n predictions of the sample in several goroutines, and returns the anonymous memory of the process that
// computes them.
type calls func(goroutines, n int) (memory.Bytes, error)

// BenchmarkServe predicts single samples in several goroutines or threads: with the C program in the
// folder STEADYFIT_BENCH, with the binding of the build tag, and with package serve. STEADYFIT_BENCH_MODEL is the model;
// its only input takes floats.
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
	sig, err := model.Signature(model.Roles.Predict)
	if err != nil {
		b.Fatal(err)
	}
	for _, way := range []struct {
		name string
		open func(*testing.B, *savedmodels.Model, *savedmodels.Signature, data.Batch) calls
	}{{"c", withC}, {binding, withBinding}, {"serve", withServe(0)}, {"serve-joined", withServe(32)}} {
		b.Run("way="+way.name, func(b *testing.B) {
			predict := way.open(b, model, sig, sample(sig.DataInputs()[0]))
			if _, err := predict(1, 100); err != nil {
				b.Fatal(err)
			}
			for _, goroutines := range []int{1, 8, 64} {
				b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
					b.ReportAllocs()
					anon, err := predict(goroutines, b.N)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
					b.ReportMetric(float64(anon)/float64(memory.MiB), "anon-MiB")
				})
			}
		})
	}
}

// sample returns a batch of one sample.
func sample(in savedmodels.Tensor) data.Batch {
	shape, n := []int{1}, 1
	for _, d := range in.Shape[1:] {
		shape = append(shape, int(max(d, 1)))
		n *= shape[len(shape)-1]
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i%17) / 17
	}
	return data.Batch{Size: 1, Fields: []data.Field{{Name: in.Name, Array: data.Array{Shape: shape, Values: values}}}}
}

func writeArray(path string, a data.Array) error {
	return files.Stream(path, func(out io.Writer) error {
		w, err := data.NewWriter(out, ".npy", a.Shape[0])
		if err == nil {
			err = w.Write(data.Field{Array: a})
		}
		if err == nil {
			err = w.Flush()
		}
		return err
	})
}

// inGoroutines calls predict n times.
func inGoroutines(predict func() error) calls {
	return func(goroutines, n int) (memory.Bytes, error) {
		errs := make([]error, goroutines)
		var group sync.WaitGroup
		for g := range goroutines {
			group.Go(func() {
				for i := g; i < n && errs[g] == nil; i += goroutines {
					errs[g] = predict()
				}
			})
		}
		group.Wait()
		usage, err := memory.Read()
		return usage.Anon.Bytes, errors.Join(append(errs, err)...)
	}
}

// withC starts the C program with a reused tensor for each thread.
func withC(b *testing.B, m *savedmodels.Model, sig *savedmodels.Signature, x data.Batch) calls {
	program, folder := os.Getenv("STEADYFIT_BENCH"), b.TempDir()
	if program == "" {
		b.Fatal("STEADYFIT_BENCH is not set: run make bench-serve")
	}
	if err := writeArray(filepath.Join(folder, "x.npy"), x.Fields[0].Array); err != nil {
		b.Fatal(err)
	}
	args := []string{"-model", m.Dir, "-data", folder, "-feed", sig.DataInputs()[0].Op + "=x"}
	for _, t := range sig.Outputs {
		args = append(args, "-fetch", t.Op)
	}
	cmd := exec.Command(filepath.Join(program, "cloop"), append(args, "-batch", "1", "-steps", "1", "-epochs", "1", "-mode", "predict")...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			b.Error(err)
		}
	})
	answers := bufio.NewReader(out)
	return func(threads, n int) (anon memory.Bytes, err error) {
		if _, err = fmt.Fprintln(in, threads, n); err == nil {
			_, err = fmt.Fscanln(answers, &anon)
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("the C program has ended")
		}
		return anon, err
	}
}

// withBinding makes a tensor for each call, and reads all outputs, as users of the binding do.
func withBinding(b *testing.B, m *savedmodels.Model, sig *savedmodels.Signature, x data.Batch) calls {
	loaded, err := loadSavedModel(m.Dir, []string{"serve"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	feed := named(loaded, sig.DataInputs()[0].Op)
	var fetches []output
	for _, t := range sig.Outputs {
		fetches = append(fetches, named(loaded, t.Op))
	}
	var shape []int64
	for _, d := range x.Fields[0].Shape {
		shape = append(shape, int64(d))
	}
	return inGoroutines(func() error {
		x, err := newTensor(x.Fields[0].Values)
		if err == nil {
			err = x.Reshape(shape)
		}
		if err != nil {
			return err
		}
		out, err := loaded.Session.Run(map[output]*tensor{feed: x}, fetches, nil)
		for _, t := range out {
			_ = t.Value()
		}
		return err
	})
}

func withServe(batch int) func(*testing.B, *savedmodels.Model, *savedmodels.Signature, data.Batch) calls {
	return func(b *testing.B, m *savedmodels.Model, _ *savedmodels.Signature, x data.Batch) calls {
		p, err := serve.Open(context.Background(), m.Dir, serve.Options{Batch: batch, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = p.Close() })
		results := sync.Pool{New: func() any { return new(data.Batch) }}
		return inGoroutines(func() error {
			out := results.Get().(*data.Batch)
			defer results.Put(out)
			return p.Predict(context.Background(), &x, out)
		})
	}
}
