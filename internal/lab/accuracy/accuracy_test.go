package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/lab/runner"
)

// fitEnv makes the test binary act as steadyfit. Its value is a folder where each run writes a
// line.
const fitEnv = "STEADYFIT_TEST_ACCURACY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(fitEnv); dir != "" {
		if err := pretend(dir, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// pretend writes the history of a run with these arguments.
func pretend(dir string, args []string) error {
	if args[0] == "version" {
		_, err := fmt.Println("steadyfit (devel) (go, linux)\nTensorFlow 2.21.0 (/some/where)")
		return err
	}
	value := func(flag string) string { return args[slices.Index(args, flag)+1] }
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer log.Close()
	if _, err := fmt.Fprintln(log, strings.Join(args, " ")); err != nil {
		return err
	}
	accuracy := 0.9 + 0.01*float64(len(value("--seed")))
	switch value("--precision") {
	case "bf16":
		accuracy -= 0.02
	case "fp16":
		if value("--seed") == "2" {
			return errors.New("no such precision today")
		}
	}
	line := `{"epoch":%d,"step":9,"loss":1,"val_loss":0.5,"val_accuracy":%g,"seconds":2}` + "\n"
	text := fmt.Sprintf(line, 1, 0.1) + fmt.Sprintf(line, 2, accuracy)
	return os.WriteFile(value("--history"), []byte(text), 0o666)
}

func TestRunsAreKeptAndCompared(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(fitEnv, dir)
	call := func(args ...string) (code int, stdout, stderr string) {
		var out, log bytes.Buffer
		code = run(context.Background(), append([]string{"-steadyfit", self, "-work", dir, "-models", "digits"}, args...),
			&out, &log)
		return code, out.String(), log.String()
	}
	runs := func() int {
		text, err := os.ReadFile(filepath.Join(dir, "log"))
		require.NoError(t, err)
		return bytes.Count(text, []byte("\n"))
	}

	code, out, log := call("-seeds", "2", "-precisions", "bf16-rewritten")
	require.Zero(t, code, log)
	assert.Equal(t, 4, runs())
	assert.Contains(t, out, "| digits | fp32 | 2 | 91.00 |  |  |\n")
	assert.Contains(t, out, "| digits | bf16-rewritten | 2 | 89.00 | -2.00 | -2.00 to -2.00 |\n")

	// Only missing runs are started. A failed run is reported, and the other runs still
	// complete.
	file := filepath.Join(dir, "accuracy.json")
	code, out, log = call("-seeds", "3", "-json", file)
	assert.Equal(t, 1, code)
	assert.Equal(t, 18, runs())
	assert.Contains(t, log, "digits_fp16-rewritten_2: exit status 1: no such precision today")
	assert.Contains(t, out, "| digits | fp16-rewritten | 2 |")
	assert.Contains(t, out, "| digits | fp16-exported | 3 |")
	var r report
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	assert.Len(t, r.Runs, 17)
	assert.Equal(t, []string{"steadyfit (devel)", "TensorFlow 2.21.0"}, r.Versions)
	assert.Equal(t, 4.0, r.Runs[0].Seconds)
	assert.False(t, r.Runs[0].Ended.IsZero())
	assert.NotContains(t, string(text), dir)

	// A failed run is tried again. A run with other arguments or another model is repeated.
	call("-seeds", "3")
	assert.Equal(t, 19, runs())
	for name, was := range map[string]string{"digits_fp32_1": "--batch", "digits_bf16-rewritten_2": r.Runs[1].ModelHash} {
		path := filepath.Join(dir, "runs", name+".json")
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(text), was)
		require.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte(was), []byte("other"), 1), 0o666))
	}
	call("-seeds", "2", "-precisions", "bf16-rewritten")
	assert.Equal(t, 21, runs())

	// A model that is not exported is reported and not run.
	code, _, log = call("-seeds", "2", "-models", "digits-cnn", "-precisions", "fp16-scaled", "-exported", dir)
	assert.Equal(t, 1, code)
	assert.Contains(t, log, "digits-cnn-scaled: no such file or directory; make accuracy exports it")
	assert.Equal(t, 23, runs())
}

func TestPlan(t *testing.T) {
	var out, log bytes.Buffer
	require.Zero(t, run(context.Background(), []string{"-plan", "-seeds", "2"}, &out, &log), log.String())
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	assert.Len(t, lines, len(models)*len(precisions)*2+1)
	for _, model := range []string{"builtin:digits-cnn-fp16 ", "builtin:image-224 ", "out/models/image-224-bf16 ",
		"out/models/fashion-cnn ",
		"builtin:digits-scaled ", "out/models/digits-cnn-scaled "} {
		assert.Contains(t, out.String(), "--model "+model)
	}
	assert.Equal(t, 2*len(models), strings.Count(out.String(), "-scaled "))
	for _, args := range [][]string{{"-seeds", "1"}, {"-models", "digit"}, {"-precisions", "fp8"}} {
		assert.Equal(t, 2, run(context.Background(), append(args, "-plan"), &out, &log), args)
	}
}

// Other weights give another hash.
func TestHashOfAModel(t *testing.T) {
	dir := t.TempDir()
	hash := func(weights string) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "weights"), []byte(weights), 0o666))
		hash, err := (&plan{hashes: make(map[string]string)}).hash(dir)
		require.NoError(t, err)
		return hash
	}
	assert.Len(t, hash("1"), 64)
	assert.Equal(t, hash("1"), hash("1"))
	assert.NotEqual(t, hash("1"), hash("2"))
	_, err := (&plan{}).hash(filepath.Join(dir, "none"))
	assert.ErrorContains(t, err, "make accuracy")
}

// The differences 1, 2 and 3 have mean 2 and standard deviation 1; t(0.975, 2) = 4.302653.
func TestPairedInterval(t *testing.T) {
	got := pairedInterval([]float64{1, 2, 3})
	assert.Equal(t, 3, got.Pairs)
	assert.InDelta(t, 2, got.Mean, 1e-12)
	assert.InDelta(t, 2-2.484138, got.Low, 1e-5)
	assert.InDelta(t, 2+2.484138, got.High, 1e-5)
}

func TestImages(t *testing.T) {
	x, y := images(20, trainSeed)
	again, _ := images(20, trainSeed)
	assert.Equal(t, x, again)
	other, _ := images(20, testSeed)
	assert.NotEqual(t, x, other)
	count := make([]int, imageClasses)
	for _, c := range y {
		count[c]++
	}
	assert.Equal(t, []int{2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, count)

	// Images of one class are closer to each other than to the others, on average.
	width := len(x) / 20
	distance := func(i, j int) (sum float64) {
		for k := range width {
			d := float64(x[i*width+k]) - float64(x[j*width+k])
			sum += d * d
		}
		return sum
	}
	same, others := 0.0, 0.0
	for i := range 10 {
		same += distance(i, i+10) / 10
		for j := range 10 {
			if i != j {
				others += distance(i, j+10) / 90
			}
		}
	}
	assert.Less(t, same, others)
}

func TestMakePart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "part")
	require.NoError(t, makePart(dir, 3, testSeed))
	ds, err := data.Open(dir, data.Options{})
	require.NoError(t, err)
	defer ds.Close()
	assert.Equal(t, 3, ds.Len())
	assert.Equal(t, []data.FieldSpec{
		{Name: "x", Shape: []int{224, 224, 3}, Type: "uint8"},
		{Name: "y", Shape: []int{}, Type: "int64"},
	}, ds.Fields())
	before, err := os.Stat(filepath.Join(dir, "x.npy"))
	require.NoError(t, err)
	require.NoError(t, makePart(dir, 3, testSeed))
	after, err := os.Stat(filepath.Join(dir, "x.npy"))
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, after) && before.ModTime().Equal(after.ModTime()), "made again")
}

// The results in the repository are complete and match the table in docs/reference/devices.md.
func TestResults(t *testing.T) {
	text, err := runner.ReadGzip("../../../docs/results/accuracy.json.gz", 1<<20)
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(text, &r))
	assert.NotEmpty(t, r.CPU)
	assert.Positive(t, r.Cores)
	assert.Len(t, r.Versions, 2)
	require.Len(t, r.Models, len(models))
	for i, m := range models {
		m.train, m.test, m.flags = nil, nil, nil
		assert.Equal(t, m, r.Models[i])
	}
	const seeds = 5
	require.Len(t, r.Rows, len(models)*len(precisions))
	require.Len(t, r.Runs, len(r.Rows)*seeds)
	for _, run := range r.Runs {
		name := fmt.Sprintf("%s %s %d", run.Model, run.Precision, run.Seed)
		assert.False(t, run.Ended.IsZero(), name)
		assert.Regexp(t, "^[0-9a-f]{64}$", run.ModelHash, name)
		exported := run.Precision == "fp16-exported" || run.Precision == "fp16-scaled"
		assert.Equal(t, exported, run.SkippedSteps != nil, "%s: skipped steps", name)
		if exported || run.Commit != "" {
			assert.Regexp(t, "^[0-9a-f]{40}$", run.Commit, name)
		}
	}
	assert.Equal(t, newReport(&plan{options: options{seeds: seeds}}, r.Runs, "").Rows, r.Rows)

	var table bytes.Buffer
	r.table(&table)
	doc, err := os.ReadFile("../../../docs/reference/devices.md")
	require.NoError(t, err)
	assert.Contains(t, string(doc), "\n"+table.String()+"\n")
}
