package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/contract"
	"steadyfit/savedmodels"
)

type precision struct {
	Name string `json:"name"`
	// suffix is the end of the name of the exported model. flag is the value of --precision.
	suffix, flag string
}

// precisions begins with the reference.
var precisions = []precision{
	{"fp32", "", "fp32"},
	{"bf16-rewritten", "", "bf16"},
	{"bf16-exported", "-bf16", "fp32"},
	{"fp16-rewritten", "", "fp16"},
	{"fp16-exported", "-fp16", "fp32"},
	{"fp16-scaled", "-scaled", "fp32"},
}

type model struct {
	Name string `json:"name"`
	Data string `json:"data"`
	// Batch is the number of samples per step. An epoch uses all data.
	Batch       int `json:"batch"`
	Epochs      int `json:"epochs"`
	train, test func(*options) string
	flags       []string
}

// shipped is the prefix of the built-in models and data.
const shipped = contract.BuiltinPrefix

func builtin(name string) func(*options) string {
	return func(*options) string { return shipped + name }
}

func fashion(o *options) string { return o.fashion }

func made(part string) func(*options) string {
	return func(o *options) string { return filepath.Join(o.data(), part) }
}

// With 5 seeds, all models take about an hour on two cores.
var models = []model{
	{Name: "digits", Data: "digits: 1438 training samples, 359 test samples", Batch: 32, Epochs: 30,
		train: builtin("digits"), test: builtin("digits")},
	{Name: "digits-cnn", Data: "digits: 1438 training samples, 359 test samples", Batch: 32, Epochs: 15,
		train: builtin("digits"), test: builtin("digits")},
	{Name: "fashion-cnn", Data: "Fashion-MNIST: 60000 training samples, 10000 test samples", Batch: 64, Epochs: 2,
		train: fashion, test: fashion},
	{Name: "image-224", Data: fmt.Sprintf("generated images: %d training samples, %d test samples", imagesTrain,
		imagesTest), Batch: 32, Epochs: 4,
		train: made("train"), test: made("test"), flags: []string{"--scale", "0,1"}},
}

type job struct {
	model     model
	precision precision
	seed      int
	path      string // of the model
	// args are the arguments of steadyfit, without the history.
	args []string
}

func (j *job) name() string {
	return fmt.Sprintf("%s_%s_%d", j.model.Name, j.precision.Name, j.seed)
}

type plan struct {
	options
	jobs   []job
	commit string            // commit of the source, for new runs
	hashes map[string]string // hashes of models by path
}

// newPlan lists the runs by seed, so that early results cover all precisions. Empty names mean
// all models or precisions.
func newPlan(o options, onlyModels, onlyPrecisions []string) (*plan, error) {
	if o.seeds < 2 {
		return nil, fmt.Errorf("-seeds %d: an interval needs at least 2", o.seeds)
	}
	p := &plan{options: o, hashes: make(map[string]string)}
	for _, m := range models {
		if len(onlyModels) > 0 && !slices.Contains(onlyModels, m.Name) {
			continue
		}
		for seed := 1; seed <= o.seeds; seed++ {
			for i, q := range precisions {
				if i > 0 && len(onlyPrecisions) > 0 && !slices.Contains(onlyPrecisions, q.Name) {
					continue
				}
				p.jobs = append(p.jobs, newJob(&o, m, q, seed))
			}
		}
	}
	for _, name := range onlyModels {
		if !slices.ContainsFunc(models, func(m model) bool { return m.Name == name }) {
			return nil, fmt.Errorf("-models: unknown model %q", name)
		}
	}
	for _, name := range onlyPrecisions {
		if !slices.ContainsFunc(precisions, func(q precision) bool { return q.Name == name }) {
			return nil, fmt.Errorf("-precisions: unknown precision %q", name)
		}
	}
	return p, nil
}

func newJob(o *options, m model, q precision, seed int) job {
	path := filepath.Join(o.exported, m.Name+q.suffix)
	if slices.Contains(savedmodels.BuiltinNames(), m.Name+q.suffix) {
		path = shipped + m.Name + q.suffix
	}
	args := []string{"fit", "--model", path, "--data", m.train(o), "--validation", m.test(o),
		"--batch", strconv.Itoa(m.Batch), "--epochs", strconv.Itoa(m.Epochs)}
	args = append(args, m.flags...)
	args = append(args, "--precision", q.flag, "--seed", strconv.Itoa(seed), "--auto", "off")
	return job{model: m, precision: q, seed: seed, path: path, args: args}
}

func (p *plan) print(w io.Writer) {
	for _, j := range p.jobs {
		fmt.Fprintf(w, "%s %s\n", p.steadyfit, strings.Join(j.args, " "))
	}
	fmt.Fprintf(w, "%d runs\n", len(p.jobs))
}
