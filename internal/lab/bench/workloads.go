package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/internal/lab/measure"
	"steadyfit/savedmodels"
)

type Workload struct {
	Name  string `json:"name"`
	Model string `json:"model"` // name in scripts/bench_models.py
	Batch int    `json:"batch"`
	// Steps is the number of steps per epoch, each with its own batch. Epochs is the number of
	// epochs after the warm-up.
	Steps  int `json:"steps"`
	Epochs int `json:"epochs"`
	// Random means that a step draws random numbers, which differ between variants.
	Random bool `json:"random,omitempty"`
	// DataBytes is the size of the batches of an epoch, which every variant holds in memory.
	DataBytes int64 `json:"data_bytes,omitempty"`
}

// A workload takes one to a few seconds in the C loop.
var workloads = []Workload{
	{Name: "dense-100-64-1", Model: "dense-100-64-1", Batch: 32, Steps: 500, Epochs: 20},
	{Name: "dense-784-10", Model: "dense-784-10", Batch: 32, Steps: 500, Epochs: 20},
	{Name: "dropout-200-512-256-1", Model: "dropout-200-512-256-1", Batch: 64, Steps: 250, Epochs: 8, Random: true},
	{Name: "digits-cnn", Model: "digits-cnn", Batch: 32, Steps: 250, Epochs: 10, Random: true},
	{Name: "lstm", Model: "lstm", Batch: 32, Steps: 250, Epochs: 8},
	{Name: "attention", Model: "attention", Batch: 32, Steps: 100, Epochs: 10},
	{Name: "image-224", Model: "image-224", Batch: 32, Steps: 4, Epochs: 10},
}

func workloadNames() []string {
	var names []string
	for _, w := range workloads {
		names = append(names, w.Name)
	}
	return names
}

const classes = 10

type prepared struct {
	Workload
	model *savedmodels.Model
	data  string // folder of x.npy and y.npy
}

// exporters are the programs that export the models.
var exporters = []string{
	filepath.Join("scripts", "bench_models.py"), filepath.Join("scripts", "builtin.py"),
	filepath.Join("scripts", "steadyfit-export"),
}

// prepare exports the model if the exporters are newer, and writes the batches.
func (b *benchmark) prepare(ctx context.Context, w Workload) (*prepared, error) {
	dir := filepath.Join(b.models, w.Model)
	modules, err := filepath.Glob(filepath.Join("scripts", "steadyfit_export", "*.py"))
	if err != nil {
		return nil, err
	}
	if !newer(filepath.Join(dir, "saved_model.pb"), append(modules, exporters...)...) {
		fmt.Fprintf(b.log, "bench: exporting %s\n", w.Model)
		cmd := exec.CommandContext(ctx, b.python, exporters[0], b.models, "--twins", "--only", w.Model)
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("exporting %s with %s (installed by make venv): %w: %s", w.Model, b.python, err, text)
		}
	}
	m, err := savedmodels.Open(dir)
	if err != nil {
		return nil, err
	}
	p := &prepared{Workload: w, model: m, data: filepath.Join(b.data,
		w.Model+"-"+strconv.Itoa(w.Batch)+"x"+strconv.Itoa(w.Steps))}
	sig, err := m.Signature(m.Roles.Train)
	if err != nil {
		return nil, err
	}
	return p, p.writeData(sig)
}

// newer reports whether a file exists and is at least as new as others.
func newer(file string, than ...string) bool {
	f, err := os.Stat(file)
	return err == nil && !slices.ContainsFunc(than, func(name string) bool {
		other, err := os.Stat(name)
		return err == nil && other.ModTime().After(f.ModTime())
	})
}

// writeData writes random batches from a fixed seed: floats from 0 to 1, and integers below
// classes.
func (p *prepared) writeData(sig *savedmodels.Signature) error {
	if err := os.MkdirAll(p.data, 0o777); err != nil {
		return err
	}
	for i, in := range sig.DataInputs() {
		if in.Name != "x" && in.Name != "y" || in.UnknownRank || len(in.Shape) == 0 {
			return fmt.Errorf("%s: input %s: expected the inputs x and y with known shapes", p.Model, in.Name)
		}
		a := data.Array{Shape: []int{p.Batch * p.Steps}}
		n := a.Shape[0]
		for _, d := range in.Shape[1:] {
			if d < 1 {
				return fmt.Errorf("%s: input %s: only the batch dimension may be unknown", p.Model, in.Name)
			}
			a.Shape = append(a.Shape, int(d))
			n *= int(d)
		}
		random := rand.New(rand.NewPCG(224, uint64(i)))
		switch in.DType {
		case dtype.Float32:
			values := make([]float32, n)
			for k := range values {
				values[k] = random.Float32()
			}
			a.Values, p.DataBytes = values, p.DataBytes+4*int64(n)
		case dtype.Int64:
			values := make([]int64, n)
			for k := range values {
				values[k] = random.Int64N(classes)
			}
			a.Values, p.DataBytes = values, p.DataBytes+8*int64(n)
		default:
			return fmt.Errorf("%s: input %s is %s; expected float32 or int64", p.Model, in.Name, in.DType)
		}
		if err := measure.WriteArray(filepath.Join(p.data, in.Name+".npy"), a); err != nil {
			return fmt.Errorf("%s: %w", in.Name, err)
		}
	}
	return nil
}
