package train

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/internal/contract"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/supervise"
)

// hostEnv makes the test binary a program that trains three times. It names a folder. With hostPlainEnv, the program
// does not call Init.
const (
	hostEnv      = "STEADYFIT_TEST_HOST"
	hostPlainEnv = "STEADYFIT_TEST_HOST_PLAIN"
)

// hostJob is the training of a child process of the program.
type hostJob struct{ Test, Dir string }

func init() {
	childTests["host"] = func(spec []byte) (Config, error) {
		var j hostJob
		err := json.Unmarshal(spec, &j)
		return j.config(), err
	}
}

func (j hostJob) config() Config {
	return Config{
		Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Loop: fit.Loop{Batch: 32, Epochs: 2}, Child: j,
		Checkpoints: fit.Checkpoint{Folder: filepath.Join(j.Dir, "ckpt")},
		Supervise:   Always, Budget: Budget{Limit: 4 * memory.GiB}, Reset: Reset{Depth: contract.ResetProcess, EveryEpochs: 1},
	}
}

// host is the main function of the program after Init. It writes what it does to a file.
func host(dir string) (err error) {
	file, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	fmt.Fprintln(file, "main")
	supervised := hostJob{"host", dir}.config()
	measured := Config{
		Model: supervised.Model, Data: supervised.Data, Loop: fit.Loop{Batch: 32, Epochs: 1_000_000},
		Autotune: On,
	}
	plain := Config{Model: supervised.Model, Data: supervised.Data, Loop: supervised.Loop, Budget: supervised.Budget}
	for i, c := range []Config{supervised, measured, plain} {
		ctx, cancel := context.WithCancel(context.Background())
		c.Report = func(subject string, _ any) {
			if subject == "auto" { // the measurements have ended
				cancel()
			}
		}
		_, err := Run(ctx, c)
		cancel()
		if err != nil && (i != 1 || !errors.Is(err, context.Canceled)) {
			return fmt.Errorf("training %d: %w", i, err)
		}
		fmt.Fprintln(file, "training", i)
	}
	return nil
}

// A program trains three times: with supervision, a budget and resets by process, with autotune, and with a budget
// alone. Nothing of main runs twice.
func TestHostProgram(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hostEnv+"="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	assert.Equal(t, "main\ntraining 0\ntraining 1\ntraining 2\n", string(text), "%s", out)
}

// An executable with this package defines no symbol of TensorFlow for the dynamic linker.
func TestNoSymbolsOfTensorFlow(t *testing.T) {
	program, err := elf.Open(os.Args[0])
	require.NoError(t, err)
	defer program.Close()
	symbols, err := program.DynamicSymbols()
	require.NoError(t, err)
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			assert.NotRegexp(t, regexp.MustCompile(`^TF_|^TFE_|tensorflow|_ZN3tsl|absl`), s.Name)
		}
	}
}

// Without Init, Run trains in the process of the program, and options that need a child are errors.
func TestWithoutInit(t *testing.T) {
	if os.Getenv(hostPlainEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWithoutInit$")
		cmd.Env = append(os.Environ(), hostPlainEnv+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	folder := t.TempDir()
	config := func() Config {
		return Config{
			Model: "builtin:digits", Data: Data{Path: "builtin:digits"}, Loop: fit.Loop{Batch: 32, Epochs: 1},
			Checkpoints: fit.Checkpoint{Folder: filepath.Join(folder, "ckpt")},
		}
	}
	for name, change := range map[string]func(*Config){
		"Config.Supervise":  func(c *Config) { c.Supervise = Always },
		"Config.Supervise ": func(c *Config) { c.Supervise, c.Budget.Limit = ForBudget, memory.GiB },
		"Config.Allocator":  func(c *Config) { c.Allocator = "mmap" },
		"Config.Autotune":   func(c *Config) { c.Autotune = On },
	} {
		c := config()
		change(&c)
		_, err := Run(t.Context(), c)
		var refused *option.Error
		require.ErrorAs(t, err, &refused, name)
		assert.Contains(t, name, refused.Option)
		assert.ErrorContains(t, err, "call train.Init")
	}
	_, err := Run(t.Context(), config())
	assert.NoError(t, err)
	assert.False(t, supervise.Known(taskName))
}
