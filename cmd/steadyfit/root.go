package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"

	"steadyfit/internal/lab/cell"
	"steadyfit/memory"
	"steadyfit/supervise"
	"steadyfit/tfbind"
	"steadyfit/train"
	"steadyfit/tune"
)

// global are the flags of every command.
type global struct {
	tensorflow string
	config     string
	verbose    bool
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	g := &global{}
	root := &cobra.Command{
		Use:   "steadyfit",
		Short: "Fine-tune TensorFlow SavedModels with memory that stays flat",
		Long: `steadyfit fine-tunes TensorFlow SavedModels with memory that stays flat.

Every flag can also be given in the environment, as STEADYFIT_ and its name in
capitals (STEADYFIT_LEARNING_RATE), or in a YAML file named by --config, as a key
of its name. A flag goes before the environment, and that before the file.

Exit codes: 0 ok, 1 the run failed, 2 usage or configuration, 3 environment,
4 diverged, 5 out of memory, 6 a check failed, 130 interrupted.`,
		Example: `  steadyfit fit --model builtin:digits --data builtin:digits --epochs 20 --out out/digits
  steadyfit inspect out/digits
  steadyfit doctor`,
		SilenceErrors: true, SilenceUsage: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("there is no command %q; see steadyfit --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			warnUnknown(cmd.Root(), stderr)
			return settle(cmd, g.config)
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&g.tensorflow, "tensorflow", "", "TensorFlow to use: a library, a folder that holds it, or a site-packages/tensorflow")
	flags.StringVar(&g.config, "config", "", "YAML file with values for flags")
	flags.BoolVar(&g.verbose, "verbose", false, "let TensorFlow log what it does")
	root.AddCommand(newFit(g), newEvaluate(g), newPredict(g), newInspect(), newDoctor(g), newBench(g),
		newMatrix(g), newReport(), newCell(g), newVersion(g))
	// Arguments that no command takes are usage errors, too.
	for _, c := range root.Commands() {
		if args := c.Args; args != nil {
			c.Args = func(cmd *cobra.Command, a []string) error {
				if err := args(cmd, a); err != nil {
					return usagef("%w; see %s --help", err, cmd.CommandPath())
				}
				return nil
			}
		}
	}
	return root
}

// load opens TensorFlow.
func (g *global) load() (tfbind.Info, error) {
	if err := g.quiet(); err != nil {
		return tfbind.Info{}, err
	}
	return tfbind.Load(g.tensorflow)
}

// quiet keeps TensorFlow from logging what is no warning, unless told otherwise.
// Its own variable, if set, is left alone.
func (g *global) quiet() error {
	const level = "TF_CPP_MIN_LOG_LEVEL"
	if _, set := os.LookupEnv(level); set || g.verbose {
		return nil
	}
	if err := os.Setenv(level, "1"); err != nil {
		return fmt.Errorf("set %s: %w", level, err)
	}
	return nil
}

const envPrefix = "STEADYFIT_"

// settle gives every flag that is not on the command line its value from the
// environment or the configuration file.
func settle(cmd *cobra.Command, path string) error {
	flags := cmd.Flags()
	values := map[string]string{}
	if env := os.Getenv(envPrefix + "CONFIG"); path == "" {
		path = env
	}
	if path != "" {
		var err error
		if values, err = readConfig(allFlags(cmd.Root()), path); err != nil {
			return err
		}
	}
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || err != nil || f.Name == "help" {
			return
		}
		source, value, ok := path, "", false
		value, ok = values[f.Name]
		// Package tfbind reads its variable itself, and names it in its errors.
		if v := os.Getenv(envName(f.Name)); v != "" && envName(f.Name) != tfbind.EnvLibrary {
			source, value, ok = envName(f.Name), v, true
		}
		if !ok {
			return
		}
		if e := flags.Set(f.Name, value); e != nil {
			err = usagef("%s: %s: %w", source, f.Name, e)
		}
	})
	return err
}

// warnUnknown names variables that look like flags of this program and are none:
// a misspelt one would otherwise be ignored in silence.
func warnUnknown(root *cobra.Command, stderr io.Writer) {
	if _, restarted := os.LookupEnv(train.ChosenEnv); restarted {
		return // it was said before
	}
	known := map[string]bool{}
	for name := range allFlags(root) {
		known[envName(name)] = true
	}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		// Tests of the program set variables of their own.
		if strings.HasPrefix(name, envPrefix) && !known[name] && name != cell.Env && name != supervise.Env && name != tune.Env && value != "" && !strings.HasPrefix(name, envPrefix+"TEST_") {
			fmt.Fprintf(stderr, "steadyfit: warning: the variable %s is set, but no flag has that name\n", name)
		}
	}
}

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// allFlags are the names of the flags of all commands.
func allFlags(root *cobra.Command) map[string]bool {
	known := map[string]bool{}
	note := func(f *pflag.Flag) { known[f.Name] = true }
	root.PersistentFlags().VisitAll(note)
	for _, c := range root.Commands() {
		c.Flags().VisitAll(note)
	}
	return known
}

// maxConfig is the size of a configuration.
const maxConfig = memory.MiB

// readConfig reads a flat YAML mapping of flag names to values. A file may serve
// several commands; only a key that none of them has is unknown.
func readConfig(known map[string]bool, path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, usagef("configuration: %w", err)
	}
	defer file.Close()
	// A device may have no end.
	text, err := io.ReadAll(io.LimitReader(file, int64(maxConfig)+1))
	if err != nil {
		return nil, usagef("configuration: %w", err)
	}
	if len(text) > int(maxConfig) {
		return nil, usagef("configuration %s: expected at most %v", path, maxConfig)
	}
	return parseConfig(known, path, text)
}

func parseConfig(known map[string]bool, path string, text []byte) (map[string]string, error) {
	var document map[string]yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, usagef("configuration %s: expected one mapping of flag names to values: %w", path, err)
	}
	values := map[string]string{}
	var unknown []string
	for key, node := range document {
		if !known[key] || key == "config" || key == "help" {
			unknown = append(unknown, fmt.Sprintf("%s (line %d)", key, node.Line))
			continue
		}
		switch node.Kind {
		case yaml.ScalarNode:
			values[key] = node.Value
		case yaml.SequenceNode:
			var list []string
			for _, item := range node.Content {
				list = append(list, item.Value)
			}
			values[key] = strings.Join(list, ",")
		default:
			return nil, usagef("configuration %s: line %d: %s: expected one value, found a mapping", path, node.Line, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, usagef("configuration %s: unknown keys: %s; keys are the names of flags, as in learning-rate", path, strings.Join(unknown, ", "))
	}
	return values, nil
}
