package fit

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgressPrintsALinePerEpoch(t *testing.T) {
	var out bytes.Buffer
	loop := Loop{Session: newLinear(), Batch: 4, Epochs: 10, Validation: samples(t, 4), LearningRate: Constant(0.01)}
	h := complete(t, &loop, samples(t, 8), Progress(&out))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 10)
	form := regexp.MustCompile(`^epoch (1/10 |10/10)  step (2 |20)  loss \S+ +mae \S+ +val_loss \S+ +val_mae \S+ +learning_rate 0.01 +steps/s \S+ +data_wait \d+\.\d%`)
	require.Regexp(t, form, lines[0])
	require.Regexp(t, form, lines[9])
	require.True(t, strings.HasPrefix(lines[0], "epoch 1/10   step 2   "), lines[0])
	if h.Last().Memory.RSS.OK {
		require.Regexp(t, `  rss \d+\.\d [KMG]iB`, lines[0])
	}
	require.NotContains(t, out.String(), "\x1b")
	require.NotContains(t, out.String(), "\r")

	// Two or more spaces separate the names and values of every line.
	for _, line := range lines {
		for _, field := range regexp.MustCompile(`  +`).Split(line, -1) {
			name, value, ok := strings.Cut(field, " ")
			require.True(t, ok && name != "" && value != "", "%q of %q", field, line)
		}
	}
}

func TestProgressSaysWhyItEnds(t *testing.T) {
	var out bytes.Buffer
	dir := tempDir(t)
	l := newLinear()
	loop := Loop{Session: l, Batch: 4, Epochs: 2, Resume: dir}
	loop.Hook(Progress(&out), Checkpoint{Folder: dir}.Hook())
	_, err := interrupt(t, &loop, samples(t, 8), 3)
	require.ErrorIs(t, err, context.Canceled)
	require.NotContains(t, out.String(), "interrupted", "the error of the run says so")

	out.Reset()
	complete(t, &loop, samples(t, 8))
	require.True(t, strings.HasPrefix(out.String(), "resumed from "+dir+"/ckpt-3: 1 of 2 epochs done, step 3\nepoch "+
		"2/2  step 4  "), out.String())

	out.Reset()
	complete(t, &loop, samples(t, 8))
	require.Contains(t, out.String(), "\nstopped: already complete: "+dir+"/ckpt-4 has 2 of 2 epochs; a larger number "+
		"of epochs trains more; ")
}

// terminal returns Progress for a terminal with that many columns.
func terminal(out *bytes.Buffer, columns int) Hook {
	return (&progressView{w: out, terminal: true, width: func() int { return columns }}).hook()
}

func TestProgressBar(t *testing.T) {
	for _, c := range []struct {
		noColor string
		columns int
	}{{"", 140}, {"1", 140}, {"1", 60}} {
		t.Setenv("NO_COLOR", c.noColor)
		var out bytes.Buffer
		loop := Loop{Session: newLinear(), Batch: 4, Epochs: 2, Validation: samples(t, 4)}
		complete(t, &loop, samples(t, 40), terminal(&out, c.columns))
		require.Equal(t, c.noColor == "", strings.Contains(out.String(), "\x1b["), "%q", out.String())
		require.Contains(t, out.String(), "steps/")
		require.Regexp(t, `\repoch 1/2  loss \d`, out.String())
		require.Equal(t, c.columns > 100, regexp.MustCompile(`\repoch 1/2  loss \S+  mae \S+  rss [^\r]*steps/`).MatchString(out.String()), "%q", out.String())
		require.Contains(t, out.String(), "\repoch 2/2  validating")
		require.Contains(t, out.String(), "\repoch 1/2  step 10  loss ")
		require.Equal(t, 2, strings.Count(out.String(), "\n"), "bars are wiped, lines stay")
		require.True(t, strings.HasSuffix(out.String(), "\n"))
	}
}

// If a terminal is gone or standard error is on a full disk, only lines are lost. The run
// completes, and an interrupted run writes its checkpoint.
func TestProgressWithABrokenWriter(t *testing.T) {
	bar := (&progressView{w: broken{}, terminal: true, width: func() int { return 80 }}).hook()
	for _, hook := range []Hook{Progress(broken{}), bar} {
		dir := tempDir(t)
		var log bytes.Buffer
		l := newLinear()
		loop := Loop{Session: l, Batch: 4, Epochs: 12, Log: warnings(&log), Validation: samples(t, 4), Resume: dir}
		loop.Hook(hook, Checkpoint{Folder: dir, EveryEpochs: 100}.Hook())
		h, err := interrupt(t, &loop, samples(t, 12), 11)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, filepath.Join(dir, "ckpt-11"), h.Checkpoint)
		require.Equal(t, 1, strings.Count(log.String(), "progress cannot be printed"), "%s", log.String())
		require.Contains(t, log.String(), "no paper")
		h = complete(t, &loop, samples(t, 12))
		require.Len(t, h.Records, 12)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no paper") }
