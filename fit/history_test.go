package fit

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/memory"
)

func fullRecord() Record {
	rate, live, wait := 0.001, int64(12), 0.0125
	return Record{
		Epoch: 3, Step: 300,
		Metrics:      Metrics{{"loss", 0.1234567890123}, {"accuracy", 1}, {"val_loss", 1.5e-7}},
		LearningRate: &rate, Seconds: 1.25, SamplesPerSecond: 2560, StepsPerSecond: 80, DataWait: &wait,
		Memory: memory.Usage{
			RSS: memory.Known(452 * memory.MiB), Anon: memory.Known(0), Peak: memory.Known(memory.GiB),
		},
		GPU: memory.Known(3 * memory.GiB), LiveTensors: &live, CheckpointPause: 0.0125,
		Events: []string{"learning_rate", "reset"},
	}
}

func TestRecordJSON(t *testing.T) {
	for _, c := range []struct {
		record Record
		want   string
	}{
		{fullRecord(), `{"epoch":3,"step":300,"loss":0.1234567890123,"accuracy":1,"val_loss":1.5e-7,"learning_rate":0.001,"seconds":1.25,"samples_per_second":2560,"steps_per_second":80,"data_wait":0.0125,"rss_bytes":473956352,"anon_bytes":0,"peak_bytes":1073741824,"gpu_bytes":3221225472,"live_tensors":12,"event":"learning_rate,reset","checkpoint_pause_seconds":0.0125}`},
		{Record{Epoch: 1, Step: 2, Metrics: Metrics{{"loss", 2}}}, `{"epoch":1,"step":2,"loss":2,"seconds":0}`},
		{Record{Epoch: 1, Metrics: Metrics{{"a\"b", math.Inf(1)}, {"c", math.Inf(-1)}}, Events: []string{"<é>"}}, `{"epoch":1,"step":0,"a\"b":"Infinity","c":"-Infinity","seconds":0,"event":"\u003cé\u003e"}`},
	} {
		got, err := json.Marshal(c.record)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got))
		var back Record
		require.NoError(t, json.Unmarshal(got, &back))
		require.Equal(t, c.record, back)
	}
	var nan Record
	require.NoError(t, json.Unmarshal([]byte(`{"epoch":1,"precision":null}`), &nan))
	require.True(t, math.IsNaN(nan.Metrics[0].Value))
	again, err := json.Marshal(nan)
	require.NoError(t, err)
	require.Contains(t, string(again), `"precision":null`)

	for _, bad := range []string{`[]`, `{"epoch":1,"loss":"high"}`, `{"epoch":"x"}`, `{"step":1}`, `{"epoch":1,"event":3}`, `{"epoch":1,"loss":{}}`} {
		require.Error(t, json.Unmarshal([]byte(bad), &nan), bad)
	}
}

func TestRecordString(t *testing.T) {
	require.Equal(t, "epoch 3  step 300  loss 0.1235     accuracy 1.0000     val_loss 1.500e-07  learning_rate 0.001   "+
		"   steps/s 80.0      data_wait 1.2%    rss 452.0 MiB  "+
		" anon 0 B         gpu 3.0 GiB     checkpoint_pause 12ms    event learning_rate,reset", fullRecord().String())
	require.Equal(t, "epoch 1  step 2  loss 2.0000", Record{Epoch: 1, Step: 2, Metrics: Metrics{{"loss", 2}}}.String())
	skipping := Metrics{{"loss", 2}, {"loss_scale", 1.5}, {"skipped_steps", 3}}
	require.Equal(t, "epoch 1  step 2  loss 2.0000     loss_scale 1.5000     skipped_steps 3",
		Record{Epoch: 1, Step: 2, Metrics: skipping}.String())
	require.Equal(t, "loss 2.0000  loss_scale 1.5000  skipped_steps 3", skipping.String())
	require.Equal(t, "skipped_steps 1234567", Metric{"skipped_steps", 1234567}.String())
	require.Equal(t, "skipped_steps 2.5000", Metric{"skipped_steps", 2.5}.String(),
		"of a model that counts in another way")
}

func TestReservedMetricNames(t *testing.T) {
	names, err := metricNames([]string{"loss", "step", "seconds"}, "", "train")
	require.NoError(t, err)
	require.Equal(t, []string{"loss", "train_step", "train_seconds"}, names)
}
