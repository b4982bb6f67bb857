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
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"

	"steadyfit/data"
	"steadyfit/internal/autotune"
	"steadyfit/internal/english"
	"steadyfit/internal/files"
	"steadyfit/internal/tune"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/train"
)

func newTune(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "tune",
		Short: "Find the settings of fit with the least memory or the least time",
		Long: `Measure settings of fit for a model, its data and this machine, and write the
chosen ones to a file for fit --config: micro-batches, steps per execution, compiled
signatures, cached features of frozen layers, allocator, oneDNN, threads, prefetching,
and with --auto precision bfloat16. Each trial trains for some steps in a process of its own.

With --memory-budget, the fastest settings are chosen that stay under it; with
--step-time, those with the least memory at that speed; with neither, those with the
least product of time and memory. The table shows all settings for which no others
are both faster and smaller, and whether their results have the same bits as those of
plain steps. With --out, a page beside the file has the table and a chart of memory
and time. Measurements are kept, so the same command continues a search that was
interrupted.`,
		Example: `  steadyfit tune --model my/model --data train.npz --memory-budget 600MiB --out tuned.yaml
  steadyfit fit --config tuned.yaml --epochs 10 --out my/trained`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.tune(cmd) },
	}
}

func (s *settings) tune(cmd *cobra.Command) error {
	until := time.Now().Add(s.within)
	if err := s.checkTune(); err != nil {
		return err
	}
	if err := s.prepareProcess(cmd.ErrOrStderr()); err != nil {
		return err
	}
	m, err := train.OpenModel(s.Model, s.LossOutput)
	if err != nil {
		return err
	}
	plan, err := session.Compile(m, s.Session)
	if err == nil {
		err = plan.Check(s.Loop.Batch, false, s.Loop.LearningRate != nil)
	}
	if err != nil {
		return err
	}
	ds, err := train.OpenData(m, plan.Roles().Train, s.Data, "train", data.Pass{Batch: s.Loop.Batch, DropRemainder: true})
	if err != nil {
		return err
	}
	defer ds.Close()
	if ds.Len() < s.Loop.Batch {
		return usagef("%s has %d samples, less than one batch of %d", ds.Name(), ds.Len(), s.Loop.Batch)
	}
	if err := s.loadDevices(cmd); err != nil {
		return err
	}
	r, err := s.searchSettings(cmd, m, ds, until)
	if err != nil {
		return err
	}
	inexact := s.inexact(m)
	if err := s.printTuned(cmd.OutOrStdout(), r, inexact); err != nil {
		return err
	}
	if s.Out != "" {
		if err := s.writeTuned(cmd, r.Chosen, autotune.Freezes(m)); err != nil {
			return err
		}
		if err := s.writeFront(cmd.ErrOrStderr(), ds.Name(), r, inexact); err != nil {
			return err
		}
	}
	if r.Chosen == nil {
		return s.notReached(r, inexact)
	}
	return nil
}

func (s *settings) checkTune() error {
	switch {
	case s.stepTime > 0 && s.Budget.Limit > 0:
		return usagef("--memory-budget and --step-time exclude each other: one is kept, and the other amount is minimized")
	}
	if err := cmp.Or(s.checkLayer("tune"), s.checkCache(), s.checkOutputFile("tuned.yaml")); err != nil || s.Out == "" {
		return err
	}
	if err := files.WritableDir(filepath.Dir(s.Out), 0); err != nil {
		return unusable(fmt.Errorf("--out %s: the file cannot be written: %w", s.Out, err))
	}
	return nil
}

// checkLayer returns an error if a budget is not of the memory that a command measures.
func (s *settings) checkLayer(command string) error {
	if s.Budget.Layer == memory.RSS || s.Budget.Layer == memory.Anon {
		return nil
	}
	return usagef("%s: %s measures the memory of a process; expected rss or anon", flagName("Budget.Layer", string(s.Budget.Layer)), command)
}

// firstRate returns the learning rate of the first step; 0 if none is given.
func (s *settings) firstRate() float64 {
	if s.Loop.LearningRate == nil {
		return 0
	}
	return s.Loop.LearningRate(0, 0)
}

// searchSettings runs the trials, with a line on stderr for each.
func (s *settings) searchSettings(cmd *cobra.Command, m *savedmodels.Model, ds data.Dataset, until time.Time) (tune.Result, error) {
	steps := ds.Len() / s.Loop.Batch
	if s.Budget.Limit > 0 {
		steps = 1 // a budget measures memory after each step
	}
	fixed := s.fixed()
	fixed.OneDNN = os.Getenv("TF_ENABLE_ONEDNN_OPTS") != "" // fit refuses another value in the file
	plan := autotune.Plan{
		Model: m, Options: s.Session, Limits: fixed.Limits(s.Session, steps, s.Autotune.Mode == train.Precision),
		Data: ds, Batch: s.Loop.Batch, Cache: cmp.Or(s.Autotune.Cache, autotune.CacheDir()), Budget: s.Budget.Limit,
		LearningRate: s.firstRate(),
	}
	plan.Limits.Restart = true // fit sets these variables when it starts
	plan.Limits.Features, plan.Limits.FeatureRounding = s.CacheFeatures != "", s.CacheFeatures == train.On
	if file, err := readConfig(configPath(s.configFile)); err != nil {
		return tune.Result{}, err
	} else if file["augment"] != "" {
		plan.Limits.Features = false // fit caches no features of images that change
	}
	goal := s.goal()
	trials, saved, first := 0, true, true
	r, err := tune.Run(cmd.Context(), &plan, goal, until, func(e tune.Event) {
		if trials = e.Trials; first && trials > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "tune: continues after %s in %s\n", english.Count(trials, "earlier trial"), plan.Cache)
		}
		if first = false; e.Done == nil {
			return
		}
		if err := e.Done.Unsaved; err != nil && saved {
			notice(cmd.ErrOrStderr(), "warning", fmt.Sprintf("the trials are not kept for another call: %v; set --cache to a folder that can be written", err))
			saved = false
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "tune: %v: %s (%v left)\n", e.Configuration, option.Marked(trialText(*e.Done, goal.Anon), flagName), time.Until(until).Round(time.Second))
	})
	for i := range r.Failures {
		r.Failures[i].Reason = option.Marked(r.Failures[i].Reason, flagName)
	}
	if errors.Is(err, context.Canceled) && saved {
		err = fmt.Errorf("interrupted; the same command continues with the %s so far: %w", english.Count(trials, "trial"), err)
	}
	return r, err
}

func trialText(m autotune.Measurement, anon bool) string {
	if m.Out != "" {
		return m.Out
	}
	peak := m.StepPeak
	if anon {
		peak = m.StepAnon
	}
	return fmt.Sprintf("%v, %s", peak, english.Duration(time.Duration(m.Step*float64(time.Second))))
}

// inexact reports whether micro-batches change the update of a model.
func (s *settings) inexact(m *savedmodels.Model) bool {
	exact := s.Session
	exact.AllowInexactSplit = false
	plan, err := session.Compile(m, exact)
	return err == nil && errors.Is(plan.CheckSplit(), session.ErrInexactSplit)
}

// numbers describes how the results of a point relate to those of plain steps. inexact means that
// micro-batches change the update.
func numbers(p tune.Point, inexact bool) string {
	switch c := p.Configuration; {
	case inexact && c.MicroBatches > 1 && c.Precision != "":
		return "another update, 16 bits"
	case inexact && c.MicroBatches > 1:
		return "another update"
	case c.Precision != "":
		return "16 bits"
	case c.Rounds() || p.Features != nil && p.Features.Difference > 0:
		return "rounding"
	}
	return "same bits"
}

// tunedPoint is a point in the output of tune --json.
type tunedPoint struct {
	Settings      string                 `json:"settings"`
	Configuration autotune.Configuration `json:"configuration"`
	PeakBytes     memory.Bytes           `json:"peak_bytes"`
	PeakLowBytes  memory.Bytes           `json:"peak_low_bytes"`
	OpeningBytes  memory.Bytes           `json:"opening_bytes"`
	StepSeconds   float64                `json:"step_seconds"`
	StepLow       float64                `json:"step_seconds_low"`
	StepHigh      float64                `json:"step_seconds_high"`
	Trials        int                    `json:"trials"`
	Numbers       string                 `json:"numbers"`
	Features      *autotune.Features     `json:"features,omitempty"`
}

// newTunedPoint converts a point; nil stays nil.
func newTunedPoint(p *tune.Point, inexact bool) *tunedPoint {
	if p == nil {
		return nil
	}
	return &tunedPoint{
		p.Configuration.String(), p.Configuration, p.Peak, p.PeakLow, p.Opening, p.Step.Seconds(), p.StepLow.Seconds(), p.StepHigh.Seconds(), p.Trials, numbers(*p, inexact), p.Features,
	}
}

// tuned is the output of tune --json.
type tuned struct {
	Default        *tunedPoint       `json:"default"`
	Front          []*tunedPoint     `json:"front"`
	Chosen         *tunedPoint       `json:"chosen"`
	Failures       map[string]string `json:"failures,omitempty"`
	Measured       int               `json:"measured"`
	Configurations int               `json:"configurations"`
	Complete       bool              `json:"complete"`
}

func (s *settings) printTuned(w io.Writer, r tune.Result, inexact bool) error {
	if s.json {
		out := tuned{Default: newTunedPoint(r.Default, inexact), Chosen: newTunedPoint(r.Chosen, inexact), Failures: map[string]string{}, Measured: len(r.Points), Configurations: r.Configurations, Complete: r.Complete}
		for _, p := range r.Front {
			out.Front = append(out.Front, newTunedPoint(&p, inexact))
		}
		for _, f := range r.Failures {
			out.Failures[f.Configuration.String()] = f.Reason
		}
		return printJSON(w, out)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "peak\tstep\ttrials\tresults\tsettings")
	for _, p := range r.Rows() {
		note := ""
		if p.Configuration.Plain() {
			note = " (default)"
		}
		fmt.Fprintf(table, "%v\t%s (%s to %s)\t%d\t%s\t%v%s\n", p.Peak, english.Duration(p.Step), english.Duration(p.StepLow), english.Duration(p.StepHigh), p.Trials, numbers(p, inexact), p.Configuration, note)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintln(&text, r.Extent())
	if cache := r.Cache(); cache != "" {
		fmt.Fprintln(&text, cache)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(&text, "failed: %v: %s\n", f.Configuration, f.Reason)
	}
	if p := r.Chosen; p != nil {
		fmt.Fprintf(&text, "chosen: %v\n  %s", p.Configuration, s.goalText())
		for _, more := range []string{r.Comparison(), p.Opens()} {
			if more != "" {
				text.WriteString("; " + more)
			}
		}
		text.WriteString("\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// goalText describes the goal that the chosen settings reach.
func (s *settings) goalText() string {
	switch {
	case s.Budget.Limit > 0:
		return fmt.Sprintf("the fastest with a peak of at most %v, which leaves a part of the budget of %v free", s.goal().Limit(), s.Budget.Limit)
	case s.stepTime > 0:
		return fmt.Sprintf("the least memory at %v per step or less", s.stepTime)
	}
	return "the least product of time and memory, without --memory-budget or --step-time"
}

// frontPath returns the path of the page with the front: out with another extension.
func frontPath(out string) string {
	if ext := filepath.Ext(out); ext == ".yaml" || ext == ".yml" {
		out = strings.TrimSuffix(out, ext)
	}
	return out + ".html"
}

// writeFront writes the page with the front beside --out, also if no configuration reaches the goal.
func (s *settings) writeFront(stderr io.Writer, ds string, r tune.Result, inexact bool) error {
	page := tune.Page{
		Result: r, Goal: s.goal(), Model: s.modelName(), Data: ds, Batch: s.Loop.Batch, Why: s.goalText(), File: s.Out,
		Numbers: func(p tune.Point) string { return numbers(p, inexact) },
	}
	return writePage(stderr, frontPath(s.Out), page.HTML)
}

// goal returns the goal of the search according to the flags.
func (s *settings) goal() tune.Goal {
	return tune.Goal{Budget: s.Budget.Limit, Anon: s.Budget.Layer == memory.Anon, Step: s.stepTime}
}

// notReached returns the error if no configuration reaches the goal.
func (s *settings) notReached(r tune.Result, inexact bool) error {
	p := r.Nearest
	var fixes []string
	if s.Autotune.Mode != train.Precision {
		fixes = append(fixes, "--auto precision")
	}
	if s.Budget.Limit == 0 {
		return fmt.Errorf("no measured settings take %v per step or less: the fastest take %s (%v); allow a longer --step-time, or try %s",
			s.stepTime, english.Duration(p.Step), p.Configuration, english.List(append(fixes, "a smaller --batch"), "or"))
	}
	if inexact && !s.Session.AllowInexactSplit {
		fixes = append(fixes, "--inexact-micro-batches")
	}
	sufficient := memory.Bytes(float64(p.Peak)*float64(s.Budget.Limit)/float64(s.goal().Limit()))/memory.MiB + 1
	opens := ""
	if text := p.Opens(); text != "" {
		opens = "; " + text
	}
	return fmt.Errorf("no measured settings keep the training under %v: the least peak is %v (%v), and a part of the budget must stay free%s; give --memory-budget %dMiB or more, or try %s",
		s.Budget.Limit, p.Peak, p.Configuration, opens, sufficient, english.List(append(fixes, "a smaller --batch", "a model exported with --remat"), "or"))
}

// writeTuned writes the flags that were given and the chosen settings, if any, as a configuration of fit.
func (s *settings) writeTuned(cmd *cobra.Command, p *tune.Point, frozen bool) error {
	if p == nil {
		return nil
	}
	document := &yaml.Node{Kind: yaml.MappingNode, HeadComment: fmt.Sprintf("Written by steadyfit tune on %s: %v,\npeak %v, %s per step.",
		time.Now().Format(time.DateOnly), p.Configuration, p.Peak, english.Duration(p.Step))}
	scalar := func(text string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: text} }
	seen := map[string]bool{}
	put := func(name string, value *yaml.Node) {
		if !seen[name] {
			document.Content = append(document.Content, scalar(name), value)
		}
		seen[name] = true
	}
	given, err := s.givenToFit(cmd)
	if err != nil {
		return err
	}
	for _, kv := range given {
		put(kv[0], scalar(absolute(kv[0], kv[1])))
	}
	put("batch", scalar(strconv.Itoa(s.Loop.Batch)))
	for _, kv := range tunedFlags(p.Configuration, s.CacheFeatures, frozen) {
		put(kv[0], scalar(kv[1]))
	}
	text, err := yaml.Marshal(document)
	if err != nil {
		return err
	}
	err = files.Stream(s.Out, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if err != nil {
		return unusable(fmt.Errorf("--out: %w", err))
	}
	notice(cmd.ErrOrStderr(), "tune", fmt.Sprintf("wrote %s; train with: steadyfit fit --config %s --epochs N --out DIR", s.Out, s.Out))
	return nil
}

// givenToFit returns the flags of fit that have a value, with their values, in the order of the
// help. The values of flags that tune does not have are from the configuration file.
func (s *settings) givenToFit(cmd *cobra.Command) (list [][2]string, err error) {
	file, err := readConfig(configPath(s.configFile))
	if err != nil {
		return nil, err
	}
	own := []string{"out", "json", "auto", "config", "cache", "cache-features"}
	for _, section := range s.table() {
		for _, row := range section.flags {
			name := row.name()
			if slices.Contains(own, name) || !slices.Contains(strings.Fields(row.commands), "fit") && row.commands != rootName {
				continue
			}
			f := cmd.Flags().Lookup(name)
			value, given := file[name]
			if f != nil {
				value, given = f.Value.String(), f.Changed
				if v, ok := f.Value.(pflag.SliceValue); ok {
					value = strings.Join(v.GetSlice(), ",")
				}
			}
			if given {
				list = append(list, [2]string{name, value})
			}
		}
	}
	return list, nil
}

// absolute makes the path in the value of a flag absolute, so that fit can run in another folder.
func absolute(flag, value string) string {
	switch flag {
	case "model", "data", "validation", "tensorflow":
		if _, err := os.Stat(value); err == nil {
			if path, err := filepath.Abs(value); err == nil {
				return path
			}
		}
	}
	return value
}

// tunedFlags returns the flags of fit for a configuration, with their values. consent is the value of
// --cache-features. frozen reports whether fit could cache features of the model. Then the flags of a
// configuration without cached features turn the cache off, because it would change the amount of memory.
func tunedFlags(c autotune.Configuration, consent train.Choice, frozen bool) (flags [][2]string) {
	add := func(when bool, name string, value any) {
		if when {
			flags = append(flags, [2]string{name, fmt.Sprint(value)})
		}
	}
	add(true, "micro-batches", max(c.MicroBatches, 1))
	add(true, "steps-per-execution", max(c.StepsPerExecution, 1))
	add(c.Compiled, "jit-compile", true)
	add(c.Precision != "", "precision", showPrecision(string(c.Precision)))
	add(c.OneDNN != "", "onednn", c.OneDNN)
	add(c.Allocator != "", "allocator", c.Allocator)
	add(c.Executor != "", "executor", "single-threaded")
	add(c.IntraThreads != 0, "intra-threads", c.IntraThreads)
	add(c.InterThreads != 0, "inter-threads", c.InterThreads)
	add(c.NoPrefetch, "prefetch", 0)
	add(c.CachedFeatures, "cache-features", consent)
	add(frozen && !c.CachedFeatures, "cache-features", "off")
	add(true, "auto", "live")
	return flags
}
