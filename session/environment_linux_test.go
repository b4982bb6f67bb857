package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/gpuopts"
	"steadyfit/internal/testkit"
	"steadyfit/internal/tfprocess"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// environmentEnv makes the test binary a program that uses device options. "start" calls
// UseEnvironment, "open" calls only Open, and "gpu" asks for a GPU.
const environmentEnv = "STEADYFIT_TEST_ENVIRONMENT"

func init() { asChild(environmentEnv, environmentChild) }

type environmentOutcome struct {
	// Has are the environment variables at the end of the program.
	Has []string
	// Errors are the errors of options that are set too late, or ask for a GPU.
	Errors []string
}

// lateInChild lists options that are too late in the child process but not in the process of the
// tests, since the child has another log level and another order of GPUs.
var lateInChild = []gpuopts.Options{{LogLevel: "fatal"}, {VisibleGPUs: []int{1}}}

var environmentOptions = gpuopts.Options{
	VisibleGPUs: []int{0}, OneDNN: "off", XLA: "on-2",
}

func environmentChild(kind string) (any, error) {
	if kind == "start" {
		err := UseEnvironment(environmentOptions)
		return environmentOutcome{Has: os.Environ()}, err
	}
	var devices []gpuopts.Options
	switch kind {
	case "gpu":
		devices = []gpuopts.Options{{GPUAllocator: "BFC", MemoryGrowth: true}, {MemoryGrowth: true}}
	case "open":
		devices = []gpuopts.Options{{OneDNN: "off", XLA: "on-2"}}
	case "late":
		if err := os.Unsetenv("TF_CPP_MIN_LOG_LEVEL"); err != nil {
			return nil, err
		}
		devices = append([]gpuopts.Options{{}}, lateInChild...)
	}
	model, err := savedmodels.Builtin("digits")
	if err != nil {
		return nil, err
	}
	var o environmentOutcome
	for _, d := range devices {
		s, err := OpenModel(context.Background(), model, Options{Device: d})
		if errors.Is(err, ErrNoGPU) || errors.Is(err, gpuopts.ErrTooLate) {
			o.Errors = append(o.Errors, err.Error())
		} else if err != nil {
			return nil, err
		}
		if err := s.Close(); err != nil {
			return nil, err
		}
	}
	if live := tfbind.Live(); live != (tfbind.Counts{}) {
		return nil, fmt.Errorf("left behind: %+v", live)
	}
	o.Has = os.Environ()
	return o, nil
}

// UseEnvironment sets the variables that TensorFlow reads.
func TestUseEnvironment(t *testing.T) {
	if !InProcess(t, "") {
		return
	}
	o, log, err := runChild[environmentOutcome](t, environmentEnv, "start")
	require.NoError(t, err, log)
	for _, want := range []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "TF_ENABLE_ONEDNN_OPTS=0"} {
		assert.Contains(t, o.Has, want)
	}

	_, log, err = runChild[environmentOutcome](t, environmentEnv, "start", "TF_ENABLE_ONEDNN_OPTS=1")
	require.Error(t, err)
	assert.Contains(t, log, `Options.OneDNN off: TF_ENABLE_ONEDNN_OPTS is "1" in the environment, and the option needs "0"; unset it`)

	// Open sets missing variables before TensorFlow is open.
	o, log, err = runChild[environmentOutcome](t, environmentEnv, "open", "TF_CPP_MIN_LOG_LEVEL=0")
	require.NoError(t, err, log)
	assert.Contains(t, o.Has, "TF_ENABLE_ONEDNN_OPTS=0")
	assert.NotContains(t, log, "oneDNN custom operations are on")
}

// each lists settings that can differ between sessions.
var each = []gpuopts.Options{
	{InterThreads: 1, PerSessionThreads: true}, {Executor: gpuopts.SingleThreaded}, {GrapplerOff: true},
	{Grappler: gpuopts.Grappler{Remapping: "off"}}, {MemoryOptimization: "none"},
	{Precision: gpuopts.BFloat16}, {Precision: gpuopts.Float16CPU}, {XLA: "on-1"},
}

// late lists settings that TensorFlow reads once, with the error for setting them later.
var late = []struct {
	options gpuopts.Options
	says    []string
}{
	{gpuopts.Options{OneDNN: "off"}, []string{"Options.OneDNN off", "TF_ENABLE_ONEDNN_OPTS=0",
		"session.UseEnvironment before the first use of TensorFlow"}},
	{gpuopts.Options{OneDNNSystemAllocator: true}, []string{"Options.OneDNNSystemAllocator true",
		"TF_ONEDNN_USE_SYSTEM_ALLOCATOR=1"}},
	{gpuopts.Options{OneDNNMath: "bfloat16"}, []string{"Options.OneDNNMath bfloat16", "TF_SET_ONEDNN_FPMATH_MODE=BF16"}},
	{gpuopts.Options{Deterministic: true}, []string{"Options.Deterministic true", "TF_DETERMINISTIC_OPS=1"}},
	{gpuopts.Options{VisibleGPUs: []int{0}}, []string{"Options.VisibleGPUs [0]", "CUDA_DEVICE_ORDER=PCI_BUS_ID"}},
	{gpuopts.Options{IntraThreads: 3}, []string{"Options.IntraThreads 3", "its threads once per process",
		"use another process"}},
	{gpuopts.Options{InterThreads: 3}, []string{"Options.InterThreads 3", "or set Options.PerSessionThreads"}},
	{gpuopts.Options{MemoryGrowth: true}, []string{"Options.MemoryGrowth true", "its GPUs once per process"}},
	{gpuopts.Options{MemoryFraction: 0.5}, []string{"Options.MemoryFraction 0.5"}},
	{gpuopts.Options{VirtualGPUs: [][]int{{512}}}, []string{"Options.VirtualGPUs [[512]]"}},
	{gpuopts.Options{GPUAllocator: "cuda_malloc_async"}, []string{"Options.GPUAllocator cuda_malloc_async"}},
	{gpuopts.Options{GPUAllocator: "BFC"}, []string{"Options.GPUAllocator BFC"}},
	{gpuopts.Options{UnifiedMemory: true}, []string{"Options.UnifiedMemory true"}},
}

// Options that require a GPU fail without one. Options about how to use GPUs do not.
func TestOpenAsksForAGPU(t *testing.T) {
	o, log, err := runChild[environmentOutcome](t, environmentEnv, "gpu", "CUDA_VISIBLE_DEVICES=-1")
	require.NoError(t, err, log)
	assert.Equal(t, []string{"Options.GPUAllocator BFC asks for a GPU: TensorFlow has no GPU here, only CPU"}, o.Errors)
}

// An error reports which setting is too late and what to do.
func TestTooLate(t *testing.T) {
	if !InProcess(t, "") {
		return
	}
	ctx := context.Background()
	model, err := savedmodels.Builtin("digits")
	require.NoError(t, err)
	// This session may be the first of the process.
	s, err := OpenModel(ctx, model, Options{})
	require.NoError(t, err)
	defer s.Close()
	_, open := tfprocess.Environment()
	require.True(t, open)
	for _, c := range late {
		_, err := OpenModel(ctx, model, Options{Device: c.options})
		if !assert.ErrorIs(t, err, gpuopts.ErrTooLate, "%+v", c.options) {
			continue
		}
		for _, text := range c.says {
			assert.ErrorContains(t, err, text)
		}
	}
	for _, v := range []string{"TF_ENABLE_ONEDNN_OPTS", "TF_DETERMINISTIC_OPS", "CUDA_DEVICE_ORDER"} {
		_, set := os.LookupEnv(v)
		assert.False(t, set, "%s was set, too late", v)
	}
	assert.ErrorIs(t, UseEnvironment(gpuopts.Options{OneDNN: "off"}), gpuopts.ErrTooLate)
	assert.NoError(t, UseEnvironment(gpuopts.Options{InterThreads: 3}), "there is no variable for that")

	// These settings can differ between sessions.
	for _, own := range each {
		s, err := OpenModel(ctx, model, Options{Device: own})
		if assert.NoError(t, err, "%+v", own) {
			assert.NoError(t, s.Close())
		}
	}

	// A variable that is set after TensorFlow was opened is too late too.
	t.Setenv("TF_ENABLE_ONEDNN_OPTS", "0")
	_, err = OpenModel(ctx, model, Options{Device: gpuopts.Options{OneDNN: "off"}})
	assert.ErrorIs(t, err, gpuopts.ErrTooLate)
	assert.ErrorIs(t, UseEnvironment(gpuopts.Options{OneDNN: "off"}), gpuopts.ErrTooLate)
}

func TestTooLateInAChild(t *testing.T) {
	o, log, err := runChild[environmentOutcome](t, environmentEnv, "late", "CUDA_DEVICE_ORDER=PCI_BUS_ID")
	require.NoError(t, err, log)
	require.Len(t, o.Errors, len(lateInChild))
	assert.Contains(t, o.Errors[0], "Options.LogLevel fatal: TensorFlow was opened without TF_CPP_MIN_LOG_LEVEL=3")
	assert.Contains(t, o.Errors[1], "Options.VisibleGPUs 1: TensorFlow sets up its GPUs once per process, and the first "+
		"session did so with TensorFlow's default")
}

// docs/reference/devices.md and late agree on when TensorFlow reads a setting.
func TestTooLateIsWhatTheDocumentSays(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/devices.md")
	require.NoError(t, err)
	set := func(list ...gpuopts.Options) map[string]bool {
		names := map[string]bool{}
		for _, o := range list {
			v := reflect.ValueOf(o)
			for i := range v.NumField() {
				names[v.Type().Field(i).Name] = names[v.Type().Field(i).Name] || !v.Field(i).IsZero()
			}
		}
		return names
	}
	tooLate, own := set(lateInChild...), set(each...)
	for _, c := range late {
		for name, is := range set(c.options) {
			tooLate[name] = tooLate[name] || is
		}
	}
	field, rows := regexp.MustCompile("^`([A-Z]\\w+)"), 0
	for _, table := range testkit.Tables(string(text)) {
		read := slices.Index(table.Header, "read")
		if read < 0 {
			continue
		}
		for _, row := range table.Rows {
			name := field.FindStringSubmatch(row[slices.Index(table.Header, "Go field")])
			if name == nil { // only a variable sets it
				continue
			}
			rows++
			switch when, _, _ := strings.Cut(row[read], ";"); {
			case when == "first" || when == "once":
				assert.True(t, tooLate[name[1]], "%s is read %s, and not tried too late", name[1], row[read])
			case when == "session" || strings.HasPrefix(when, "never"):
				assert.True(t, own[name[1]], "%s is read %s, and not tried in a later session", name[1], row[read])
			default:
				t.Errorf("%s: read %q", name[1], row[read])
			}
		}
	}
	assert.Greater(t, rows, 20)
}
