package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A precision is one way to train a model.
type precision struct {
	Name string `json:"name"`
	// suffix is what the name of the exported model ends with; flag is --precision.
	suffix, flag string
}

// precisions begin with the one that the others are compared with.
var precisions = []precision{
	{"fp32", "", "fp32"},
	{"bf16-rewritten", "", "bf16"},
	{"bf16-exported", "-bf16", "fp32"},
	{"fp16-rewritten", "", "fp16"},
	{"fp16-exported", "-fp16", "fp32"},
}

// A model is what is trained, and on what.
type model struct {
	Name string `json:"name"`
	Data string `json:"data"`
	// Batch is in samples; an epoch is all of the data.
	Batch  int `json:"batch"`
	Epochs int `json:"epochs"`
	// ships and shipsAll say whether the program has the model, and its variants.
	ships, shipsAll bool
	train, test     func(*options) string
	flags           []string
}

func builtin(name string) func(*options) string {
	return func(*options) string { return "builtin:" + name }
}

func fashion(o *options) string { return o.fashion }

func made(part string) func(*options) string {
	return func(o *options) string { return filepath.Join(o.data(), part) }
}

// models take less than an hour in all, at 5 seeds on two cores.
var models = []model{
	{Name: "digits", Data: "digits: 1438 samples, tested on 359", Batch: 32, Epochs: 30,
		ships: true, shipsAll: true, train: builtin("digits"), test: builtin("digits")},
	{Name: "digits-cnn", Data: "digits: 1438 samples, tested on 359", Batch: 32, Epochs: 15,
		ships: true, shipsAll: true, train: builtin("digits"), test: builtin("digits")},
	{Name: "fashion-cnn", Data: "Fashion-MNIST: 60000 samples, tested on 10000", Batch: 64, Epochs: 2,
		train: fashion, test: fashion},
	{Name: "image-224", Data: fmt.Sprintf("made images: %d samples, tested on %d", imagesTrain, imagesTest), Batch: 32, Epochs: 4,
		ships: true, train: made("train"), test: made("test"), flags: []string{"--scale", "0,1"}},
}

// A job is one run of fit.
type job struct {
	model     model
	precision precision
	seed      int
	// args are those of steadyfit, but for the history.
	args []string
}

func (j *job) name() string {
	return fmt.Sprintf("%s_%s_%d", j.model.Name, j.precision.Name, j.seed)
}

type plan struct {
	options
	jobs   []job
	commit string // of the source, for runs that begin now
}

// newPlan lists the runs: seed by seed, so that what is there early is of all
// precisions. No names mean all.
func newPlan(o options, onlyModels, onlyPrecisions []string) (*plan, error) {
	if o.seeds < 2 {
		return nil, fmt.Errorf("-seeds %d: an interval needs at least 2", o.seeds)
	}
	p := &plan{options: o}
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
			return nil, fmt.Errorf("-models: there is no %q", name)
		}
	}
	for _, name := range onlyPrecisions {
		if !slices.ContainsFunc(precisions, func(q precision) bool { return q.Name == name }) {
			return nil, fmt.Errorf("-precisions: there is no %q", name)
		}
	}
	return p, nil
}

func newJob(o *options, m model, q precision, seed int) job {
	path := filepath.Join(o.exported, m.Name+q.suffix)
	if m.shipsAll || m.ships && q.suffix == "" {
		path = "builtin:" + m.Name + q.suffix
	}
	args := []string{"fit", "--model", path, "--data", m.train(o), "--validation", m.test(o),
		"--batch", strconv.Itoa(m.Batch), "--epochs", strconv.Itoa(m.Epochs)}
	args = append(args, m.flags...)
	args = append(args, "--precision", q.flag, "--seed", strconv.Itoa(seed), "--auto", "off")
	return job{model: m, precision: q, seed: seed, args: args}
}

// print writes the command lines.
func (p *plan) print(w io.Writer) {
	for _, j := range p.jobs {
		fmt.Fprintf(w, "%s %s\n", p.steadyfit, strings.Join(j.args, " "))
	}
	fmt.Fprintf(w, "%d runs\n", len(p.jobs))
}
