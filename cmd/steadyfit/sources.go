package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"steadyfit/internal/autotune"
	"steadyfit/internal/child"
	"steadyfit/internal/files"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/tflibrary"
)

const envPrefix = "STEADYFIT_"

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// settle sets flags that are not on the command line from the environment or the configuration
// file.
func settle(flags *pflag.FlagSet, path string) error {
	path = configPath(path)
	values, err := readConfig(path)
	if err != nil {
		return err
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || err != nil {
			return
		}
		source := envName(f.Name)
		text := os.Getenv(source)
		if text == "" || source == tflibrary.EnvLibrary { // package tfbind reads that variable
			source = path
			var ok bool
			if text, ok = values[f.Name]; !ok {
				return
			}
		}
		if e := flags.Set(f.Name, text); e != nil {
			err = usagef("%s: %w", source, flagError(e))
		}
	})
	return err
}

// warnUnknown warns of variables STEADYFIT_* without a flag, such as misspelt ones.
func warnUnknown(stderr io.Writer) {
	known := []string{child.SupervisedEnv, autotune.Env, memlayer.WatchEnv, memlayer.WatchEnv + "_PREFIX",
		memlayer.WatchEnv + "_TRIAL", memlayer.MarkEveryEnv}
	for name := range flagNames() {
		known = append(known, envName(name))
	}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		// Tests set other variables with this prefix.
		if strings.HasPrefix(name, envPrefix) && !slices.Contains(known, name) && value != "" &&
			!strings.HasPrefix(name, envPrefix+"TEST_") {
			fmt.Fprintf(stderr, "steadyfit: warning: the variable %s is set, but no flag has that name\n", name)
		}
	}
}

// maxConfig is the maximum size of a configuration file.
const maxConfig = 1 << 20

// configPath returns the path of the configuration file, which the environment names if the
// command line does not, or "".
func configPath(given string) string { return cmp.Or(given, os.Getenv(envName("config"))) }

// readConfig reads a YAML mapping of flag names to values. The mapping may have flags of other
// commands. If path is empty, there is no mapping.
func readConfig(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	text, err := files.Read(path, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("--config %s: no such file; check the path, which is relative to the working directory", path)
	}
	if err != nil {
		return nil, usagef("--config: %w", err)
	}
	var document map[string]yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, usagef("configuration %s: expected one mapping of flag names to values: %w", path, err)
	}
	values := map[string]string{}
	var unknown []string
	known := flagNames()
	for key, node := range document {
		if !known[key] || key == "config" {
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
		return nil, usagef("configuration %s: unknown keys: %s; keys are the names of flags, as in learning-rate", path,
			strings.Join(unknown, ", "))
	}
	return values, nil
}
