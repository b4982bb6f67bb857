package main

import (
	"cmp"
	"context"
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
	"steadyfit/internal/gpu"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/programs"
	"steadyfit/internal/lab/report"
	"steadyfit/internal/texts"
	"steadyfit/internal/version"
	"steadyfit/savedmodels"
	"steadyfit/train"
)

func newMatrix(s *settings) *cobra.Command {
	var workloads, remedies []string
	for _, w := range matrix.Workloads() {
		workloads = append(workloads, fmt.Sprintf("  %-8s %s", w.ID, w.Title))
	}
	for _, r := range matrix.Remedies() {
		remedies = append(remedies, r.ID)
	}
	return &cobra.Command{
		Use:   "matrix [-- ARGUMENT...]",
		Short: "Apply remedies for growing memory to workloads, and measure the effect of each",
		Long: `Apply remedies for growing memory to workloads on the real TensorFlow, and measure
the effect of each: whether memory still grows, by how much, with which interval, in
which layer, and what the remedy costs. Every run is a separate process, one after
the other; do not use the machine for other work meanwhile.

Two workloads are part of every matrix: W0 does not leak, and W1 leaks a known
amount. If the measurements disagree, matrix exits with 6.

Results go to the folder --out: report.html, matrix.json, matrix.txt (Go benchmark
format, for benchstat), claims.md, and runs.jsonl with every sample. After an
interruption, the same command resumes.

A remedy may be limited to one workload, as in W4/reuse, to one runtime, as in
keras:clear-session, or to both, as in keras:W4/reuse. W4/none excludes W4 from the
remedies that are named for all workloads.

Workloads:
` + strings.Join(workloads, "\n") + "\n\n" + texts.Wrap("Remedies:  ", 11, strings.Join(remedies, " "), 85),
		Example: `  steadyfit matrix --quick
  steadyfit matrix --workloads W3,S3 --remedies jemalloc,trim,system-allocator
  steadyfit matrix --model out/my_model --data train.npz --remedies all
  steadyfit matrix --program my_train.py --remedies jemalloc,clear-session -- --epochs 3
  steadyfit matrix --model out/my_model --fail-on 'slope>64KiB/epoch'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := s.ownProgram(args); err != nil {
				return err
			}
			return s.matrix(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// ownProgram sets the command of --program, with its arguments.
func (s *settings) ownProgram(arguments []string) error {
	switch {
	case s.program == "" && len(arguments) > 0:
		return usagef("unexpected argument %q: arguments are those of --program", arguments[0])
	case s.program == "":
		return nil
	case s.Model != "" || s.workloads != nil || s.plan.Quick:
		return usagef("--program is measured alone: leave --model, --workloads and --quick out")
	}
	if _, err := os.Stat(s.program); err != nil {
		return usagef("--program: %w", err)
	}
	path, err := filepath.Abs(s.program)
	if err != nil {
		return err
	}
	s.plan.Program = append([]string{path}, arguments...)
	if filepath.Ext(path) == ".py" {
		s.plan.Program = append([]string{cmp.Or(s.python, "python3")}, s.plan.Program...)
	}
	s.plan.Runtimes = []string{matrix.Program, matrix.Go} // the calibration is measured on go
	return nil
}

func (s *settings) matrix(ctx context.Context, stdout, stderr io.Writer) error {
	if err := s.checkOutput("out", s.plan.Out); err != nil {
		return err
	}
	var baseline *matrix.Result
	if s.baseline != "" {
		if s.rules == nil {
			return usagef("--baseline needs --fail-on, the rule that compares with it")
		}
		var err error
		if baseline, err = matrix.ReadFile(s.baseline); err != nil {
			return usagef("--baseline: %w", err)
		}
	}
	result, runErr := s.runPlan(ctx, stderr)
	if result == nil {
		return runErr
	}
	var err error
	if s.json {
		err = printJSON(stdout, result)
	} else {
		err = report.Text(stdout, result, columns(stdout))
	}
	if runErr != nil || err != nil {
		return errors.Join(runErr, err)
	}
	var broken []string
	for _, rule := range s.rules {
		breaks, undecided := rule.Check(result, baseline)
		broken = append(broken, breaks...)
		for _, text := range undecided {
			fmt.Fprintf(stderr, "warning: --fail-on: %s\n", text)
		}
	}
	return verdict(result, broken)
}

// runPlan runs the plan and writes the reports. The result is nil if there is none.
func (s *settings) runPlan(ctx context.Context, stderr io.Writer) (*matrix.Result, error) {
	if err := s.completePlan(); err != nil {
		return nil, err
	}
	s.plan.Progress = progressPrinter(stderr)
	result, err := matrix.Run(ctx, s.plan)
	if result == nil {
		return nil, err
	}
	failed := matrix.WriteFile(filepath.Join(s.plan.Out, resultFile), result)
	if failed = cmp.Or(failed, report.Files(s.plan.Out, result)); failed != nil {
		return nil, errors.Join(err, failed)
	}
	fmt.Fprintf(stderr, "report: %s\n", filepath.Join(s.plan.Out, "report.html"))
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintf(stderr, "interrupted: the same command resumes after the %d completed runs\n", len(result.Runs))
	case err == nil && !result.Complete:
		fmt.Fprintf(stderr, "the time of --within is over after %d runs; repeat the command to measure the others\n",
			len(result.Runs))
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
func (s *settings) completePlan() error {
	p := &s.plan
	p.User, p.Data, p.Version, p.Models, p.Commands = s.Model, s.Data.Path, version.String(), map[string]string{},
		map[string]matrix.Command{}
	if err := p.Choose(s.workloads, s.remedies, s.steps, s.Loop.Batch); err != nil {
		return usagef("%w", err)
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
	if len(p.Runtimes) == 0 {
		return usagef("--runtime: expected %s", texts.List(matrix.Runtimes(), "or"))
	}
	for _, name := range p.Runtimes {
		if name == matrix.Program && p.Program != nil {
			continue
		}
		if known := matrix.Runtimes(); !slices.Contains(known, name) {
			return usagef("--runtime %s: expected %s", name, texts.List(known, "or"))
		}
		command, err := matrix.RuntimeCommand(name, s.TensorFlow, s.python)
		if err != nil {
			return err
		}
		p.Commands[name] = command
	}
	if p.Program != nil {
		p.Commands[matrix.Program] = matrix.Command{Args: p.Program}
	}
	driver, _ := gpu.Open() // doctor reports the problems of the driver
	for _, g := range driver.GPUs() {
		p.GPUs = append(p.GPUs, g.Name)
	}
	if driver.Why() == "" {
		p.GPU = driver.Source
	}
	if reasons := p.Inapplicable(); len(reasons) > 0 {
		return usagef("--remedies: none of them would change anything: %s; steadyfit matrix --help lists the remedies",
			strings.Join(reasons, "; "))
	}
	return nil
}

func (s *settings) checkUser() error {
	p := &s.plan
	if !slices.ContainsFunc(p.Workloads, func(w matrix.Workload) bool { return w.ID == matrix.User }) {
		for _, name := range []string{"model", "data", "steps", "batch"} {
			if s.given(name) {
				return usagef("--%s is for the workload %q, which is not among --workloads; add it, or leave --%s out", name,
					matrix.User, name)
			}
		}
		return nil
	}
	switch {
	case s.Model == "":
		return usagef("the workload %q needs --model", matrix.User)
	case !slices.Contains(p.Runtimes, matrix.Go):
		return usagef("--model is trained on the runtime %s, which is not among --runtime", matrix.Go)
	}
	m, err := train.OpenModel(&s.Config)
	if err != nil {
		return err
	}
	if err := m.CheckTrainable(false); err != nil {
		return err
	}
	p.User = m.Dir
	if p.Data == "" {
		return nil
	}
	ds, err := train.OpenData(m, m.Roles.Train, train.Data{Path: p.Data}, "train",
		data.Pass{Batch: s.Loop.Batch, DropRemainder: true})
	if err == nil {
		err = ds.Close()
	}
	return err
}

// progressPrinter returns a function that updates one line of a terminal. Other writers get a line at most
// every minute, and one at the end.
func progressPrinter(w io.Writer) func(matrix.Progress) {
	updates := terminal(w) >= 0
	var printed time.Time
	return func(p matrix.Progress) {
		if p.Run.ID < 0 {
			fmt.Fprintf(w, "%d runs\n", p.Total)
			return
		}
		line := fmt.Sprintf("%d/%d  %s %s  %s", p.Done, p.Total, p.Run.Runtime, p.Run.Workload, p.Run.Remedy)
		if p.Left > 0 {
			line += ", " + p.Left.Round(time.Second).String() + " left"
		}
		switch {
		case updates && p.Done == p.Total:
			fmt.Fprint(w, "\r\x1b[K")
		case updates:
			fmt.Fprintf(w, "\r\x1b[K%s", line)
		case p.Done == p.Total || time.Since(printed) > time.Minute:
			printed = time.Now()
			fmt.Fprintln(w, line)
		}
	}
}

// terminal returns the file descriptor of a terminal; -1 for other writers.
func terminal(w io.Writer) int {
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return int(file.Fd())
	}
	return -1
}

// columns returns the width of a terminal; 100 for other writers.
func columns(w io.Writer) int {
	fd := terminal(w)
	if fd < 0 {
		return 100
	}
	width, _, _ := term.GetSize(fd) // 0 is unknown
	return width
}

// resultFile is the file in a results folder with the matrix.Result.
const resultFile = "matrix.json"

// newProgram returns the hidden command that runs a program of the runtime go.
func newProgram(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:    matrix.RunCommand + " NAME [--OPTION=VALUE...]",
		Short:  "Run a program of the laboratory; started by matrix",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		// The options are those of the program.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := programs.Run(cmd.Context(), args[0], args[1:], s.TensorFlow, cmd.OutOrStdout())
			if errors.Is(err, programs.ErrUnknown) {
				return usagef("%w", err)
			}
			return err
		},
	}
}
