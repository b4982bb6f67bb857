package autotune

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/tfprocess"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// weightsEnv makes a process train by the spec in the variable, and print the sum of the variables
// of the model.
const weightsEnv = "STEADYFIT_TEST_AUTOTUNE_WEIGHTS"

// weightsSteps is the number of train steps: several executions of several steps, and a single
// step.
const weightsSteps = 16

func printWeights(ctx context.Context) (err error) {
	var s spec
	if err := json.Unmarshal([]byte(os.Getenv(weightsEnv)), &s); err != nil {
		return err
	}
	r, err := begin(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for r.executions.Done < weightsSteps {
		if r.executions.Done+int64(r.executions.Steps) > weightsSteps {
			r.executions.Steps = 1
		}
		if err := r.executions.Run(ctx); err != nil {
			return err
		}
	}
	sum, err := sumOfWeights(ctx, r.session)
	if err == nil {
		_, err = fmt.Println(sum)
	}
	return err
}

func sumOfWeights(ctx context.Context, s *session.Session) (sum string, err error) {
	dir, err := os.MkdirTemp("", "steadyfit-test-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	prefix := filepath.Join(dir, "v")
	if err := s.Save(ctx, prefix); err != nil {
		return "", err
	}
	text, err := os.ReadFile(prefix + ".data-00000-of-00001")
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:]), err
}

// TestRoundsAsItSays trains with each possible configuration, in a separate process, since threads
// belong to the process. If Configuration.Rounds is false, the weights equal those of plain steps,
// bit for bit.
//
//lane:skip race (sets oneDNN itself)
//lane:run onednn
//lane:skip check (long)
func TestRoundsAsItSays(t *testing.T) {
	info, err := tfbind.Load("")
	require.NoError(t, err)
	oneDNN, known := tfprocess.OneDNN()
	require.True(t, known)
	_, regression := dense(t)
	images, _, err := data.Builtin("digits")
	require.NoError(t, err)
	for _, c := range []struct {
		model string
		data  data.Dataset
		// rounds is a configuration that rounds differently with oneDNN on two cores. eigen reports
		// whether the configuration also rounds differently without oneDNN.
		rounds Configuration
		eigen  bool
	}{
		{"dense-100-64-1", regression, Configuration{StepsPerExecution: 5, Executor: gpuopts.SingleThreaded}, false},
		{"digits-cnn", images, Configuration{IntraThreads: 1}, true},
	} {
		t.Run(c.model, func(t *testing.T) {
			m, err := savedmodels.Builtin(c.model)
			require.NoError(t, err)
			s := spec{Library: info.Library, Model: m.Dir, Hash: m.Hash, Batch: 32}
			p := Plan{Model: m, Data: c.data, Batch: s.Batch,
				Limits: Limits{StepsPerExecution: 5, Compiled: true, Threads: true}}
			s.Data = filepath.Join(t.TempDir(), "batches")
			require.NoError(t, sample(&p, s.Data, time.Minute))
			weights := func(configuration Configuration, callerRuns bool) string {
				t.Helper()
				s := s
				s.Configuration, s.Options.CallerRuns = configuration, callerRuns
				text, err := json.Marshal(s)
				require.NoError(t, err)
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), weightsEnv+"="+string(text))
				missing, err := configuration.Environment()
				require.NoError(t, err)
				for _, v := range missing {
					cmd.Env = append(cmd.Env, v.String())
				}
				var failed strings.Builder
				cmd.Stderr = &failed
				out, err := cmd.Output()
				require.NoError(t, err, "%v: %s", configuration, &failed)
				return string(out)
			}
			plain := weights(Configuration{}, false)
			require.Len(t, plain, 2*sha256.Size+1)

			_, jemalloc := tfprocess.FindAllocator(tfprocess.Jemalloc)
			p.Limits.Restart = jemalloc == nil
			o, err := p.fastSpace()
			require.NoError(t, err)
			require.Contains(t, o.bases, Configuration{StepsPerExecution: 5})
			settings := append(slices.Concat(o.threads, o.memories), Configuration{Executor: gpuopts.SingleThreaded}, inter)
			same := []Configuration{{}}
			for _, base := range append([]Configuration{{}}, o.bases...) {
				for _, setting := range append([]Configuration{{}}, settings...) {
					if configuration := setting.over(base); !configuration.Plain() && !configuration.Rounds() {
						same = append(same, configuration)
					}
				}
			}
			require.GreaterOrEqual(t, len(same), 5, "several steps per execution, inter threads, and the executor")
			require.Equal(t, plain, weights(Configuration{}, true), "in the calling thread")
			for i, configuration := range same[1:] {
				caller := i%2 == 1
				assert.Equal(t, plain, weights(configuration, caller), "%v, in the calling thread: %v", configuration, caller)
			}
			require.Equal(t, oneDNN || c.eigen, c.rounds.Rounds())
			if c.rounds.Rounds() && runtime.NumCPU() > 1 {
				assert.NotEqual(t, plain, weights(c.rounds, false), "%v is the same steps now: then Rounding need not have it",
					c.rounds)
			}
		})
	}
}
