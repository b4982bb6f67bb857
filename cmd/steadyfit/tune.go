package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"steadyfit/data"
	"steadyfit/internal/autotune"
	"steadyfit/internal/files"
	"steadyfit/internal/texts"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/train"
)

func newTune(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "tune",
		Short: "Find the settings of fit with the least memory or the least time",
		Long: `Measure settings of fit for a model, its data and this machine, and write the
chosen ones to a file for fit --config: micro-batches, steps per execution, compiled
signatures, allocator, oneDNN, threads and prefetching. Each trial trains for some steps
in a process of its own.

With --memory-budget, the fastest settings are chosen that stay under it; with
--step-time, those with the least memory at that speed; with neither, those with the
least product of time and memory. The table shows all settings for which no others
are both faster and smaller, and whether their results have the same bits as those of
plain steps. Measurements are kept, so the same command continues a search that was
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
	m, plan, err := s.compile()
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
	if err := s.printTuned(cmd.OutOrStdout(), r); err != nil {
		return err
	}
	if s.Out != "" && r.Chosen != nil {
		if err := s.writeTuned(cmd, r.Chosen); err != nil {
			return err
		}
	}
	if p := r.Nearest; r.Chosen == nil {
		return fmt.Errorf("no measured settings reach the goal: the nearest have a peak of %v and take %s per step (%v); "+
			"allow more, or try a smaller --batch", p.Peak, stepTime(p.Step), p.Configuration)
	}
	return nil
}

func (s *settings) checkTune() error {
	if s.stepTime > 0 && s.Budget.Limit > 0 {
		return usagef("--memory-budget and --step-time exclude each other: tune keeps the one and minimizes the other")
	}
	if err := cmp.Or(s.checkLayer("tune"), s.checkOutputFile("tuned.yaml")); err != nil || s.Out == "" {
		return err
	}
	return checkFolder(s.Out, filepath.Dir(s.Out))
}

// checkLayer returns an error if a budget is not of the memory that a command measures.
func (s *settings) checkLayer(command string) error {
	if s.Budget.Layer == memory.RSS || s.Budget.Layer == memory.Anon {
		return nil
	}
	return usagef("%s: %s measures the memory of a process; expected rss or anon",
		flagName("Budget.Layer", string(s.Budget.Layer)), command)
}

// firstRate returns the learning rate of the first step; 0 if none is given.
func (s *settings) firstRate() float64 {
	if s.Loop.LearningRate == nil {
		return 0
	}
	return s.Loop.LearningRate(0, 0)
}

// searchSettings runs the trials, with a line on stderr for each.
func (s *settings) searchSettings(cmd *cobra.Command, m *savedmodels.Model, ds data.Dataset,
	until time.Time) (autotune.Result, error) {
	steps := ds.Len() / s.Loop.Batch
	if s.Budget.Limit > 0 {
		steps = 1 // a budget measures memory after each step
	}
	plan := autotune.Plan{
		// Restart: fit sets these variables when it starts, but refuses another value of one that is set.
		Model: m, Options: s.Session, Limits: autotune.Limits{StepsPerExecution: steps, Compiled: true, Threads: true,
			Restart: true, OneDNN: os.Getenv("TF_ENABLE_ONEDNN_OPTS") == ""},
		Data: ds, Batch: s.Loop.Batch, Cache: autotune.CacheDir(), Budgeted: s.Budget.Limit > 0,
		LearningRate: s.firstRate(),
	}
	goal := autotune.Goal{Budget: s.Budget.Limit, Anon: s.Budget.Layer == memory.Anon, Step: s.stepTime}
	r, err := autotune.Run(cmd.Context(), &plan, goal, until, func(m autotune.Measurement) {
		fmt.Fprintf(cmd.ErrOrStderr(), "tune: %v: %s (%v left)\n", m.Configuration,
			option.Marked(trialText(m, goal.Anon), flagName), time.Until(until).Round(time.Second))
	})
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("interrupted; the same command continues with the trials in the user's cache folder: %w", err)
	}
	return r, err
}

func trialText(m autotune.Measurement, anon bool) string {
	if m.Out != "" {
		return m.Out
	}
	peak := m.Peak
	if anon {
		peak = m.Anon
	}
	return fmt.Sprintf("%v, %s", peak, stepTime(m.Step))
}

func (s *settings) printTuned(w io.Writer, r autotune.Result) error {
	for c, why := range r.Failures {
		r.Failures[c] = option.Marked(why, flagName)
	}
	if s.json {
		return printJSON(w, r)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "peak\tstep\ttrials\tresults\tsettings")
	for _, p := range r.Rows() {
		note := ""
		if p.Configuration.Plain() {
			note = " (default)"
		}
		fmt.Fprintf(table, "%v\t%s (%s to %s)\t%d\t%s\t%v%s\n", p.Peak, stepTime(p.Step), stepTime(p.StepLow),
			stepTime(p.StepHigh), p.Trials, p.Numbers, p.Configuration, note)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var text strings.Builder
	fmt.Fprintln(&text, r.Extent())
	for _, c := range slices.Sorted(maps.Keys(r.Failures)) {
		fmt.Fprintf(&text, "failed: %s: %s\n", c, r.Failures[c])
	}
	if p := r.Chosen; p != nil {
		fmt.Fprintf(&text, "chosen: %v\n", p.Configuration)
		if more := r.Comparison(); more != "" {
			fmt.Fprintf(&text, "  %s\n", more)
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func stepTime(seconds float64) string {
	return texts.Duration(time.Duration(seconds * float64(time.Second)))
}

// writeTuned writes the flags that were given and the chosen settings as a configuration of fit.
func (s *settings) writeTuned(cmd *cobra.Command, p *autotune.Point) error {
	values := map[string]*yaml.Node{}
	put := func(name, value string) { values[name] = &yaml.Node{Kind: yaml.ScalarNode, Value: value} }
	for _, kv := range tunedFlags(p.Configuration) {
		put(kv[0], kv[1])
	}
	put("batch", strconv.Itoa(s.Loop.Batch))
	given, err := s.givenToFit(cmd)
	if err != nil {
		return err
	}
	for _, kv := range given {
		put(kv[0], kv[1])
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		return err
	}
	err = files.Stream(s.Out, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "# Written by steadyfit tune on %s: %v,\n# peak %v, %s per step.\n\n%s",
			time.Now().Format(time.DateOnly), p.Configuration, p.Peak, stepTime(p.Step), text)
		return err
	})
	if err != nil {
		return unusable(fmt.Errorf("--out: %w", err))
	}
	notice(cmd.ErrOrStderr(), "tune", fmt.Sprintf("wrote %s; train with: steadyfit fit --config %s --epochs N --out DIR",
		s.Out, s.Out))
	return nil
}

// givenToFit returns the flags of fit that have a value, with their values, in the order of the
// help. The values of flags that tune does not have are from the configuration file.
func (s *settings) givenToFit(cmd *cobra.Command) (list [][2]string, err error) {
	file, err := readConfig(configPath(s.configFile))
	if err != nil {
		return nil, err
	}
	own := []string{"out", "json", "auto", "config", "cache-features"}
	for _, row := range s.rows() {
		name := row.name
		if slices.Contains(own, name) || !row.of("fit") && !row.of(rootName) {
			continue
		}
		value, given := file[name]
		if f := cmd.Flags().Lookup(name); f != nil {
			value, given = f.Value.String(), f.Changed
			if v, ok := f.Value.(pflag.SliceValue); ok {
				value = strings.Join(v.GetSlice(), ",")
			}
		}
		if given {
			list = append(list, [2]string{name, value})
		}
	}
	return list, nil
}

// tunedFlags returns the flags of fit for a configuration, with their values. They turn the cache of
// features off, since it would change the amount of memory.
func tunedFlags(c autotune.Configuration) (flags [][2]string) {
	add := func(when bool, name string, value any) {
		if when {
			flags = append(flags, [2]string{name, fmt.Sprint(value)})
		}
	}
	add(true, "micro-batches", max(c.MicroBatches, 1))
	add(true, "steps-per-execution", max(c.StepsPerExecution, 1))
	add(c.Compiled, "jit-compile", true)
	add(c.OneDNN != "", "onednn", c.OneDNN)
	add(c.Allocator != "", "allocator", c.Allocator)
	add(c.IntraThreads != 0, "intra-threads", c.IntraThreads)
	add(c.InterThreads != 0, "inter-threads", c.InterThreads)
	add(c.NoPrefetch, "prefetch", 0)
	add(true, "cache-features", "off")
	add(true, "auto", "off")
	return flags
}
