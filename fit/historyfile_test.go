package fit

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/option"
)

// trainInto runs some epochs of 2 steps with a history of both kinds.
func trainInto(t *testing.T, dir string, epochs int, hooks ...Hook) (*History, error) {
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: epochs, Validation: samples(t, 4), ValidationEvery: 2,
		Resume: filepath.Join(dir, "ckpt")}
	loop.Hook(Checkpoint{Folder: loop.Resume}.Hook(), HistoryFile(filepath.Join(dir, "logs", "run.jsonl")),
		HistoryFile(filepath.Join(dir, "logs", "run.csv")))
	loop.Hook(hooks...)
	return loop.Run(t.Context(), samples(t, 8))
}

// epochsIn returns the epochs in the two files.
func epochsIn(t *testing.T, dir string) (jsonl, csv string) {
	records, err := readHistory(filepath.Join(dir, "logs", "run.jsonl"))
	require.NoError(t, err)
	for _, r := range records {
		jsonl += string(rune('0' + r.Epoch))
	}
	text := contentOf(t, filepath.Join(dir, "logs", "run.csv"))
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		first, _, _ := strings.Cut(line, ",")
		if i > 0 {
			csv += first
		}
	}
	return jsonl, csv
}

func TestHistoryFiles(t *testing.T) {
	dir := tempDir(t)
	_, err := trainInto(t, dir, 2)
	require.NoError(t, err)
	text := contentOf(t, filepath.Join(dir, "logs", "run.csv"))
	lines := strings.Split(string(text), "\n")
	require.Equal(t, "epoch,step,loss,mae,val_loss,val_mae,learning_rate,seconds,samples_per_second,steps_per_second,data_wait,rss_bytes,anon_bytes,peak_bytes,gpu_bytes,live_tensors,resets,reset_returned_bytes,reset_seconds,event", lines[0])
	require.Regexp(t, `^1,2,[0-9.]+,[0-9.]+,,,,`, lines[1])
	require.Regexp(t, `^2,4,[0-9.]+,[0-9.]+,[0-9.]+,[0-9.]+,,`, lines[2])

	// A resumed run has each epoch once, whatever was in the files.
	for _, change := range []func(path string) error{
		func(string) error { return nil },
		os.Remove,
		func(path string) error { return os.Truncate(path, 150) },
		func(path string) error { return os.Truncate(path, 0) },
		func(path string) error { // lines after the checkpoint
			text := contentOf(t, path)
			return os.WriteFile(path, append(text, text...), 0o666)
		},
	} {
		again := copyDir(t, dir)
		for _, name := range []string{"run.jsonl", "run.csv"} {
			require.NoError(t, change(filepath.Join(again, "logs", name)))
		}
		_, err := trainInto(t, again, 4)
		require.NoError(t, err)
		jsonl, csv := epochsIn(t, again)
		require.Equal(t, "1234", jsonl)
		require.Equal(t, "1234", csv)
		require.Equal(t, []string{"run.csv", "run.jsonl"}, names(t, filepath.Join(again, "logs")))
	}

	// A new training replaces the history.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "ckpt")))
	_, err = trainInto(t, dir, 1)
	require.NoError(t, err)
	jsonl, csv := epochsIn(t, dir)
	require.Equal(t, "1", jsonl)
	require.Equal(t, "1", csv)
}

// A file that is not a history is refused and not changed.
func TestHistoryFileKeepsOtherFiles(t *testing.T) {
	for _, c := range []struct{ name, content string }{
		{"notes.txt", "line 1"}, {"saved_model.pb", "\x08\x01\x12\n\x00\xff"}, {"data.jsonl", `{"x":[1,2],"y":1}`}, {"data.csv", "name,age\n"},
		{"blank.jsonl", "\n"},
	} {
		path := filepath.Join(tempDir(t), c.name)
		require.NoError(t, os.WriteFile(path, []byte(c.content), 0o666))
		_, err := trainInto(t, tempDir(t), 1, HistoryFile(path))
		require.ErrorAs(t, err, new(*option.Error))
		require.ErrorContains(t, err, path+": the file is not a history: it begins with")
		text := contentOf(t, path)
		require.Equal(t, c.content, string(text))
	}
	for path, want := range map[string]string{"": "no file name", os.DevNull: "no regular file",
		tempDir(t): "no regular file"} {
		_, err := trainInto(t, tempDir(t), 1, HistoryFile(path))
		require.ErrorAs(t, err, new(*option.Error))
		require.ErrorContains(t, err, want)
	}
	_, err := trainInto(t, tempDir(t), 1, HistoryFile(filepath.Join(os.DevNull, "run.jsonl")))
	require.ErrorContains(t, err, "at start: writing "+filepath.Join(os.DevNull, "run.jsonl"))
}

// If the last line cannot be written, the training is complete.
func TestLastLineCannotBeWritten(t *testing.T) {
	path := filepath.Join(tempDir(t), "run.jsonl")
	h := &historyFile{path: path}
	broken := Hook{
		Name: "broken", Start: h.start, End: h.end,
		Epoch: func(ctx context.Context, s *State) error {
			if s.Epoch == 2 {
				require.NoError(t, h.file.Close())
			}
			return h.epoch(ctx, s)
		},
	}
	for epochs, done := range map[int]bool{2: true, 3: false} {
		history, err := trainInto(t, tempDir(t), epochs, broken)
		require.ErrorAs(t, err, new(*WriteError))
		require.Equal(t, done, history.Done)
		require.Len(t, history.Records, 2)
		require.NotEmpty(t, history.Checkpoint)
	}
}
