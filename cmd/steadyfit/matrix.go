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
	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/report"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/lab/workload"
	"steadyfit/internal/native"
	"steadyfit/internal/tfenv"
	"steadyfit/internal/tflibrary"
	"steadyfit/matrix"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/train"
)

// quick has the runs of --quick: the most common remedies, on workloads that they are supposed
// to help.
var quick = struct{ workloads, remedies []string }{
	[]string{"W2", "W4", "S3"},
	[]string{
		"W2/close", "W2/gc-epoch", "W2/batch-half",
		"W4/close-all", "W4/gc-epoch", "W4/trim",
		"S3/trim", "S3/system-allocator", "S3/batch-half",
	},
}

// quickUser has the remedies of --quick with --model.
var quickUser = []string{"trim", "system-allocator", "batch-half", "micro-4", "reload", "onednn-off"}

// maxPairs and maxJobs limit --pairs and --jobs. No machine can run that many in a day or at
// once.
const maxPairs, maxJobs = 1000, 1024

// leastWithin is the minimum value of --within. It is enough for a few runs.
const leastWithin = 20 * time.Second

// quickPairs is the minimum number of pairs that gives useful intervals.
const quickPairs = 3

// A run of the workload user has about userSamples samples, userEpochs epochs, and at least
// userLeast steps. Fewer samples would decide nothing.
const (
	userSamples = 100
	userEpochs  = 10
	userLeast   = 40
)

// calibrationWorkloads are part of every matrix. The first does not leak; the second leaks a
// known amount.
var calibrationWorkloads = []string{"W0", "W1"}

func newMatrix(s *settings) *cobra.Command {
	var ids, remedies []string
	for _, w := range matrix.Workloads() {
		ids = append(ids, w.ID)
	}
	for _, r := range matrix.Remedies() {
		remedies = append(remedies, r.ID)
	}
	return &cobra.Command{
		Use:   "matrix",
		Short: "Apply remedies for growing memory to workloads, and measure the effect of each",
		Long: `Apply remedies for growing memory to workloads on the real TensorFlow, and measure
the effect of each: whether memory still grows, by how much, with which interval, in
which layer, and what the remedy costs. Every run is a separate process, one after
the other; do not use the machine for other work meanwhile.

With several versions in --tensorflow, as in 2.18.1,2.21.0, it does so with each, and
says in which version a verdict changes.

Two workloads are part of every matrix: W0 does not leak, and W1 leaks a known
amount. If the measurements disagree, matrix exits with 6.

Results go to the folder --out: report.html, matrix.json, matrix.txt (Go benchmark
format, for benchstat), claims.md, and runs.jsonl with every sample. After an
interruption, the same command resumes.

A remedy may be limited to one workload, as in W4/reuse, to one runtime, as in
keras:clear-session, or to both, as in keras:W4/reuse. W4/none excludes W4 from the
remedies that are named for all workloads.

Workloads: ` + strings.Join(ids, " ") + `
Remedies:  ` + wrapNames(remedies),
		Example: `  steadyfit matrix --quick
  steadyfit matrix --workloads W3,S3 --remedies jemalloc,trim,system-allocator
  steadyfit matrix --model out/my_model --data train.npz --remedies all
  steadyfit matrix --model out/my_model --fail-on 'slope>64KiB/epoch'`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.matrix(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

func wrapNames(names []string) string {
	var lines []string
	for line := range slices.Chunk(names, 7) {
		lines = append(lines, strings.Join(line, " "))
	}
	return strings.Join(lines, "\n           ")
}

func (s *settings) matrix(ctx context.Context, stdout, stderr io.Writer) error {
	if err := s.checkOutput("out", s.plan.Out); err != nil {
		return err
	}
	var baseline *matrix.Result
	if s.baseline != "" {
		if s.rule == nil {
			return usagef("--baseline needs --fail-on, the rule that compares with it")
		}
		var err error
		if baseline, err = matrix.ReadFile(s.baseline); err != nil {
			return usagef("--baseline: %w", err)
		}
	}
	if versions := strings.Split(s.TensorFlow, ","); len(versions) > 1 {
		return s.matrixOf(ctx, versions, stdout, stderr)
	}
	result, runErr := s.runPlan(ctx, stderr)
	if result == nil {
		return runErr
	}
	var err error
	if s.json {
		err = printJSON(stdout, result)
	} else {
		err = report.Text(stdout, result, textOptions(stdout))
	}
	if runErr != nil || err != nil {
		return errors.Join(runErr, err)
	}
	var broken []string
	if s.rule != nil {
		var undecided []string
		broken, undecided = s.rule.Check(result, baseline)
		for _, text := range undecided {
			fmt.Fprintf(stderr, "warning: --fail-on: %s\n", text)
		}
	}
	return verdict(result, broken)
}

// runPlan runs the plan and writes the reports. The result is nil if there is none.
func (s *settings) runPlan(ctx context.Context, stderr io.Writer) (*matrix.Result, error) {
	driver, _ := gpu.Open() // doctor reports the problems of the driver
	defer driver.Close()
	if err := s.completePlan(ctx, driver); err != nil {
		return nil, err
	}
	s.plan.Progress = progressPrinter(stderr)
	result, err := matrix.Run(ctx, s.plan)
	if result == nil {
		return nil, err
	}
	if failed := writeReports(s.plan.Out, result); failed != nil {
		return nil, errors.Join(err, failed)
	}
	fmt.Fprintf(stderr, "report: %s\n", filepath.Join(s.plan.Out, "report.html"))
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(stderr, "interrupted: the same command resumes after the %d completed runs\n", len(result.Runs))
	case err == nil && !result.Complete:
		fmt.Fprintf(stderr, "the time of --within is over after %d runs; repeat the command to measure the others\n", len(result.Runs))
	}
	return result, err
}

func verdict(result *matrix.Result, broken []string) error {
	var all []string
	for _, c := range result.Calibration {
		if !c.OK {
			all = append(all, fmt.Sprintf("calibration of %s %s: %s", c.Runtime, c.Workload, c.Text))
		}
	}
	if all = append(all, broken...); len(all) > 0 {
		return &coded{exitCheck, errors.New(strings.Join(all, "\n  "))}
	}
	return nil
}

// completePlan adds the choices of the flags, and the GPUs of the driver, to the plan.
func (s *settings) completePlan(ctx context.Context, driver *gpu.Driver) error {
	p := &s.plan
	p.User, p.Data, p.Version, p.Models, p.Commands = s.Model, s.Data.Path, version(), map[string]string{}, map[string]matrix.Command{}
	if p.Within != 0 && p.Within < leastWithin {
		return usagef("--within %v: expected at least %v", p.Within, leastWithin)
	}
	if p.Quick && p.Pairs == 0 {
		p.Pairs = quickPairs
	}
	if err := s.selectRuns(); err != nil {
		return err
	}
	if err := s.checkUser(); err != nil {
		return err
	}
	for _, w := range p.Workloads {
		if w.Model == "" || p.Models[w.Model] != "" {
			continue
		}
		m, err := savedmodels.Builtin(w.Model)
		if err != nil {
			return err
		}
		p.Models[w.Model] = m.Dir
	}
	for _, name := range p.Runtimes {
		command, err := s.runtimeCommand(name)
		if err != nil {
			return err
		}
		p.Commands[name] = command
	}
	for _, g := range driver.GPUs() {
		p.GPUs = append(p.GPUs, g.Name)
	}
	if driver.Why() == "" {
		p.GPU = driver.Source
	}
	if reasons := p.Inapplicable(); len(reasons) > 0 {
		return usagef("--remedies: none of them would change anything: %s; steadyfit matrix --help lists the remedies", strings.Join(reasons, "; "))
	}
	return nil
}

// selectRuns adds the workloads and remedies of the flags to the plan.
func (s *settings) selectRuns() error {
	p := &s.plan
	workloads, remedies, err := s.named()
	if err != nil {
		return err
	}
	if err := checkWorkloads(workloads); err != nil {
		return err
	}
	all := len(workloads) == 0 || slices.Contains(workloads, allOfThem)
	wanted := append(slices.Clone(calibrationWorkloads), workloads...)
	for _, w := range matrix.Workloads() {
		user := w.ID == matrix.User
		if user {
			w.Steps, w.Every, w.Epoch, w.Batch = s.steps, max(1, s.steps/userSamples), max(1, s.steps/userEpochs), s.Loop.Batch
		}
		if slices.Contains(wanted, w.ID) || all && (!user || s.Model != "") {
			p.Workloads = append(p.Workloads, w)
		}
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
		// Calibration workloads have no remedies unless the flags name them.
		return (all || slices.Contains(workloads, workload)) && chosen.selects(runtime, workload, remedy)
	}
	return checkRuntimes(p.Runtimes)
}

// named returns the workloads and remedies that the flags name, or that --quick stands for.
func (s *settings) named() (workloads, remedies []string, err error) {
	switch {
	case s.plan.Quick && (s.workloads != nil || s.remedies != nil):
		return nil, nil, usagef("--quick has its own workloads and remedies: leave --workloads and --remedies out")
	case s.plan.Quick && s.Model != "":
		return []string{matrix.User}, quickUser, nil
	case s.plan.Quick:
		return quick.workloads, quick.remedies, nil
	case s.workloads == nil && s.Model != "":
		return []string{matrix.User}, s.remedies, nil
	}
	return s.workloads, s.remedies, nil
}

func checkWorkloads(ids []string) error {
	for _, id := range ids {
		if _, err := matrix.FindWorkload(id); err != nil && id != allOfThem {
			return usagef("--workloads: %w", err)
		}
	}
	return nil
}

func checkRuntimes(names []string) error {
	known := matrix.Runtimes()
	for _, name := range names {
		if !slices.Contains(known, name) {
			return usagef("--runtime %s: expected %s", name, strings.Join(known, ", "))
		}
	}
	if len(names) == 0 {
		return usagef("--runtime: expected at least one of %s", strings.Join(known, ", "))
	}
	return nil
}

func (s *settings) checkUser() error {
	p := &s.plan
	if !slices.ContainsFunc(p.Workloads, func(w matrix.Workload) bool { return w.ID == matrix.User }) {
		for _, name := range []string{"model", "data", "steps", "batch"} {
			if s.given(name) {
				return usagef("--%s is for the workload %s, which is not among --workloads; add it, or leave --%s out", name, matrix.User, name)
			}
		}
		return nil
	}
	switch {
	case s.Model == "":
		return usagef("the workload %s needs --model", matrix.User)
	case !slices.Contains(p.Runtimes, matrix.Go):
		return usagef("--model is trained on the runtime %s, which is not among --runtime", matrix.Go)
	}
	m, err := train.OpenModel(s.Model, "")
	if err != nil {
		return err
	}
	if _, err := m.CheckTrainable(savedmodels.CheckOptions{}); err != nil {
		return err
	}
	p.User = m.Dir
	if p.Data == "" {
		return nil
	}
	ds, err := train.OpenData(m, m.Roles.Train, train.Data{Path: p.Data, OnDisk: train.Never}, "train", data.Pass{Batch: s.Loop.Batch, DropRemainder: true})
	if err == nil {
		return ds.Close()
	}
	var unused *session.UnusedFieldError
	if errors.As(err, &unused) { // child processes cannot omit fields
		return usagef("--data: no input of signature %s takes the field %s; give data without it", unused.Signature, unused.Field)
	}
	return err
}

func (s *settings) runtimeCommand(name string) (c matrix.Command, err error) {
	location, err := tflibrary.Locate(s.TensorFlow)
	if err != nil {
		return c, err
	}
	c = matrix.Command{Env: []string{tflibrary.EnvLibrary + "=" + location.Library}, Libraries: []string{location.Library, location.Framework}}
	if _, set := os.LookupEnv(tfenv.LogLevel); !set && !s.verbose {
		c.Env = append(c.Env, tfenv.LogLevel+"="+tfenv.LogWarnings)
	}
	var sources []string
	switch name {
	case matrix.Go:
		program, err := os.Executable()
		if err != nil {
			return c, err
		}
		c.Args, sources = []string{program, runCommand}, []string{program}
	case matrix.Galeone:
		program, err := project(filepath.Join("out", "bench", "galeone"), "make bench-build")
		if err != nil {
			return c, err
		}
		// The program is linked with the libraries of the checkout.
		runtime := filepath.Join(filepath.Dir(program), "..", "..", ".runtime", "tensorflow")
		c.Libraries = []string{filepath.Join(runtime, "libtensorflow_cc.so.2"), filepath.Join(runtime, "libtensorflow_framework.so.2")}
		c.Args, sources = []string{program}, []string{program}
	case matrix.Keras:
		if sources, err = s.kerasCommand(&c); err != nil {
			return c, err
		}
	}
	sum := sha256.New()
	for _, path := range sources {
		if text, err := os.ReadFile(path); err == nil {
			sum.Write(text)
		}
	}
	c.Identity = hex.EncodeToString(sum.Sum(nil)[:12])
	return c, nil
}

// kerasCommand completes the command of the runtime keras. It returns the files that affect the
// results: Python, and the scripts.
func (s *settings) kerasCommand(c *matrix.Command) (sources []string, err error) {
	script, err := project(filepath.Join("scripts", "matrix_keras.py"), "a checkout of steadyfit")
	if err != nil {
		return nil, err
	}
	var python string
	if s.python == "" {
		python, err = project(filepath.Join(".runtime", "venv", "bin", "python"), "make venv")
	} else {
		python, err = filepath.Abs(s.python)
	}
	if err != nil {
		return nil, err
	}
	c.Args = []string{python, script}
	// The Python environment has its own TensorFlow.
	if c.Libraries, err = filepath.Glob(filepath.Join(filepath.Dir(python), "..", "lib", "python3*", "site-packages", "tensorflow", "libtensorflow_*.so.2")); err != nil {
		return nil, err
	}
	scripts, err := filepath.Glob(filepath.Join(filepath.Dir(script), "*.py"))
	return append([]string{python}, scripts...), err
}

// project returns the path of a file of the checkout. It searches the parents of the working
// folder and of the program.
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
	return "", &coded{exitEnvironment, fmt.Errorf("%s was not found above %s; %s provides it", name, strings.Join(starts, " or "), source)}
}

// progressPrinter returns a function that updates one line of a terminal. Other writers get a line when
// a workload begins, at the end, and otherwise at most every minute.
func progressPrinter(w io.Writer) func(matrix.Progress) {
	file, ok := w.(*os.File)
	terminal := ok && term.IsTerminal(int(file.Fd()))
	var last string
	var printed time.Time
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
		case where != last || p.Done == p.Total || time.Since(printed) > time.Minute:
			printed = time.Now()
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

// resultFile is the file in a results folder with the matrix.Result.
const resultFile = "matrix.json"

func writeReports(dir string, r *matrix.Result) error {
	if err := matrix.WriteFile(filepath.Join(dir, resultFile), r); err != nil {
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

// runCommand is the hidden command for child processes of the runtime go.
const runCommand = "matrix-run"

func newMatrixRun(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:    runCommand,
		Short:  "Do one run of a matrix; started by matrix",
		Hidden: true,
		Args:   noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := worker.Start(native.Source())
			if err != nil {
				return usagef("%w", err)
			}
			defer c.Close()
			err = workload.Run(cmd.Context(), c, s.TensorFlow)
			if errors.Is(err, loop.ErrSaved) {
				return nil
			}
			return c.Done(err, workload.FailureOf(err))
		},
	}
}
