package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

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
}

func compareEvents(t *testing.T, found events, history string) {
	t.Helper()
	want := events{"train": {}, "validation": {}}
	add := func(run, tag string, step, value any) {
		want[run][tag] = append(want[run][tag], [2]float64{step.(float64), float64(float32(value.(float64)))})
	}
	for _, r := range recordsOf(t, history) {
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
