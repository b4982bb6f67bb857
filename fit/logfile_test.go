package fit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/disk"
	"steadyfit/internal/files"
)

// tornLine is a part of a line.
const tornLine = "3,6,0."

// shortOf makes some appends, counted from 1, fail after a part of the line.
func shortOf(t testing.TB, fails func(n int) bool) disk.Disk {
	n := 0
	return disk.Disk{Before: func(op, path string) error {
		if op != "append" {
			return nil
		}
		if n++; !fails(n) {
			return nil
		}
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteString(tornLine)
		require.NoError(t, errors.Join(err, f.Close()))
		return syscall.ENOSPC
	}}
}

// loggers has the constructors of both kinds of log file, by file name.
var loggers = map[string]func(string) *lineFile{"run.jsonl": historyLines, "run.csv": csvLines}

func onDisk(l *lineFile, d disk.Disk) *lineFile {
	l.disk = d
	return l
}

// linesIn returns the epochs in a file, all of whose lines must be complete.
func linesIn(t testing.TB, path string) []int {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, len(text) == 0 || text[len(text)-1] == '\n', "the last line is whole: %q", text)
	epochs := []int{}
	if filepath.Ext(path) == ".csv" {
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		for _, line := range lines[1:] {
			require.Equal(t, strings.Count(lines[0], ","), strings.Count(line, ","))
			first, _, _ := strings.Cut(line, ",")
			epoch, err := strconv.Atoi(first)
			require.NoError(t, err)
			epochs = append(epochs, epoch)
		}
		return epochs
	}
	records, err := readHistory(path)
	require.NoError(t, err)
	for _, r := range records {
		epochs = append(epochs, r.Epoch)
	}
	return epochs
}

// upTo returns the numbers from 1 to n.
func upTo(n int) []int {
	epochs := make([]int, n)
	for i := range epochs {
		epochs[i] = i + 1
	}
	return epochs
}

func TestLogLinesAreMadeUpFor(t *testing.T) {
	for name, logger := range loggers {
		path := filepath.Join(tempDir(t), name)
		var log bytes.Buffer
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 8, Log: slog.New(slog.NewTextHandler(&log, nil))}
		var during [][]int
		loop.Hook(
			// The third line is attempted three times.
			onDisk(logger(path), shortOf(t, func(n int) bool { return n >= 3 && n < 6 })).hook(true),
			Hook{Name: "look", Priority: priorityCheckpoint, Epoch: func(context.Context, *State) error {
				during = append(during, linesIn(t, path))
				return nil
			}},
		)
		h, err := loop.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		require.Len(t, h.Records, 8)
		require.Empty(t, h.Stopped)
		require.Equal(t, [][]int{upTo(1), upTo(2), upTo(2), upTo(2), upTo(2), upTo(6), upTo(7), upTo(8)}, during)
		require.Equal(t, 1, strings.Count(log.String(), "training continues without a line"))
		require.Contains(t, log.String(), "no space left on device")
		require.Contains(t, log.String(), "free some space")
		require.Equal(t, 1, strings.Count(log.String(), "all lines again"))
	}
}

// If the incomplete line cannot be removed, it is removed before the next line or by the next
// run.
func TestTornLogLineIsMended(t *testing.T) {
	for name, logger := range loggers {
		path := filepath.Join(tempDir(t), name)
		short := shortOf(t, func(n int) bool { return n == 3 || n == 8 })
		truncations := 0
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 7}
		loop.Hook(onDisk(logger(path), disk.Disk{Before: func(op, path string) error {
			if op == "truncate" {
				// The removal fails once for the first torn line, and always for the second.
				if truncations++; truncations == 1 || truncations > 2 {
					return syscall.EIO
				}
			}
			return short.Before(op, path)
		}}).hook(true))
		_, err := loop.Run(t.Context(), samples(t, 8))
		var failed *LogError
		require.ErrorAs(t, err, &failed)
		require.ErrorIs(t, err, syscall.EIO)
		require.Equal(t, 1, failed.Missing)
		require.Equal(t, 4, truncations)

		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(string(text), tornLine), "a part of a line is left")
		again := Loop{Session: newLinear(), Batch: 4, Epochs: 1}
		again.Hook(logger(path).hook(false))
		_, err = again.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		require.Equal(t, append(upTo(6), 1), linesIn(t, path))
	}
}

// A file that lacks lines at the end of the run is an error, but the training is complete.
func TestLogLinesThatStayMissing(t *testing.T) {
	for name, logger := range loggers {
		dir := tempDir(t)
		path, ckpt := filepath.Join(dir, name), filepath.Join(dir, "ckpt")
		l := newLinear()
		loop := Loop{Session: l, Batch: 4, Epochs: 6}
		loop.Hook(onDisk(logger(path), shortOf(t, func(n int) bool { return n > 2 })).hook(true), Checkpoint{Folder: ckpt}.Hook())
		h, err := loop.Run(t.Context(), samples(t, 8))
		var failed *LogError
		require.ErrorAs(t, err, &failed)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.True(t, failed.Final)
		require.Equal(t, path, failed.Path)
		require.Equal(t, 4, failed.Missing)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "lacks the last 4 epochs")
		require.Len(t, h.Records, 6)
		require.Equal(t, filepath.Join(ckpt, "ckpt-12"), h.Checkpoint)
		require.Equal(t, trained(t, 6), l.state())
		require.Equal(t, upTo(2), linesIn(t, path))

		again := Loop{Session: newLinear(), Batch: 4, Epochs: 6, Resume: ckpt}
		again.Hook(logger(path).hook(false), Checkpoint{Folder: ckpt}.Hook())
		_, err = again.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		require.Equal(t, upTo(6), linesIn(t, path), "a resumed run adds them")
	}
}

// Without continueOnError, the run ends after the epoch with a checkpoint.
func TestLogFileStops(t *testing.T) {
	for name, logger := range loggers {
		for _, recovers := range []bool{false, true} {
			dir := tempDir(t)
			path, ckpt := filepath.Join(dir, name), filepath.Join(dir, "ckpt")
			loop := Loop{Session: newLinear(), Batch: 4, Epochs: 6}
			broken := shortOf(t, func(n int) bool { return n == 3 || (n > 3 && !recovers) })
			loop.Hook(onDisk(logger(path), broken).hook(false), Checkpoint{Folder: ckpt, EveryEpochs: 5}.Hook())
			h, err := loop.Run(t.Context(), samples(t, 8))
			var failed *LogError
			require.ErrorAs(t, err, &failed)
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.False(t, failed.Final)
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, "free some space")
			require.Len(t, h.Records, 3)
			require.Contains(t, h.Stopped, path)
			require.Equal(t, filepath.Join(ckpt, "ckpt-6"), h.Checkpoint)
			if recovers {
				require.Zero(t, failed.Missing)
				require.Equal(t, upTo(3), linesIn(t, path), "what there was room for at the end")
			} else {
				require.Equal(t, 1, failed.Missing)
				require.Equal(t, upTo(2), linesIn(t, path))
			}

			l := newLinear()
			again := Loop{Session: l, Batch: 4, Epochs: 6, Resume: ckpt}
			again.Hook(logger(path).hook(false), Checkpoint{Folder: ckpt, EveryEpochs: 5}.Hook())
			h, err = again.Run(t.Context(), samples(t, 8))
			require.NoError(t, err)
			require.Equal(t, filepath.Join(ckpt, "ckpt-6"), h.ResumedFrom)
			require.Equal(t, trained(t, 6), l.state())
			require.Equal(t, upTo(6), linesIn(t, path))
		}
	}
}

// If the last line cannot be written, it is attempted once more at the end of the run. All earlier
// lines are in the file.
func TestLastLogLine(t *testing.T) {
	for _, last := range []int{3, 4} {
		path := filepath.Join(tempDir(t), "run.jsonl")
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 3}
		loop.Hook(onDisk(historyLines(path), shortOf(t, func(n int) bool { return n >= 3 && n <= last })).hook(false))
		h, err := loop.Run(t.Context(), samples(t, 8))
		require.Len(t, h.Records, 3)
		require.Empty(t, h.Stopped)
		if last == 3 {
			require.NoError(t, err)
			require.Equal(t, upTo(3), linesIn(t, path))
			continue
		}
		var failed *LogError
		require.ErrorAs(t, err, &failed)
		require.True(t, failed.Final)
		require.ErrorContains(t, err, "lacks the last epoch,")
		require.Equal(t, upTo(2), linesIn(t, path))
	}
}

// The run ends for the reason of the first hook. The session has its result only if that hook
// completed the training.
func TestLogFileAfterAStop(t *testing.T) {
	for _, final := range []bool{false, true} {
		path := filepath.Join(tempDir(t), "run.jsonl")
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 3}
		loop.Hook(
			Hook{Name: "enough", Epoch: func(_ context.Context, s *State) error {
				if final {
					s.Finish("enough")
				}
				s.Stop("enough")
				return nil
			}},
			onDisk(historyLines(path), shortOf(t, func(int) bool { return true })).hook(false),
		)
		h, err := loop.Run(t.Context(), samples(t, 8))
		var failed *LogError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, final, failed.Final)
		require.Equal(t, final, h.Done)
		require.Equal(t, "enough", h.Stopped)
	}
}

// A training that crashed before its first checkpoint and starts again writes no line twice.
// Lines of other trainings stay.
func TestLogLinesOfARunWithoutACheckpoint(t *testing.T) {
	for name, logger := range loggers {
		dir := tempDir(t)
		path, ckpt := filepath.Join(dir, name), filepath.Join(dir, "ckpt")
		died := errors.New("died")
		train := func(resume string, dies bool, folder string) (*History, error) {
			l := newLinear()
			loop := Loop{Session: l, Batch: 4, Epochs: 4, Resume: resume}
			loop.Hook(logger(path).hook(false), Checkpoint{Folder: folder, EveryEpochs: 3}.Hook())
			l.onTrain = func(step int64) error {
				if dies && step == 5 {
					return died
				}
				return nil
			}
			return loop.Run(t.Context(), samples(t, 8))
		}
		earlier := filepath.Join(dir, "earlier")
		_, err := train("", false, earlier)
		require.NoError(t, err)
		require.Equal(t, upTo(4), linesIn(t, path))

		_, err = train("", true, ckpt)
		require.ErrorIs(t, err, died)
		require.Equal(t, append(upTo(4), 1, 2), linesIn(t, path))
		require.Equal(t, []string{begunFile}, names(t, ckpt))

		_, err = train(ckpt, true, ckpt)
		require.ErrorIs(t, err, died)
		require.Equal(t, append(upTo(4), 1, 2), linesIn(t, path))

		between := filepath.Join(dir, "between")
		_, err = train("", false, between)
		require.NoError(t, err)
		_, err = train(ckpt, false, ckpt)
		require.NoError(t, err)
		require.Equal(t, slices.Concat(upTo(4), upTo(4), upTo(4)), linesIn(t, path))
		require.NotContains(t, names(t, ckpt), begunFile)

		// Without Loop.Resume, the lines belong to another training.
		require.NoError(t, os.RemoveAll(ckpt))
		_, err = train("", true, ckpt)
		require.ErrorIs(t, err, died)
		_, err = train("", true, ckpt)
		require.ErrorIs(t, err, died)
		require.Equal(t, slices.Concat(upTo(4), upTo(4), upTo(4), upTo(2), upTo(2)), linesIn(t, path))

		require.NoError(t, os.WriteFile(filepath.Join(ckpt, begunFile), []byte("{"), 0o666))
		_, err = train(ckpt, true, ckpt)
		require.ErrorContains(t, err, begunFile)
	}
}

// A run that resumes before the end of its first epoch does not change the lines of an earlier
// training.
func TestLogLinesOfAnEarlierTraining(t *testing.T) {
	for name, logger := range loggers {
		dir := tempDir(t)
		path, ckpt := filepath.Join(dir, name), filepath.Join(dir, "ckpt")
		first := Loop{Session: newLinear(), Batch: 4, Epochs: 3}
		first.Hook(logger(path).hook(false))
		_, err := first.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		stop := Hook{Name: "stop", Step: func(_ context.Context, s *State) error { s.Stop("enough"); return nil }}
		for _, hooks := range [][]Hook{{stop}, nil} {
			loop := Loop{Session: newLinear(), Batch: 4, Epochs: 2, Resume: ckpt}
			loop.Hook(append(hooks, logger(path).hook(false), Checkpoint{Folder: ckpt}.Hook())...)
			_, err = loop.Run(t.Context(), samples(t, 8))
			require.NoError(t, err)
		}
		require.Equal(t, append(upTo(3), upTo(2)...), linesIn(t, path))
	}
}

// A resumed run with continueOnError begins although its file cannot be opened, and adds the lines
// later.
func TestLogFileThatOpensLater(t *testing.T) {
	for name, logger := range loggers {
		dir := tempDir(t)
		path, ckpt := filepath.Join(dir, "logs", name), filepath.Join(dir, "ckpt")
		run := func(epochs int, hooks ...Hook) (*History, string, error) {
			var log bytes.Buffer
			loop := Loop{Session: newLinear(), Batch: 4, Epochs: epochs, Resume: ckpt, Log: warnings(&log)}
			loop.Hook(append(hooks, Checkpoint{Folder: ckpt}.Hook())...)
			h, err := loop.Run(t.Context(), samples(t, 8))
			return h, log.String(), err
		}
		_, _, err := run(2, logger(path).hook(false))
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(filepath.Dir(path)))
		require.NoError(t, os.WriteFile(filepath.Dir(path), nil, 0o666)) // a file in place of the folder

		_, _, err = run(3, logger(path).hook(false))
		require.ErrorIs(t, err, syscall.ENOTDIR)
		require.ErrorContains(t, err, "at start")

		_, log, err := run(3, logger(path).hook(true))
		var failed *LogError
		require.ErrorAs(t, err, &failed)
		require.True(t, failed.Final)
		require.Equal(t, 1, failed.Missing)
		require.Equal(t, 1, strings.Count(log, "without a line in the log file"))

		h, log, err := run(6, logger(path).hook(true), Hook{Name: "way", Epoch: func(_ context.Context, s *State) error {
			if s.Epoch == 5 {
				return os.Remove(filepath.Dir(path))
			}
			return nil
		}})
		require.NoError(t, err)
		require.Len(t, h.Records, 6)
		require.Equal(t, upTo(6), linesIn(t, path))
		require.Equal(t, 1, strings.Count(log, "without a line in the log file"))
	}
}

// A device has no content.
func TestLogToADevice(t *testing.T) {
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: 2}
	loop.Hook(HistoryFile(os.DevNull, false), HistoryFile(filepath.Join(tempDir(t), "run.csv"), false))
	h, err := loop.Run(t.Context(), samples(t, 8))
	require.NoError(t, err)
	require.Len(t, h.Records, 2)
	require.False(t, slices.ContainsFunc(names(t, filepath.Dir(os.DevNull)), func(n string) bool { return strings.HasPrefix(n, files.ProbePrefix) }))
}
