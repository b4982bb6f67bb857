package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"

	"steadyfit/internal/autotune"
	"steadyfit/internal/child"
	"steadyfit/internal/explain"
	"steadyfit/internal/lab/worker"
	"steadyfit/internal/tflibrary"
	"steadyfit/memory"
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
		source, text, ok := fromEnvironment(f.Name)
		if !ok {
			source = path
			text, ok = values[f.Name]
		}
		if !ok {
			return
		}
		if e := flags.Set(f.Name, text); e != nil {
			err = usagef("%s: %w", source, flagError(e))
		}
	})
	return err
}

// fromEnvironment returns the variable that sets a flag, under the flag's current name or an
// earlier one. It ignores tflibrary.EnvLibrary, which package tfbind reads.
func fromEnvironment(flag string) (variable, value string, ok bool) {
	for name, now := range today {
		if v := envName(name); now == flag && v != tflibrary.EnvLibrary && os.Getenv(v) != "" && (!ok || name == flag) {
			variable, value, ok = v, os.Getenv(v), true
		}
	}
	return variable, value, ok
}

// warnUnknown warns of variables STEADYFIT_* without a flag, such as misspelt ones.
func warnUnknown(stderr io.Writer) {
	if _, restarted := os.LookupEnv(autotune.ChosenEnv); restarted {
		return // the process warned before it restarted itself
	}
	known := []string{worker.Env, child.SupervisedEnv, autotune.Env, explain.Env}
	for name := range today {
		known = append(known, envName(name))
	}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		// Tests set other variables with this prefix.
		if strings.HasPrefix(name, envPrefix) && !slices.Contains(known, name) && value != "" && !strings.HasPrefix(name, envPrefix+"TEST_") {
			fmt.Fprintf(stderr, "steadyfit: warning: the variable %s is set, but no flag has that name\n", name)
		}
	}
}

// noteRenamed prints the current name of each flag that was given by an earlier name.
func noteRenamed(stderr io.Writer, renamed map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(renamed)) {
		fmt.Fprintf(stderr, "steadyfit: --%s is now --%s\n", name, renamed[name])
	}
}

const maxConfig = memory.MiB

// configPath returns the path of the configuration file, which the environment names if the
// command line does not, or "".
func configPath(given string) string { return cmp.Or(given, os.Getenv(envName("config"))) }

// readConfig reads a YAML mapping of flag names to values. The mapping may have flags of other
// commands. If path is empty, there is no mapping.
func readConfig(path string) (map[string]string, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, usagef("--config %s: no such file; check the path, which is relative to the working directory", path)
	case err != nil:
		return nil, usagef("--config: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, int64(maxConfig)+1)) // a device may have no end
	if err != nil {
		return nil, usagef("configuration: %w", err)
	}
	if len(text) > int(maxConfig) {
		return nil, usagef("configuration %s: expected at most %v", path, maxConfig)
	}
	return parseConfig(path, text)
}

func parseConfig(path string, text []byte) (map[string]string, error) {
	var document map[string]yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, usagef("configuration %s: expected one mapping of flag names to values: %w", path, err)
	}
	values := map[string]string{}
	var unknown []string
	for key, node := range document {
		name := today[key]
		if name == "" || name == "config" {
			unknown = append(unknown, fmt.Sprintf("%s (line %d)", key, node.Line))
			continue
		}
		if _, twice := values[name]; twice {
			return nil, usagef("configuration %s: line %d: %s: the file sets %s twice; an earlier name of a flag still works", path, node.Line, key, name)
		}
		switch node.Kind {
		case yaml.ScalarNode:
			values[name] = node.Value
		case yaml.SequenceNode:
			var list []string
			for _, item := range node.Content {
				list = append(list, item.Value)
			}
			values[name] = strings.Join(list, ",")
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
