package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"steadyfit/internal/watch"
)

// watching has the flags of watch.
type watching struct {
	within, every time.Duration
	untilSure     bool
	nativeStacks  bool
	pid           int
	name, group   string
	mark          *regexp.Regexp
	failOn        []watch.Rule
	baseline      string
	earlier       *watch.Report // the content of baseline
	remedies      string
	pairs         int
	out           string
}

const exitNotFound = 127

func newWatch(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch [flags] -- COMMAND...",
		Short: "Find out whether the memory of any program grows, why, and what to change",
		Long: `Run any program, and find out whether its memory grows, since which step, what makes it
grow, and what to change in the program. The program is not changed. Python programs
with TensorFlow, Keras or PyTorch are watched by their steps, and other programs by
time, or by lines of their output with --mark. Go programs call memory.Mark.

The output, the signals and the exit code of the program pass through; the answer is
on standard error, and with --json it is the last thing on standard output.

With --remedies, the program runs again without and with changes from outside, such as
another allocator or gc.collect() after each epoch, and the answer says which help.

With --pid, --name or --cgroup, watch observes processes that run already, by time.`,
		Example: `  steadyfit watch -- python train.py
  steadyfit watch --within 10m --out out/watch -- python train.py
  steadyfit watch --remedies auto -- python train.py
  steadyfit watch --fail-on leak -- python -m pytest tests/test_training.py
  steadyfit watch --pid 4711 --within 2m`,
		RunE: s.watch,
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func (s *settings) watch(cmd *cobra.Command, args []string) error {
	w := &s.watching
	attached := w.pid != 0 || w.name != "" || w.group != ""
	if err := w.check(attached, len(args) > 0); err != nil {
		return err
	}
	stderr := cmd.ErrOrStderr()
	o := watch.Options{Command: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Mark: w.mark,
		Within: w.within, UntilSure: w.untilSure, Every: w.every, NativeStacks: w.nativeStacks}
	end := w.show(&o, stderr, attached)
	if w.out != "" {
		if err := checkFolder(w.out, w.out); err != nil {
			return err
		}
		samples, err := os.Create(filepath.Join(w.out, "samples.jsonl"))
		if err != nil {
			return unusable(fmt.Errorf("--out: %w", err))
		}
		defer samples.Close()
		o.Samples = samples
	}
	var r *watch.Report
	var err error
	if attached {
		r, err = w.attach(cmd, o)
	} else {
		r, err = watch.Run(context.WithoutCancel(cmd.Context()), o) // Run passes signals to the program
	}
	end()
	if errors.Is(err, watch.ErrNotFound) && !attached {
		return &coded{exitNotFound, err}
	}
	if r == nil {
		return unusable(err)
	}
	if err != nil {
		notice(stderr, "warning", err)
	}
	if err := r.WriteText(stderr); err != nil {
		return err
	}
	if w.remedies != "" && cmd.Context().Err() == nil {
		if err := w.try(cmd, r, o); err != nil {
			return err
		}
	}
	return s.answer(cmd.OutOrStdout(), stderr, r)
}

// liveEvery is the time between two updates of what a terminal shows while a program runs.
const liveEvery = 2 * time.Second

// show sets what is printed while a program runs. The function that it returns ends it.
func (w *watching) show(o *watch.Options, stderr io.Writer, attached bool) (end func()) {
	if w.every == 0 && terminal(stderr) >= 0 && os.Getenv("TERM") != "dumb" {
		o.Every = liveEvery
		o.Report, end = live(stderr, attached)
		return end
	}
	o.Report = func(r *watch.Report) {
		if err := r.WriteText(stderr); err != nil {
			return // nobody reads it
		}
	}
	return func() {}
}

// live returns a function that shows the verdict so far on a terminal, and one that ends it. A program that runs prints
// to the same terminal, so the title of the terminal has the verdict. A process that is attached does not.
func live(w io.Writer, attached bool) (show func(*watch.Report), end func()) {
	begin, format, clear := "\x1b[22;0t", "\x1b]0;%s\a", "\x1b[23;0t" // keeps the title, and brings it back
	if attached {
		begin, format, clear = "", "\r\x1b[K%s", "\r\x1b[K"
	}
	fmt.Fprint(w, begin)
	return func(r *watch.Report) {
		fmt.Fprintf(w, format, fmt.Sprintf("%v  %s", r.Layers[0].End, r.Headline()))
	}, func() { fmt.Fprint(w, clear) }
}

// check checks the flags, and reads the baseline.
func (w *watching) check(attached, command bool) (err error) {
	if attached == command {
		return usagef("watch needs a command after --, or one of --pid, --name and --cgroup")
	}
	if attached && w.remedies != "" {
		return usagef("--remedies needs a command after --, since the program runs several times")
	}
	if attached && w.nativeStacks {
		return usagef("--native-stacks needs a command after --, since jemalloc is loaded when a program starts")
	}
	if w.baseline != "" {
		if w.earlier, err = watch.ReadReport(w.baseline); err != nil {
			return unusable(fmt.Errorf("--baseline: %w", err))
		}
	}
	return nil
}

// try tries remedies, and prints what they did.
func (w *watching) try(cmd *cobra.Command, r *watch.Report, o watch.Options) error {
	stderr := cmd.ErrOrStderr()
	err := r.Try(cmd.Context(), o, w.remedies, w.pairs, func(text string) { notice(stderr, "remedies", text) })
	if err != nil {
		notice(stderr, "warning", err)
	}
	return r.WriteRemedies(stderr)
}

func (w *watching) attach(cmd *cobra.Command, o watch.Options) (r *watch.Report, err error) {
	pids := []int{w.pid}
	switch {
	case w.name != "":
		pids, err = watch.ByName(w.name)
	case w.group != "":
		pids, err = watch.InGroup(w.group)
	}
	if err != nil {
		return nil, err
	}
	return watch.Attach(cmd.Context(), pids, o)
}

// answer writes the page and the JSON of a report, and returns the exit code of the program or of a rule.
func (s *settings) answer(stdout, stderr io.Writer, r *watch.Report) error {
	w := &s.watching
	var worse error
	if w.earlier != nil {
		if r.Baseline, worse = r.Compare(w.earlier); worse != nil && !errors.Is(worse, watch.ErrWorse) {
			return unusable(fmt.Errorf("--baseline %s: %w", w.baseline, worse))
		}
		notice(stderr, "baseline", r.Baseline)
	}
	if w.out != "" {
		if err := writePage(stderr, filepath.Join(w.out, "watch.html"), r.HTML); err != nil {
			return err
		}
	}
	if s.json {
		if err := printJSON(stdout, r); err != nil {
			return err
		}
	}
	for _, rule := range w.failOn {
		if err := rule.Check(r); err != nil {
			return &coded{exitCheck, fmt.Errorf("--fail-on: %w", err)}
		}
	}
	if w.failOn != nil && r.Verdict == watch.Undecided {
		notice(stderr, "warning", "--fail-on: the verdict is not decided, so no leak was found nor excluded")
	}
	if worse != nil {
		return &coded{exitCheck, fmt.Errorf("--baseline %s: %w", w.baseline, worse)}
	}
	if r.Exit > 0 && r.Ended == "" {
		return &coded{r.Exit, nil}
	}
	return nil
}
