package fit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"steadyfit/data"
	"steadyfit/fit"
)

// slope is a session for these examples: y = a*x, trained by gradient descent. Programs use a
// *session.Session.
type slope struct {
	fit.Plain
	A, rate float64
}

func (s *slope) TrainMetrics() []string    { return []string{"loss"} }
func (s *slope) EvaluateMetrics() []string { return []string{"loss"} }

func (s *slope) loss(b data.Batch) (loss, gradient float64) {
	x, _ := b.Field("x")
	y, _ := b.Field("y")
	for i, x := range x.Values.([]float64) {
		e := s.A*x - y.Values.([]float64)[i]
		loss += e * e / float64(b.Size)
		gradient += 2 * e * x / float64(b.Size)
	}
	return loss, gradient
}

func (s *slope) Train(_ context.Context, _ int64, b data.Batch, out []float64) error {
	loss, gradient := s.loss(b)
	out[0] = loss
	s.A -= s.rate * gradient
	return nil
}

func (s *slope) Evaluate(_ context.Context, b data.Batch, out []float64) error {
	out[0], _ = s.loss(b)
	return nil
}

func (s *slope) Save(_ context.Context, prefix string) error {
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(prefix+".json", content, 0o666)
}

func (s *slope) Restore(_ context.Context, prefix string) error {
	content, err := os.ReadFile(prefix + ".json")
	if err != nil {
		return err
	}
	return json.Unmarshal(content, s)
}

func (s *slope) SetLearningRate(rate float64) error { s.rate = rate; return nil }
func (s *slope) Identity() map[string]string        { return map[string]string{"model": "slope"} }

func doubles() *data.InMemory {
	field := func(name string, values ...float64) data.Field {
		return data.Field{Name: name, Array: data.Array{Shape: []int{len(values)}, Values: values}}
	}
	ds, err := data.New("doubles", field("x", 1, 2, 3, 4), field("y", 2, 4, 6, 8))
	if err != nil {
		fmt.Println(err)
	}
	return ds
}

func Example() {
	loop := fit.Loop{
		Session: &slope{}, Batch: 2, Epochs: 3,
		LearningRate: fit.Constant(0.02),
		Validation:   doubles(),
	}
	loop.Hook(fit.EarlyStop{Metric: "val_loss", Patience: 3}.Hook())
	history, err := loop.Run(context.Background(), doubles().Shuffle(1))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range history.Records {
		loss, _ := r.Metrics.Get("val_loss")
		fmt.Printf("epoch %d, step %d: val_loss %.3f\n", r.Epoch, r.Step, loss)
	}
	// Output:
	// epoch 1, step 2: val_loss 7.156
	// epoch 2, step 4: val_loss 1.707
	// epoch 3, step 6: val_loss 0.346
}

// A cancelled or killed run is resumed by running it again.
func ExampleCheckpoint() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	train := func(ctx context.Context, hooks ...fit.Hook) {
		loop := fit.Loop{Session: &slope{}, Batch: 2, Epochs: 3, LearningRate: fit.Constant(0.02), Resume: dir}
		loop.Hook(fit.Checkpoint{Folder: dir, Keep: 2}.Hook())
		loop.Hook(hooks...)
		history, err := loop.Run(ctx, doubles().Shuffle(1))
		if errors.Is(err, context.Canceled) {
			fmt.Println("interrupted; kept", filepath.Base(history.Checkpoint))
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("resumed from", filepath.Base(history.ResumedFrom))
		fmt.Println(len(history.Records), "epochs")
	}
	ctx, cancel := context.WithCancel(context.Background())
	train(ctx, fit.Hook{Name: "ctrl-c", Step: func(_ context.Context, s *fit.State) error {
		if s.Step == 3 {
			cancel()
		}
		return nil
	}})
	train(context.Background())
	// Output:
	// interrupted; kept ckpt-3
	// resumed from ckpt-3
	// 3 epochs
}
