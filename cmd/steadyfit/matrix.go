package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"steadyfit/data"
	"steadyfit/internal/files"
	"steadyfit/internal/gpu"
	"steadyfit/internal/lab/cell"
	"steadyfit/internal/lab/report"
	"steadyfit/internal/lab/workload"
	"steadyfit/internal/native"
	"steadyfit/matrix"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
	"steadyfit/train"
)

// matrixFlags are the flags of matrix.
type matrixFlags struct {
	workloads, remedies, runtimes []string
	model, data                   string
	quick, json                   bool
	out, baseline, failOn, limit  string
	python                        string
	pairs, jobs, steps, batch     int
	again                         bool
	seed                          int64
	timeout                       time.Duration
	// set reports whether a flag was given.
	set func(flag string) bool
}

// quick is what matrix --quick runs: the remedies that people try first, each where
// it is said to help.
var quick = struct{ workloads, remedies []string }{
	[]string{"W2", "W4", "S3"},
	[]string{
		"W2/close", "W2/gc-epoch", "W2/batch-half",
		"W4/close-all", "W4/gc-epoch", "W4/trim",
		"S3/trim", "S3/system-allocator", "S3/batch-half",
	},
}

// More pairs and jobs than these no machine runs in a day, or at a time.
const maxPairs, maxJobs = 1000, 1024

// quickPairs is the fewest pairs whose intervals say something.
const quickPairs = 3

// A run of the user's model is sampled about userSamples times, and its remedies act
// userEpochs times. Fewer samples than userLeast decide nothing.
const (
	userSamples = 100
	userEpochs  = 10
	userLeast   = 40
)

// calibrationWorkloads are part of every matrix: a loop that does not leak, and one
// that leaks a known amount.
var calibrationWorkloads = []string{"W0", "W1"}

func newMatrix(g *global) *cobra.Command {
	f := &matrixFlags{}
	var ids, remedies []string
	for _, w := range matrix.Workloads() {
		ids = append(ids, w.ID)
	}
	for _, r := range matrix.Remedies() {
		remedies = append(remedies, r.ID)
	}
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Apply remedies for growing memory to workloads, and say what each one does",
		Long: `Apply remedies for growing memory to workloads on the real TensorFlow, and say
what each one does: whether memory still grows, by how much, with which interval,
what carries it, and what the remedy costs. Every run is a process of its own, one
after the other, so leave the machine alone meanwhile.

Two workloads are part of every matrix: W0 does not leak and W1 leaks a known
amount. If they are not measured as they are, the exit code is 6.

Results go to the folder --out: report.html, matrix.json, matrix.txt (Go benchmark
format, for benchstat), claims.md, and runs.jsonl with every sample. Interrupted,
the same command goes on from there.

A remedy may be for one workload only, as in W4/reuse, for one runtime, as in
keras:clear-session, or for both, as in keras:W4/reuse. W4/none takes back for W4
what is named for all workloads.

Workloads: ` + strings.Join(ids, " ") + `
Remedies:  ` + wrapNames(remedies, 68, "\n           "),
		Example: `  steadyfit matrix --quick
  steadyfit matrix --workloads W3,S3 --remedies jemalloc,trim,system-allocator
  steadyfit matrix --model out/my_model --data train.npz --remedies all
  steadyfit matrix --model out/my_model --fail-on 'slope>64KiB/epoch'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.set = cmd.Flags().Changed
			return f.run(cmd.Context(), g, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.workloads, "workloads", nil, "workloads to run, or all; default all, or user with --model")
	flags.StringSliceVar(&f.remedies, "remedies", nil, "remedies to apply, or all; default all; as in trim, W4/reuse, keras:clear-session")
	flags.StringSliceVar(&f.runtimes, "runtime", []string{matrix.Go}, "runtimes: go, galeone, keras")
	flags.StringVar(&f.python, "python", "", "Python of the runtime keras, with TensorFlow and Keras; default that of make venv")
	flags.StringVar(&f.model, "model", "", "folder of a trainable SavedModel, or builtin:NAME, for the workload user")
	flags.StringVar(&f.data, "data", "", "dataset for it; without one, synthetic batches")
	flags.IntVar(&f.steps, "steps", 1000, "train steps of a run of it, at least 40")
	flags.IntVar(&f.batch, "batch", 32, "samples of a step of it")
	flags.BoolVar(&f.quick, "quick", false, "a first answer in four to five minutes: W2, W4, S3 with 6 remedies")
	flags.StringVar(&f.out, "out", "out/matrix", "folder for the results")
	flags.IntVar(&f.pairs, "pairs", 0, "runs of each cell, each paired with one without the remedy; default 5, with --quick 3")
	flags.IntVar(&f.jobs, "jobs", 1, "runs at the same time; more disturb each other's step times")
	flags.Int64Var(&f.seed, "seed", 1, "seed of data, weights and intervals")
	flags.BoolVar(&f.again, "again", false, "do runs again that failed when the same command was run before")
	flags.StringVar(&f.limit, "memory-limit", "", "memory that each run may use, such as 2GiB")
	flags.DurationVar(&f.timeout, "timeout", 2*time.Minute, "a run that is silent for so long hangs, and is ended")
	flags.StringVar(&f.baseline, "baseline", "", "matrix.json of an earlier run that --fail-on compares with")
	flags.StringVar(&f.failOn, "fail-on", "", "exit with 6 if a workload as it is breaks this: slope>64KiB/epoch, peak>1GiB, level>500MiB, leak")
	flags.BoolVar(&f.json, "json", false, "print the result as JSON")
	return cmd
}

// wrapNames joins names with blanks, and breaks the line where it gets too wide.
func wrapNames(names []string, width int, indent string) string {
	var b strings.Builder
	line := 0
	for i, n := range names {
		switch {
		case i == 0:
		case line+1+len(n) > width:
			b.WriteString(indent)
			line = 0
		default:
			b.WriteByte(' ')
			line++
		}
		b.WriteString(n)
		line += len(n)
	}
	return b.String()
}

func (f *matrixFlags) run(ctx context.Context, g *global, stdout, stderr io.Writer) error {
	var rule *matrix.Rule
	if f.failOn != "" {
		r, err := matrix.ParseRule(f.failOn)
		if err != nil {
			return usagef("--fail-on: %w", err)
		}
		rule = &r
	}
	var baseline *matrix.Result
	if f.baseline != "" {
		if rule == nil {
			return usagef("--baseline is what --fail-on compares with, which is not given")
		}
		var err error
		if baseline, err = matrix.ReadFile(f.baseline); err != nil {
			return usagef("--baseline: %w", err)
		}
	}
	plan, err := f.plan(g)
	if err != nil {
		return err
	}
	driver, _ := gpu.Open() // what it complains of is for doctor to say
	defer driver.Close()
	for _, g := range driver.GPUs() {
		plan.GPUs = append(plan.GPUs, g.Name)
	}
	if driver.Why() == "" {
		plan.GPU = driver.Source
	}
	if reasons := plan.Inapplicable(); len(reasons) > 0 {
		return usagef("--remedies: nothing of it would change anything: %s; steadyfit matrix --help lists the remedies and what they are for", strings.Join(reasons, "; "))
	}
	if f.quick {
		if err := plan.Shorten(ctx); err != nil {
			return err
		}
	}
	plan.Progress = progressPrinter(stderr)
	result, runErr := matrix.Run(ctx, plan)
	if result == nil {
		return runErr
	}
	if err := writeReports(f.out, result); err != nil {
		return errors.Join(runErr, err)
	}
	if f.json {
		err = printJSON(stdout, result)
	} else {
		err = report.Text(stdout, result, textOptions(stdout))
	}
	fmt.Fprintf(stderr, "report: %s\n", filepath.Join(f.out, "report.html"))
	if runErr != nil || err != nil {
		if ctx.Err() != nil {
			fmt.Fprintf(stderr, "interrupted: the same command goes on from the %d runs that are done\n", len(result.Runs))
		}
		return errors.Join(runErr, err)
	}
	if rule != nil {
		for _, text := range rule.Undecided(result, baseline) {
			fmt.Fprintf(stderr, "warning: --fail-on: %s\n", text)
		}
	}
	return verdict(result, rule, baseline)
}

// verdict turns what a matrix found into an exit code.
func verdict(result *matrix.Result, rule *matrix.Rule, baseline *matrix.Result) error {
	var broken []string
	for _, c := range result.Calibration {
		if !c.OK {
			broken = append(broken, fmt.Sprintf("calibration of %s %s: %s", c.Runtime, c.Workload, c.Text))
		}
	}
	if rule != nil {
		broken = append(broken, rule.Check(result, baseline)...)
	}
	if len(broken) > 0 {
		return &checkError{errors.New(strings.Join(broken, "\n  "))}
	}
	return nil
}

// plan checks the flags, and everything that a run needs.
func (f *matrixFlags) plan(g *global) (matrix.Plan, error) {
	p := matrix.Plan{Runtimes: f.runtimes, User: f.model, Data: f.data, Pairs: f.pairs, Seed: f.seed, Timeout: f.timeout, Jobs: f.jobs, Again: f.again,
		Quick: f.quick, Version: version(), Out: f.out, Models: map[string]string{}, Commands: map[string]matrix.Command{}}
	if f.pairs < 0 || f.pairs > maxPairs {
		return p, usagef("--pairs %d: expected 1 to %d", f.pairs, maxPairs)
	}
	if f.jobs < 1 || f.jobs > maxJobs {
		return p, usagef("--jobs %d: expected 1 to %d", f.jobs, maxJobs)
	}
	if f.timeout < 0 {
		return p, usagef("--timeout %v: expected 0 or more", f.timeout)
	}
	if f.quick && f.pairs == 0 {
		p.Pairs = quickPairs
	}
	if f.limit != "" {
		limit, err := memory.ParseBytes(f.limit)
		if err != nil {
			return p, usagef("--memory-limit: %w", err)
		}
		p.Limit = limit
	}
	if err := f.choose(&p); err != nil {
		return p, err
	}
	if err := f.user(&p); err != nil {
		return p, err
	}
	for _, w := range p.Workloads {
		if w.Model == "" || p.Models[w.Model] != "" {
			continue
		}
		m, err := savedmodels.Builtin(w.Model)
		if err != nil {
			return p, err
		}
		p.Models[w.Model] = m.Dir
	}
	for _, name := range p.Runtimes {
		command, err := runtimeCommand(g, name, f.python)
		if err != nil {
			return p, err
		}
		p.Commands[name] = command
	}
	return p, nil
}

// choose takes up the workloads and remedies that were named.
func (f *matrixFlags) choose(p *matrix.Plan) error {
	workloads, remedies := f.workloads, f.remedies
	if f.quick {
		if workloads != nil || remedies != nil {
			return usagef("--quick has its own workloads and remedies: leave --workloads and --remedies out")
		}
		workloads, remedies = quick.workloads, quick.remedies
	}
	if workloads == nil && f.model != "" {
		workloads = []string{matrix.User}
	}
	all := len(workloads) == 0 || slices.Contains(workloads, allOfThem)
	wanted := append(slices.Clone(calibrationWorkloads), workloads...)
	for _, id := range workloads {
		if _, err := matrix.FindWorkload(id); err != nil && id != allOfThem {
			return usagef("--workloads: %w", err)
		}
	}
	for _, w := range matrix.Workloads() {
		if slices.Contains(wanted, w.ID) || all && (w.ID != matrix.User || f.model != "") {
			if w.ID == matrix.User {
				w.Steps, w.Every, w.Epoch, w.Batch = f.steps, max(1, f.steps/userSamples), max(1, f.steps/userEpochs), f.batch
			}
			p.Workloads = append(p.Workloads, w)
		}
	}
	if len(remedies) == 0 {
		remedies = []string{allOfThem}
	}
	chosen, err := parseSelection(remedies)
	if err != nil {
		return usagef("--remedies: %w", err)
	}
	for _, r := range matrix.Remedies() {
		if chosen.names(r.ID) {
			p.Remedies = append(p.Remedies, r)
		}
	}
	p.Select = func(runtime, workload, remedy string) bool {
		// Those that are there for calibration only are run as they are.
		return (all || slices.Contains(workloads, workload)) && chosen.selects(runtime, workload, remedy)
	}
	for _, name := range f.runtimes {
		if !slices.Contains(matrix.Runtimes(), name) {
			return usagef("--runtime %s: expected %s", name, strings.Join(matrix.Runtimes(), ", "))
		}
	}
	if len(f.runtimes) == 0 {
		return usagef("--runtime: expected at least one of %s", strings.Join(matrix.Runtimes(), ", "))
	}
	return nil
}

// user checks the user's own model and data before anything is run.
func (f *matrixFlags) user(p *matrix.Plan) error {
	if !slices.ContainsFunc(p.Workloads, func(w matrix.Workload) bool { return w.ID == matrix.User }) {
		for _, name := range []string{"model", "data", "steps", "batch"} {
			if f.set(name) {
				return usagef("--%s is for the workload %s, which is not among --workloads; add it, or leave --%s out", name, matrix.User, name)
			}
		}
		return nil
	}
	if f.model == "" {
		return usagef("the workload %s takes --model", matrix.User)
	}
	if f.steps < userLeast || f.batch < 1 {
		return usagef("--steps %d --batch %d: expected at least %d steps and a batch of 1", f.steps, f.batch, userLeast)
	}
	if !slices.Contains(p.Runtimes, matrix.Go) {
		return usagef("--model is trained on the runtime %s, which is not among --runtime", matrix.Go)
	}
	m, err := (&modelFlags{model: f.model}).open()
	if err != nil {
		return err
	}
	if err := m.CheckTrainable(savedmodels.CheckOptions{}); err != nil {
		return err
	}
	p.User = m.Dir
	if f.data == "" {
		return nil
	}
	ds, err := train.OpenData(m, m.Roles.Train, train.Data{Path: f.data, Map: train.MapNever}, "train", data.Pass{Batch: f.batch, DropRemainder: true})
	if err == nil {
		return ds.Close()
	}
	var unused *session.UnusedFieldError
	if errors.As(err, &unused) { // the children read the data as it is
		return usagef("--data: no input of signature %s takes the field %s; give data without it", unused.Signature, unused.Field)
	}
	return err
}

// runtimeCommand says how the children of a runtime are started. python is that of
// Keras; if it is empty, the checkout's.
func runtimeCommand(g *global, name, python string) (matrix.Command, error) {
	location, err := tfbind.Locate(g.tensorflow)
	if err != nil {
		return matrix.Command{}, err
	}
	c := matrix.Command{Env: []string{tfbind.EnvLibrary + "=" + location.Library}, Libraries: []string{location.Library, location.Framework}}
	if _, set := os.LookupEnv("TF_CPP_MIN_LOG_LEVEL"); !set && !g.verbose {
		c.Env = append(c.Env, "TF_CPP_MIN_LOG_LEVEL=1")
	}
	switch name {
	case matrix.Go:
		program, err := os.Executable()
		if err != nil {
			return c, err
		}
		c.Args = []string{program, cellCommand}
	case matrix.Galeone:
		path, err := project(filepath.Join("out", "bench", "galeone-cell"), "make bench-build")
		if err != nil {
			return c, err
		}
		c.Args = []string{path}
		// It is linked with the libraries of the checkout.
		c.Libraries = nil
		for _, library := range []string{"libtensorflow_cc.so.2", "libtensorflow_framework.so.2"} {
			c.Libraries = append(c.Libraries, filepath.Join(filepath.Dir(path), "..", "..", ".runtime", "tensorflow", library))
		}
	case matrix.Keras:
		script, err := project(filepath.Join("scripts", "matrix_keras.py"), "a checkout of steadyfit")
		if err != nil {
			return c, err
		}
		if python == "" {
			if python, err = project(filepath.Join(".runtime", "venv", "bin", "python"), "make venv"); err != nil {
				return c, err
			}
		} else if python, err = filepath.Abs(python); err != nil {
			return c, err
		}
		c.Args = []string{python, script}
		// Python has a TensorFlow of its own.
		if c.Libraries, err = filepath.Glob(filepath.Join(filepath.Dir(python), "..", "lib", "python3*", "site-packages", "tensorflow", "libtensorflow_*.so.2")); err != nil {
			return c, err
		}
	}
	sum := sha256.New()
	measures := c.Args
	if name == matrix.Keras { // what it imports, too
		scripts, err := filepath.Glob(filepath.Join(filepath.Dir(c.Args[1]), "*.py"))
		if err != nil {
			return c, err
		}
		measures = append(slices.Clip(measures[:1]), scripts...)
	}
	for _, path := range measures {
		if text, err := os.ReadFile(path); err == nil {
			sum.Write(text)
		}
	}
	c.Identity = hex.EncodeToString(sum.Sum(nil)[:12])
	return c, nil
}

// project finds a file of the checkout, from the working folder or the folder of
// the program upwards.
func project(name, source string) (string, error) {
	var starts []string
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	if program, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(program))
	}
	for _, dir := range starts {
		for {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				return path, nil
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return "", &environmentError{fmt.Errorf("no %s above %s; it comes from %s", name, strings.Join(starts, " or "), source)}
}

// progressPrinter shows one line on a terminal, and elsewhere a line per workload and
// per minute.
func progressPrinter(w io.Writer) func(matrix.Progress) {
	file, ok := w.(*os.File)
	terminal := ok && term.IsTerminal(int(file.Fd()))
	var last string
	var said time.Time
	return func(p matrix.Progress) {
		if p.Run.ID < 0 {
			fmt.Fprintf(w, "%d runs\n", p.Total)
			return
		}
		where := fmt.Sprintf("%s %s", p.Run.Runtime, p.Run.Workload)
		left := ""
		if p.Left > 0 {
			left = ", " + p.Left.Round(time.Second).String() + " left"
		}
		switch {
		case terminal:
			fmt.Fprintf(w, "\r\x1b[K%d/%d  %s  %s%s", p.Done, p.Total, where, p.Run.Remedy, left)
			if p.Done == p.Total {
				fmt.Fprint(w, "\r\x1b[K")
			}
		case where != last || p.Done == p.Total || time.Since(said) > time.Minute:
			said = time.Now()
			fmt.Fprintf(w, "%d/%d  %s%s\n", p.Done, p.Total, where, left)
		}
		last = where
	}
}

func textOptions(w io.Writer) report.TextOptions {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return report.TextOptions{Width: 100}
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		width = 80
	}
	_, plain := os.LookupEnv("NO_COLOR")
	return report.TextOptions{Width: width, Color: !plain}
}

// writeReports writes the files of a result, each whole or not at all.
func writeReports(dir string, r *matrix.Result) error {
	if err := matrix.WriteFile(filepath.Join(dir, matrix.ResultFile), r); err != nil {
		return err
	}
	return renderReports(dir, r)
}

func renderReports(dir string, r *matrix.Result) error {
	for name, render := range map[string]func(io.Writer, *matrix.Result) error{
		"report.html": report.HTML, "matrix.txt": report.Benchmark, "claims.md": report.Claims,
	} {
		var text bytes.Buffer
		if err := render(&text, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := files.Replace(filepath.Join(dir, name), text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// cellCommand is the hidden command that the children of the runtime go run.
const cellCommand = "cell"

func newCell(g *global) *cobra.Command {
	return &cobra.Command{
		Use:    cellCommand,
		Short:  "Run one cell of a matrix; started by matrix",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cell.Start(native.Source())
			if err != nil {
				return usagef("%w", err)
			}
			defer c.Close()
			err = workload.Run(cmd.Context(), c, g.tensorflow)
			if errors.Is(err, workload.ErrAgain) {
				return nil
			}
			return c.Done(err, workload.FailureOf(err))
		},
	}
}
