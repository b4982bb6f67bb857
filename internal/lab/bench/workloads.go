package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"steadyfit/internal/lab/measure"
	"steadyfit/savedmodels"
)

type Workload struct {
	Name   string `json:"name"` // of the model in scripts/bench_models.py
	Batch  int    `json:"batch"`
	Steps  int    `json:"steps"`  // per epoch, each with its own batch
	Epochs int    `json:"epochs"` // after the warm-up
	// Random means that a step draws random numbers, which differ between variants.
	Random bool `json:"random,omitempty"`
}

func (w Workload) name() string { return w.Name }

// A workload takes one to a few seconds in the C loop.
var workloads = []Workload{
	{Name: "dense-100-64-1", Batch: 32, Steps: 500, Epochs: 20},
	{Name: "dense-784-10", Batch: 32, Steps: 500, Epochs: 20},
	{Name: "dropout-200-512-256-1", Batch: 64, Steps: 250, Epochs: 8, Random: true},
	{Name: "digits-cnn", Batch: 32, Steps: 250, Epochs: 10, Random: true},
	{Name: "lstm", Batch: 32, Steps: 250, Epochs: 8},
	{Name: "attention", Batch: 32, Steps: 100, Epochs: 10},
	{Name: "image-224", Batch: 32, Steps: 4, Epochs: 10},
}

type prepared struct {
	Workload
	model *savedmodels.Model
	train *savedmodels.Signature
	data  string // folder of x.npy and y.npy
}

// prepare exports the model if the exporters are newer, and writes the batches of an epoch.
func (b *benchmark) prepare(ctx context.Context, w Workload) (*prepared, error) {
	models := filepath.Join(b.folder, "models")
	dir := filepath.Join(models, w.Name)
	modules, err := filepath.Glob(filepath.Join("scripts", "steadyfit_export", "*.py"))
	if err != nil {
		return nil, err
	}
	exporter := filepath.Join("scripts", "bench_models.py")
	if !newer(filepath.Join(dir, "saved_model.pb"), append(modules, exporter, filepath.Join("scripts", "builtin.py"))...) {
		fmt.Fprintf(b.log, "bench: exporting %s\n", w.Name)
		cmd := exec.CommandContext(ctx, b.python, exporter, models, "--twins", "--only", w.Name)
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("exporting %s with %s (installed by make venv): %w: %s", w.Name, b.python, err, text)
		}
	}
	p := &prepared{Workload: w, data: filepath.Join(b.folder, "data",
		w.Name+"-"+strconv.Itoa(w.Batch)+"x"+strconv.Itoa(w.Steps))}
	if p.model, err = savedmodels.Open(dir); err != nil {
		return nil, err
	}
	if p.train, err = p.model.Signature(p.model.Roles.Train); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.data, 0o777); err != nil {
		return nil, err
	}
	batches, err := measure.Batch(p.train, []int{w.Batch * w.Steps}, measure.DefaultLimit)
	if err != nil {
		return nil, err
	}
	for _, f := range batches.Fields {
		if err := measure.WriteArray(filepath.Join(p.data, f.Name+".npy"), f.Array); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return p, nil
}

// newer reports whether a file exists and is at least as new as others.
func newer(file string, than ...string) bool {
	f, err := os.Stat(file)
	return err == nil && !slices.ContainsFunc(than, func(name string) bool {
		other, err := os.Stat(name)
		return err == nil && other.ModTime().After(f.ModTime())
	})
}
