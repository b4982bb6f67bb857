package fit

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/rank"
	"steadyfit/memory"
	"steadyfit/option"
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
		Ranks: &rank.Times{Exchange: 0.25, Wait: 0.5}, RankRSS: []int64{10, 20},
		Events: []string{"learning_rate", "reset"},
	}
}

func TestRecordJSON(t *testing.T) {
	for _, c := range []struct {
		record Record
		want   string
	}{
		{fullRecord(), `{"epoch":3,"step":300,"loss":0.1234567890123,"accuracy":1,"val_loss":1.5e-7,"learning_rate":0.001,"seconds":1.25,"samples_per_second":2560,"steps_per_second":80,"data_wait":0.0125,"slowest_rank":0,"rank_wait":0.5,"rank_exchange":0.25,"rss_bytes":473956352,"anon_bytes":0,"peak_bytes":1073741824,"gpu_bytes":3221225472,"live_tensors":12,"event":"learning_rate,reset","rank_rss_bytes":[10,20],"checkpoint_pause_seconds":0.0125}`},
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
	require.Equal(t, "epoch 3  step 300  loss 0.1235     accuracy 1.0000     val_loss 1.500e-07  learning_rate 0.001      steps/s 80.0      data_wait 1.2%    slowest_rank 0     rank_wait 50.0%   rank_exchange 25.0%   rss 452.0 MiB   anon 0 B         gpu 3.0 GiB     checkpoint_pause 12ms    event learning_rate,reset", fullRecord().String())
	require.Equal(t, "epoch 1  step 2  loss 2.0000", Record{Epoch: 1, Step: 2, Metrics: Metrics{{"loss", 2}}}.String())
	skipping := Metrics{{"loss", 2}, {"loss_scale", 1.5}, {"skipped_steps", 3}}
	require.Equal(t, "epoch 1  step 2  loss 2.0000     loss_scale 1.5000     skipped_steps 3", Record{Epoch: 1, Step: 2, Metrics: skipping}.String())
	require.Equal(t, "loss 2.0000  loss_scale 1.5000  skipped_steps 3", skipping.String())
	require.Equal(t, "skipped_steps 1234567", Metric{"skipped_steps", 1234567}.String())
	require.Equal(t, "skipped_steps 2.5000", Metric{"skipped_steps", 2.5}.String(), "of a model that counts in another way")
}

func TestReservedMetricNames(t *testing.T) {
	names, err := metricNames([]string{"loss", "step", "seconds"}, "", "train")
	require.NoError(t, err)
	require.Equal(t, []string{"loss", "train_step", "train_seconds"}, names)
}

func TestEmptyHistory(t *testing.T) {
	h := &History{}
	require.Equal(t, Record{}, h.Last())
	require.Empty(t, h.Metric("loss"))
}

// trainInto runs some epochs of 2 steps with both log files.
func trainInto(t *testing.T, dir string, epochs int, resume bool) error {
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: epochs, Validation: samples(t, 4), ValidationEvery: 2}
	if resume {
		loop.Resume = filepath.Join(dir, "ckpt")
		loop.Hook(Checkpoint{Folder: loop.Resume}.Hook())
	}
	loop.Hook(HistoryFile(filepath.Join(dir, "logs", "run.jsonl"), false), HistoryFile(filepath.Join(dir, "logs", "run.csv"), false))
	_, err := loop.Run(t.Context(), samples(t, 8))
	return err
}

// epochsIn returns the epochs in the two files.
func epochsIn(t *testing.T, dir string) (jsonl, csv string) {
	records, err := readHistory(filepath.Join(dir, "logs", "run.jsonl"))
	require.NoError(t, err)
	for _, r := range records {
		jsonl += string(rune('0' + r.Epoch))
	}
	text, err := os.ReadFile(filepath.Join(dir, "logs", "run.csv"))
	require.NoError(t, err)
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		first, _, _ := strings.Cut(line, ",")
		if i > 0 {
			csv += first
		}
	}
	return jsonl, csv
}

func TestLogFilesAreAppended(t *testing.T) {
	dir := tempDir(t)
	require.NoError(t, trainInto(t, dir, 3, false))
	require.NoError(t, trainInto(t, dir, 2, false))
	jsonl, csv := epochsIn(t, dir)
	require.Equal(t, "12312", jsonl)
	require.Equal(t, "12312", csv)
	text, err := os.ReadFile(filepath.Join(dir, "logs", "run.csv"))
	require.NoError(t, err)
	lines := strings.Split(string(text), "\n")
	require.Equal(t, "epoch,step,loss,mae,val_loss,val_mae,learning_rate,seconds,samples_per_second,steps_per_second,data_wait,slowest_rank,rank_wait,rank_exchange,rss_bytes,anon_bytes,peak_bytes,gpu_bytes,live_tensors,resets,reset_returned_bytes,reset_seconds,event", lines[0])
	require.Regexp(t, `^1,2,[0-9.]+,[0-9.]+,,,,`, lines[1])
	require.Regexp(t, `^2,4,[0-9.]+,[0-9.]+,[0-9.]+,[0-9.]+,,`, lines[2])
}

func TestLogFilesOfResumedRuns(t *testing.T) {
	jsonlPath := func(dir string) string { return filepath.Join(dir, "logs", "run.jsonl") }
	// earlier is the number of earlier trainings that wrote to the files.
	for _, c := range []struct {
		name    string
		change  func(t *testing.T, dir string)
		want    string
		earlier int
	}{
		{"nothing happened", func(*testing.T, string) {}, "12345", 0},
		{"lines after the checkpoint", func(t *testing.T, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "ckpt", "ckpt-6")))
		}, "12345", 0},
		{"files are gone", func(t *testing.T, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "logs")))
		}, "12345", 1},
		{"a torn last line", func(t *testing.T, dir string) {
			for _, name := range []string{"run.jsonl", "run.csv"} {
				path := filepath.Join(dir, "logs", name)
				info, err := os.Stat(path)
				require.NoError(t, err)
				require.NoError(t, os.Truncate(path, info.Size()-150))
			}
		}, "12345", 0},
		{"a lost line end", func(t *testing.T, dir string) {
			info, err := os.Stat(jsonlPath(dir))
			require.NoError(t, err)
			require.NoError(t, os.Truncate(jsonlPath(dir), info.Size()-1))
		}, "12345", 0},
		{"earlier trainings stay", func(t *testing.T, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "ckpt", "ckpt-6")))
		}, "12312345", 1},
		{"later trainings stay", func(t *testing.T, dir string) {
			require.NoError(t, trainInto(t, dir, 2, false))
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "ckpt", "ckpt-6")))
		}, "1231212345", 1},
		{"the files were replaced", func(t *testing.T, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "logs")))
			require.NoError(t, trainInto(t, dir, 1, false))
		}, "12345", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := tempDir(t)
			for range c.earlier {
				require.NoError(t, trainInto(t, dir, 3, false))
			}
			require.NoError(t, trainInto(t, dir, 3, true))
			c.change(t, dir)
			require.NoError(t, trainInto(t, dir, 5, true))
			jsonl, csv := epochsIn(t, dir)
			require.Equal(t, c.want, jsonl)
			require.Equal(t, c.want, csv)
			require.Equal(t, []string{"run.csv", "run.jsonl"}, names(t, filepath.Join(dir, "logs")))
		})
	}
}

func TestTornLineOfAnEarlierRun(t *testing.T) {
	dir := tempDir(t)
	require.NoError(t, trainInto(t, dir, 1, false))
	path := filepath.Join(dir, "logs", "run.jsonl")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(text, []byte(`{"epoch":2,"lo`)...), 0o666))
	require.NoError(t, trainInto(t, dir, 1, false))
	jsonl, _ := epochsIn(t, dir)
	require.Equal(t, "11", jsonl)
}

func TestLogFileErrors(t *testing.T) {
	run := func(h Hook) error {
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 1}
		loop.Hook(h)
		_, err := loop.Run(t.Context(), samples(t, 8))
		return err
	}
	dir := tempDir(t)
	var wrong *option.Error
	require.ErrorAs(t, run(HistoryFile("", false)), &wrong)
	require.ErrorContains(t, run(HistoryFile(dir, false)), "history_file("+dir+") at start")
}

// A file that is not a history is refused and not changed. A history whose only line is incomplete is
// repaired.
func TestHistoryFileKeepsOtherFiles(t *testing.T) {
	run := func(path string) error {
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 1}
		loop.Hook(HistoryFile(path, false))
		_, err := loop.Run(t.Context(), samples(t, 8))
		return err
	}
	path := filepath.Join(tempDir(t), "first.csv")
	require.NoError(t, run(path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	header, _, _ := strings.Cut(string(text), "\n")
	for _, c := range []struct {
		name, content string
		why           string // empty for a history
	}{
		{"notes.txt", "line 1\nline 2 without newline", `its first line is "line 1"; expected a record with epoch, step and seconds`},
		{"notes.txt", "one line", `its first line is "one line"; expected a record`},
		{"saved_model.pb", "\x08\x01\x12\n\x00\xff", `its first line is "\b\x01\x12"`},
		{"data.jsonl", `{"x":[1,2],"y":1}`, `its first line is "{\"x\":[1,2],\"y\":1}"`},
		{"data.jsonl", `{"epoch":1,"x":2}` + "\n" + `{"epoch":2,"x":3}` + "\n", `its first line is "{\"epoch\":1,\"x\":2}"`},
		{"data.jsonl", `{"epoch":1,"x":2}`, `its first line is "{\"epoch\":1,\"x\":2}"`},
		{"pretty.json", "{\n" + `  "epoch": 1` + "\n}\n", `its first line is "{"`},
		{"long.jsonl", recordStart + strings.Repeat("1", maxFirstLine), `its first line is "{\"epoch\":1111`},
		{"data.csv", "name,age\nann,7\n", `column 1 of its first line is "name"; expected "epoch"`},
		{"data.csv", "name,age", `column 1 of its first line is "name"; expected "epoch"`},
		{"data.csv", header + ",more", `column 22 of its first line is "more"; expected the end of the line`},
		{"blank.jsonl", "\n", `its first line is ""`},
		{"data.csv", "epoch,step,loss,other\n", `column 4 of its first line is "other"; expected "`},
		{"run.jsonl", "", ""},
		{"run.jsonl", recordStart[:1], ""},
		{"run.jsonl", recordStart + `7,"step":14,"lo`, ""},
		{"run.jsonl", `{"epoch":7,"step":14,"seconds":1}`, ""},
		{"run.jsonl", `{ "step": 14, "seconds": 1, "epoch": 7 }` + "\n" + `{"ep`, ""},
		{"run.csv", "", ""},
		{"run.csv", header[:20], ""},
		{"run.csv", header, ""},
		{"run.csv", header + "\n7,14", ""},
	} {
		path := filepath.Join(tempDir(t), c.name)
		require.NoError(t, os.WriteFile(path, []byte(c.content), 0o666))
		err := run(path)
		if c.why == "" {
			require.NoError(t, err, c.content)
			epochs := linesIn(t, path)
			require.Equal(t, 1, epochs[len(epochs)-1])
			continue
		}
		var wrong *option.Error
		require.ErrorAs(t, err, &wrong, c.content)
		require.Contains(t, wrong.Error(), path+": the file is not a history of this run: "+c.why)
		require.ErrorContains(t, wrong, "; name another file")
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, c.content, string(text))
	}
}
