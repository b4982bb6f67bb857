package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"steadyfit/cluster"
	"steadyfit/fit"
	"steadyfit/internal/contract"
	"steadyfit/internal/files"
	"steadyfit/internal/texts"
	"steadyfit/train"
)

func newFit(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "fit", SuggestFor: []string{"train"},
		Short: "Train a SavedModel",
		Long: `Train a SavedModel on a dataset and write the trained SavedModel.

When interrupted (Ctrl-C), fit completes the step, writes a checkpoint if
--checkpoints is given, and exits with 130. With --resume it continues, with the
same numbers as a run without the interruption.`,
		Example: `  steadyfit fit --model builtin:digits --data builtin:digits --validation builtin:digits --epochs 20 --out out/digits
  steadyfit fit --model my/model --data train.npz --validation 0.1 --epochs 10 --checkpoints ckpt --resume --out my/trained`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.fit(cmd) },
	}
}

// fitSpec is what a child process of fit gets (train.Config.Child).
type fitSpec struct {
	// Args are the arguments of the command, from "fit" on; global flags may precede it.
	Args []string `json:"args"`
	// Cluster makes the child a rank of launch.
	Cluster *cluster.Cluster `json:"cluster,omitempty"`
}

// configure returns the settings of fit for these arguments, without training.
func (f fitSpec) configure(stdout, stderr io.Writer) (*settings, error) {
	s := newSettings()
	s.fitSpec, s.configuring = f, true
	root := newRoot(s, stdout, stderr)
	root.SetArgs(f.Args)
	return s, root.ExecuteContext(context.Background())
}

// configureChild returns the Config of a child process.
func configureChild(spec []byte) (train.Config, error) {
	var f fitSpec
	if err := json.Unmarshal(spec, &f); err != nil {
		return train.Config{}, err
	}
	s, err := f.configure(os.Stdout, os.Stderr)
	s.Outcome = outcome
	return s.Config, err
}

func (s *settings) fit(cmd *cobra.Command) error {
	stderr := cmd.ErrOrStderr()
	s.Progress, s.Loop.Log = stderr, newLog(stderr)
	s.Report = func(subject string, value any) { notice(stderr, subject, value) }
	if err := s.combine(); err != nil {
		return err
	}
	s.Supervisor.Stderr = stderr
	s.Child, s.Outcome = s.fitSpec, outcome
	if s.configuring {
		return nil
	}
	r, err := train.Run(cmd.Context(), s.Config)
	if err != nil || s.follows() {
		return err
	}
	return s.printResult(cmd.OutOrStdout(), r)
}

// outcome returns the exit code and the text of an error in a child process.
func outcome(err error) (int, string) { return exitCode(err), message(err) }

func notice(w io.Writer, subject string, value any) {
	if err, ok := value.(error); ok {
		value = message(err)
	}
	if subject == "warning" {
		subject = "steadyfit: warning"
	}
	fmt.Fprintf(w, "%s: %s\n", subject, printable(fmt.Sprint(value)))
}

// newLog returns a log whose errors name flags instead of options.
func newLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(message(err))
		}
		return a
	}}))
}

// combine sets the fields of the Config that depend on several flags.
func (s *settings) combine() error {
	for _, name := range []string{"every", "keep"} {
		if s.Checkpoints.Folder == "" && s.given(name) {
			return usagef("--%s needs --checkpoints, the folder for checkpoints", name)
		}
	}
	if err := s.combineCluster(); err != nil {
		return err
	}
	if s.given("reset-every") && s.Reset.Depth == contract.ResetNone {
		return usagef("--reset-every needs --reset, which says how to reset")
	}
	if s.fitSpec.Cluster != nil { // launch supervises its ranks
		s.Supervise, s.Supervisor.Deadline = train.Always, cmp.Or(s.Supervisor.Deadline, defaultDeadline)
		s.Supervisor.KillOrphan, s.Supervisor.Grace = true, launchGrace
		if s.Checkpoints.Folder == "" && !s.given("supervise") {
			s.Supervisor.Restarts = -1 // a rank cannot resume
		}
	}
	if s.Checkpoints.Keep = s.keep; s.keep == 0 {
		s.Checkpoints.Keep = -1 // 0 would mean the default
	}
	return s.combineHooks()
}

// combineCluster makes this process a rank if launch or the environment of a scheduler says so.
func (s *settings) combineCluster() (err error) {
	if launched := s.fitSpec.Cluster; launched != nil {
		s.Cluster = new(*launched)
	} else {
		s.Cluster, err = cluster.FromEnvironment(os.LookupEnv)
	}
	if s.Cluster == nil {
		return err
	}
	s.Cluster.Start = s.cluster.Start
	if !s.given("auto") {
		s.Autotune = "" // ranks cannot measure configurations
	}
	return nil
}

// follows reports whether another rank writes the files and the result of the training.
func (s *settings) follows() bool { return s.Cluster != nil && s.Cluster.Rank > 0 }

func (s *settings) combineHooks() error {
	if s.history != "" {
		if err := s.checkOutput("history", s.history); err != nil {
			return err
		}
		if files.Within(s.history, s.Out) {
			return usagef("--history %s: this is inside of --out, which is replaced as a whole; give another path", s.history)
		}
		s.Loop.Hook(fit.HistoryFile(s.history))
	}
	if s.earlyStop.Metric != "" {
		s.Loop.Hook(s.earlyStop.Hook())
		c := &s.Checkpoints
		if c.RestoreBest {
			c.Best = cmp.Or(c.Best, s.earlyStop.Metric)
		}
		if cmp.Or(c.Best, "val_loss") == s.earlyStop.Metric {
			c.BestMode, c.MinDelta = s.earlyStop.Mode, s.earlyStop.MinDelta
		}
	}
	if s.reduceRate.Metric == "" {
		return nil
	}
	if s.Loop.LearningRate == nil {
		return usagef("--reduce-lr needs --learning-rate, the rate to begin with")
	}
	s.Loop.Hook(s.reduceRate.Hook())
	return nil
}

// result is the output of fit --json.
type result struct {
	Out         string      `json:"out,omitempty"`
	OutAdapter  string      `json:"out_adapter,omitempty"`
	Checkpoint  string      `json:"checkpoint,omitempty"`
	ResumedFrom string      `json:"resumed_from,omitempty"`
	Stopped     string      `json:"stopped,omitempty"`
	Epochs      int         `json:"epochs"`
	Restored    int         `json:"restored_epoch,omitempty"`
	Final       *fit.Record `json:"last,omitempty"`
}

func (s *settings) printResult(w io.Writer, trained train.Result) error {
	h := trained.History
	r := result{Out: trained.Out, OutAdapter: trained.OutAdapter, Checkpoint: h.Checkpoint, ResumedFrom: h.ResumedFrom,
		Stopped: h.Stopped, Epochs: len(h.Records), Restored: h.Restored}
	if len(h.Records) > 0 {
		final := h.Final()
		r.Final = &final
	}
	if s.json {
		return printJSON(w, r)
	}
	var text strings.Builder
	if r.Final != nil {
		fmt.Fprintf(&text, "trained %s, %s", texts.Count(h.Last().Epoch, "epoch"), texts.Count(h.Last().Step, "step"))
		if r.Restored > 0 {
			fmt.Fprintf(&text, ", restored epoch %d", r.Restored)
		}
		text.WriteByte(':')
		for _, m := range r.Final.Metrics {
			fmt.Fprintf(&text, "  %v", m)
		}
		text.WriteByte('\n')
	}
	for _, made := range [][2]string{{"model", r.Out}, {"adapter", r.OutAdapter}} {
		if what, out := made[0], made[1]; out != "" {
			fmt.Fprintf(&text, "trained %s: %s\n", what, texts.Printable(out))
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
