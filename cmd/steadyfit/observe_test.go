package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// readEvents prints the scalars and the graphs of event files as TensorFlow reads them.
const readEvents = `
import collections, glob, json, os, sys
import tensorflow as tf
runs = {}
for run in ("train", "validation"):
    tags = collections.defaultdict(list)
    for path in sorted(glob.glob(os.path.join(sys.argv[1], run, "events.out.tfevents.*"))):
        for event in tf.compat.v1.train.summary_iterator(path):
            if event.graph_def:
                graph = tf.compat.v1.GraphDef.FromString(event.graph_def)
                tags["graph"].append([event.step, len(graph.node)])
            for v in event.summary.value:
                plugin = v.metadata.plugin_data.plugin_name
                a = tf.make_ndarray(v.tensor)
                assert plugin == "scalars" and a.shape == () and a.dtype == "float32"
                tags[v.tag].append([event.step, float(a)])
    runs[run] = tags
print(json.dumps(runs))
`

// events are the points (step and value) of the tags of each run.
type events map[string]map[string][][2]float64

// TensorBoard's event files of a training in three processes have the values of the history, each step
// once.
//
//lane:skip onednn (compares files)
func TestEventsAreTheHistory(t *testing.T) {
	python(t)
	dir := t.TempDir()
	board, history := filepath.Join(dir, "tb"), filepath.Join(dir, "history.jsonl")
	output, err := program(t, "fit", "--model", "builtin:digits", "--data", "builtin:digits", "--validation",
		"builtin:digits", "--epochs", "3",
		"--steps-per-epoch", "100", "--learning-rate", "0.01", "--checkpoints", filepath.Join(dir, "ckpt"), "--supervise",
		"--reset", "process", "--history", history,
		"--tensorboard", board).CombinedOutput()
	require.NoError(t, err, "%s", output)
	assert.NotContains(t, string(output), "an observer of the training failed")

	var found events
	require.NoError(t, json.Unmarshal([]byte(runPython(t, "-c", readEvents, board)), &found))
	compareEvents(t, found, history)
	assert.Len(t, found["train"]["graph"], 1)
	assert.Greater(t, found["train"]["graph"][0][1], 10.)
	tensorboardShows(t, board, found)
}

func compareEvents(t *testing.T, found events, history string) {
	t.Helper()
	text, err := os.ReadFile(history)
	require.NoError(t, err)
	want := events{"train": {}, "validation": {}}
	add := func(run, tag string, step, value any) {
		want[run][tag] = append(want[run][tag], [2]float64{step.(float64), float64(float32(value.(float64)))})
	}
	for line := range strings.Lines(string(text)) {
		var r map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		epoch := r["epoch"].(float64) - 1
		for _, name := range []string{"loss", "accuracy"} {
			add("train", "epoch_"+name, epoch, r[name])
			add("validation", "epoch_"+name, epoch, r["val_"+name])
			add("validation", "evaluation_"+name+"_vs_iterations", r["step"], r["val_"+name])
		}
		add("train", "epoch_learning_rate", epoch, r["learning_rate"])
		add("train", "epoch_steps_per_second", epoch, r["steps_per_second"])
		add("train", "memory/rss", r["step"], r["rss_bytes"])
		add("train", "memory/anon", r["step"], r["anon_bytes"])
		add("train", "time/data_wait", r["step"], r["data_wait"])
	}
	for run, tags := range want {
		for tag, points := range tags {
			assert.Equal(t, points, found[run][tag], "%s %s", run, tag)
		}
	}
}

// tensorboardShows compares what TensorBoard's server shows with the events in the files.
func tensorboardShows(t *testing.T, board string, found events) {
	t.Helper()
	cmd := exec.Command(python(t), "-m", "tensorboard.main", "--logdir", board, "--host", "127.0.0.1", "--port", "0",
		"--load_fast=false", "--reload_multifile=true")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	}()
	address := ""
	form := regexp.MustCompile(`http://127\.0\.0\.1:\d+`)
	for lines := bufio.NewScanner(stderr); address == "" && lines.Scan(); {
		if strings.Contains(lines.Text(), "No module named tensorboard") {
			t.Skip("TensorBoard is not installed; scripts/requirements.in has it: run `make venv`")
		}
		address = form.FindString(lines.Text())
	}
	require.NotEmpty(t, address)
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	get := func(path string, into any) error {
		answer, err := http.Get(address + path)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", path, answer.Status)
		}
		return json.NewDecoder(answer.Body).Decode(into)
	}
	for run, tags := range found {
		for tag, points := range tags {
			if tag == "graph" {
				continue
			}
			var shown [][2]float64
			require.Eventually(t, func() bool {
				var rows [][3]float64 // time, step, value
				if get("/data/plugin/scalars/scalars?run="+run+"&tag="+url.QueryEscape(tag), &rows) != nil {
					return false // not loaded yet
				}
				shown = nil
				for _, row := range rows {
					shown = append(shown, [2]float64{row[1], row[2]})
				}
				return len(shown) == len(points)
			}, time.Minute, 50*time.Millisecond, "%s %s", run, tag)
			assert.Equal(t, points, shown, "%s %s", run, tag)
		}
	}
	var graph map[string]any
	require.NoError(t, get("/data/plugin/graphs/info", &graph))
	assert.Contains(t, graph, "train")
}
