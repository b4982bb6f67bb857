package tfbind_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/tfprocess"
	"steadyfit/tfbind"
)

// envThresholdChild makes a process print a threshold as JSON.
const envThresholdChild = "STEADYFIT_TEST_THRESHOLD"

// threshold has the measurements of a process.
type threshold struct {
	Err           string // the error of SetMmapThreshold
	OneDNN, Known bool
	// Low and High are the bytes that malloc keeps after 15 tensors of 1 MiB were closed, with
	// a threshold of 256 KiB and with the highest one.
	Low, High int64
}

func thresholdChild() error {
	var o threshold
	// kept makes 16 tensors of 1 MiB and closes all but the last.
	kept := func(bytes int) (int64, error) {
		if err := tfprocess.SetMmapThreshold(bytes); err != nil {
			o.Err = err.Error()
			return 0, nil
		}
		tfbind.TrimMalloc()
		values := make([]float32, 1<<18)
		var tensors []*tfbind.Tensor
		for range 16 {
			x, err := tfbind.NewTensor(values, int64(len(values)))
			if err != nil {
				return 0, err
			}
			tensors = append(tensors, x)
		}
		// The last tensor stays open, since malloc always returns free memory at the end of an
		// arena.
		last := len(tensors) - 1
		for _, x := range tensors[:last] {
			if err := x.Close(); err != nil {
				return 0, err
			}
		}
		m, _ := tfbind.MallocInfo()
		return m.Free, tensors[last].Close()
	}
	var err error
	// The low threshold is measured first, because malloc would otherwise use memory that is free
	// in an arena.
	if o.Low, err = kept(256 << 10); err != nil {
		return err
	}
	if o.High, err = kept(tfprocess.MaxMmapThreshold); err != nil {
		return err
	}
	if _, err := tfbind.Load(""); err != nil {
		return err
	}
	o.OneDNN, o.Known = tfprocess.OneDNN()
	return json.NewEncoder(os.Stdout).Encode(o)
}

func runThreshold(t *testing.T, env ...string) (o threshold) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(append(os.Environ(), envThresholdChild+"=1", "TF_CPP_MIN_LOG_LEVEL=3"), env...)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &failed)
	require.NoError(t, json.Unmarshal(out, &o), "%s", out)
	return o
}

// Blocks above the threshold return to the system when they are freed.
func TestSetMmapThreshold(t *testing.T) {
	if m, _ := tfbind.MallocInfo(); m.Allocator != "glibc" {
		t.Skipf("the malloc of this process is %q", m.Allocator)
	}
	o := runThreshold(t, "TF_ENABLE_ONEDNN_OPTS=0")
	require.Empty(t, o.Err)
	assert.Greater(t, o.High, int64(10<<20), "malloc keeps 15 blocks of 1 MiB")
	assert.Less(t, o.Low, int64(4<<20), "they went back")
	for _, bytes := range []int{-1, 0, tfprocess.MaxMmapThreshold + 1} {
		assert.ErrorContains(t, tfprocess.SetMmapThreshold(bytes), "expected 1 to")
	}
}

// SetMmapThreshold fails if the environment sets a threshold.
func TestSetMmapThresholdLeavesTheEnvironmentAlone(t *testing.T) {
	for _, env := range []string{"MALLOC_MMAP_THRESHOLD_=1048576", "MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=1048576"} {
		name, _, _ := strings.Cut(env, "=")
		assert.Contains(t, runThreshold(t, env).Err, name)
	}
}

func TestOneDNN(t *testing.T) {
	for value, on := range map[string]bool{"0": false, "1": true} {
		o := runThreshold(t, "TF_ENABLE_ONEDNN_OPTS="+value)
		assert.True(t, o.Known)
		assert.Equal(t, on, o.OneDNN)
	}
}
