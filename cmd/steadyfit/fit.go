package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"steadyfit/cluster"
	"steadyfit/fit"
	"steadyfit/fit/checkpoint"
	"steadyfit/fit/observe"
	"steadyfit/internal/autotune"
	"steadyfit/internal/contract"
	"steadyfit/internal/english"
	"steadyfit/supervise"
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

func (s *settings) fit(cmd *cobra.Command) error {
	stderr := cmd.ErrOrStderr()
	s.Progress, s.Loop.Log = stderr, newLog(stderr)
	s.Report = func(subject string, value any) { notice(stderr, subject, value) }
	if err := s.combine(); err != nil {
		return err
	}
	if s.verbose {
		if err := s.setLogLevel(); err != nil {
			return err
		}
	}
	s.Supervisor.Stderr = stderr
	s.Supervisor.Outcome = func(err error) (int, string) {
		err = s.explainNoGPU(cmd.Context(), err)
		return exitCode(err), message(err)
	}
	r, err := train.Run(cmd.Context(), s.Config)
	switch {
	case err != nil && s.follows(): // rank 0 has the checkpoints
		return s.explainNoGPU(cmd.Context(), err)
	case err != nil:
		return withCheckpoint(s.explainNoGPU(cmd.Context(), err), s.Checkpoints.Folder)
	case s.follows():
		return nil
	}
	return s.printResult(cmd.OutOrStdout(), r)
}

func notice(w io.Writer, subject string, value any) {
	if err, ok := value.(error); ok {
		value = message(err)
	}
	if subject == "warning" {
		subject = "steadyfit: warning"
	}
	fmt.Fprintf(w, "%s: %v\n", subject, value)
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
	if err := cmp.Or(s.checkGrowth(), s.checkCheckpoints(), s.combineCluster()); err != nil {
		return err
	}
	s.Autotune.Fixed = s.fixed()
	switch given := s.given("resolved-settings"); {
	case given && s.traced:
		s.Trace = train.Always
	case given:
		s.Trace = train.Never
	case s.verbose:
		s.Trace = train.UnlessLimited
	}
	if err := s.combineReset(); err != nil {
		return err
	}
	supervised := s.Supervise == train.Always
	if supervised || s.given("deadline") {
		s.Supervisor.Deadline = s.deadline
	}
	if supervised || s.given("restarts") {
		s.Supervisor.Restarts = s.restarts
		if s.restarts == 0 {
			s.Supervisor.Restarts = -1 // 0 would mean the default
		}
	}
	s.Supervisor.Grace = max(s.deadline, time.Minute)
	if s.Checkpoints.Keep = s.keep; s.keep == 0 {
		s.Checkpoints.Keep = -1 // 0 would mean the default
	}
	return s.combineHooks()
}

// combineCluster makes this process a rank if flags or the environment of a scheduler say so.
func (s *settings) combineCluster() (err error) {
	switch {
	case s.workersFile == "" && s.given("rank"):
		return usagef("--rank needs --workers-file, the addresses of all ranks")
	case s.workersFile == "":
		s.Cluster, err = cluster.FromEnvironment(os.LookupEnv)
	case !s.given("rank"):
		return usagef("--workers-file needs --rank, the line of this process")
	default:
		s.Cluster, err = cluster.ReadHosts(s.workersFile, s.cluster.Rank)
	}
	if s.Cluster == nil {
		return err
	}
	s.Cluster.Start, s.Cluster.Timeout = s.cluster.Start, s.cluster.Timeout
	s.Cluster.MinWorkers, s.Cluster.Wait = s.cluster.MinWorkers, s.cluster.Wait
	if !s.given("auto") {
		s.Autotune.Mode = "" // ranks cannot measure configurations
	}
	return nil
}

// follows reports whether another rank writes the files and the result of the training.
func (s *settings) follows() bool { return s.Cluster != nil && s.Cluster.Rank > 0 }

func (s *settings) checkCheckpoints() error {
	if s.Checkpoints.Folder != "" {
		return nil
	}
	for _, name := range []string{"every", "keep"} {
		if s.given(name) {
			return usagef("--%s needs --checkpoints, the folder for checkpoints", name)
		}
	}
	if s.given("on-write-error") && s.history == "" && !s.restoreBest {
		return usagef("--on-write-error needs --checkpoints or --history, the files to write")
	}
	return nil
}

// fixed returns the options that autotune does not change because flags set them.
func (s *settings) fixed() autotune.Fixed {
	return autotune.Fixed{
		StepsPerExecution: s.given("steps-per-execution"), Compiled: s.given("jit-compile"), Precision: s.given("precision"),
		Threads: s.given("intra-threads") || s.given("inter-threads"),
		// An explicit --auto may replace the variable.
		OneDNN: !s.given("auto") && os.Getenv("TF_ENABLE_ONEDNN_OPTS") != "",
	}
}

func (s *settings) combineReset() error {
	p := &s.reset
	switch none := p.Depth == contract.ResetNone; {
	case none && s.given("reset-every"):
		return usagef("--reset-every needs --reset, which says how to reset")
	case none && p.Limit != 0:
		return usagef("--reset-near needs --reset, which says how to reset")
	case p.Within != 0 && p.Limit == 0:
		return usagef("--reset-within needs --reset-near, the limit that it looks ahead to")
	case none:
		return nil
	}
	if p.EverySteps == 0 && p.EveryEpochs == 0 && p.Limit == 0 {
		p.EveryEpochs = 1
	}
	p.Layer = s.Budget.Layer
	s.Reset = p
	return nil
}

func (s *settings) combineHooks() error {
	if s.history != "" {
		if err := s.checkOutput("history", s.history); err != nil {
			return err
		}
		s.Loop.Hook(fit.HistoryFile(s.history, s.ContinueOnWriteError))
	}
	if k := observe.KubeflowFromEnvironment(os.LookupEnv); k != nil {
		s.Observers = append(s.Observers, k)
	}
	switch {
	case s.earlyStop != "":
		stop, err := parseEarlyStop(s.earlyStop)
		if err != nil {
			return err
		}
		stop.RestoreBest, stop.Folder, stop.ContinueOnError = s.restoreBest, s.Checkpoints.Folder, s.ContinueOnWriteError
		s.Loop.Hook(stop.Hook())
	case s.restoreBest:
		return usagef("--restore-best needs --early-stop, whose metric says what is best")
	}
	if s.reduceRate == "" {
		return nil
	}
	if s.Loop.LearningRate == nil {
		return usagef("--reduce-lr needs --learning-rate, the rate to begin with")
	}
	reduce, err := parseReduceRate(s.reduceRate)
	s.Loop.Hook(reduce)
	return err
}

var (
	earlyStopForm  = regexp.MustCompile(`^([^:]+):(\d+)(:min|:max)?(?::([^:]+))?$`)
	reduceRateForm = regexp.MustCompile(`^([^:]+):([^:]+):(\d+)$`)
)

func parseEarlyStop(text string) (fit.EarlyStop, error) {
	if m := earlyStopForm.FindStringSubmatch(text); m != nil {
		patience, patienceErr := strconv.Atoi(m[2])
		delta, deltaErr := strconv.ParseFloat(cmp.Or(m[4], "0"), 64)
		if patienceErr == nil && deltaErr == nil && delta >= 0 && !math.IsInf(delta, 1) {
			return fit.EarlyStop{Metric: m[1], Mode: strings.TrimPrefix(m[3], ":"), Patience: patience, MinDelta: delta}, nil
		}
	}
	return fit.EarlyStop{}, usagef("--early-stop %s: expected METRIC:PATIENCE[:min|max][:MINDELTA], as in val_loss:3 or val_auc:3:max:0.001", text)
}

func parseReduceRate(text string) (fit.Hook, error) {
	if m := reduceRateForm.FindStringSubmatch(text); m != nil {
		factor, factorErr := strconv.ParseFloat(m[2], 64)
		patience, patienceErr := strconv.Atoi(m[3])
		if factorErr == nil && patienceErr == nil && factor > 0 && factor < 1 {
			return fit.ReduceOnPlateau{Metric: m[1], Factor: factor, Patience: max(patience, 1)}.Hook(), nil // 0 means 1
		}
	}
	return fit.Hook{}, usagef("--reduce-lr %s: expected METRIC:FACTOR:PATIENCE with a factor between 0 and 1, as in val_loss:0.1:10", text)
}

// withCheckpoint adds the newest checkpoint to the error of a training that crashed too often.
func withCheckpoint(err error, checkpoints string) error {
	var child *supervise.Error
	if !errors.As(err, &child) || len(child.Crashes) == 0 {
		return err
	}
	found, _ := checkpoint.List(checkpoints) // an unreadable folder has no checkpoint to name
	for _, c := range found {
		if c.Err == nil {
			return fmt.Errorf("%w\nthe newest checkpoint is %s, continue with --resume", err, c.Path)
		}
	}
	return fmt.Errorf("%w\nthere is no checkpoint in %s to continue from", err, checkpoints)
}

// result is the output of fit --json.
type result struct {
	Out         string      `json:"out,omitempty"`
	OutAdapter  string      `json:"out_adapter,omitempty"`
	Checkpoint  string      `json:"checkpoint,omitempty"`
	ResumedFrom string      `json:"resumed_from,omitempty"`
	Stopped     string      `json:"stopped,omitempty"`
	Epochs      int         `json:"epochs"`
	Last        *fit.Record `json:"last,omitempty"`
}

func (s *settings) printResult(w io.Writer, trained train.Result) error {
	h := trained.History
	r := result{Out: trained.Out, OutAdapter: trained.OutAdapter, Checkpoint: h.Checkpoint, ResumedFrom: h.ResumedFrom, Stopped: h.Stopped, Epochs: len(h.Records)}
	if len(h.Records) > 0 {
		last := h.Last()
		r.Last = &last
	}
	if s.json {
		return printJSON(w, r)
	}
	var text strings.Builder
	if r.Last != nil {
		fmt.Fprintf(&text, "trained %s, %s:", english.Count(r.Last.Epoch, "epoch"), english.Count(r.Last.Step, "step"))
		for _, m := range r.Last.Metrics {
			fmt.Fprintf(&text, "  %v", m)
		}
		text.WriteByte('\n')
	}
	if r.Out != "" {
		fmt.Fprintf(&text, "trained model: %s\n", r.Out)
	}
	if r.OutAdapter != "" {
		fmt.Fprintf(&text, "trained adapter: %s\n", r.OutAdapter)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
