package launch

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/cluster"
)

// events is a standard error that calls a function at each line.
type events func(line string)

func (e events) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		e(line)
	}
	return len(b), nil
}

// script runs a shell script as each rank, which finds its index in $rank. The shell function
// waits waits for a signal.
func script(text string) []string {
	return []string{"sh", "-c", `rank=${TF_CONFIG##*'"index":'}; rank=${rank%%[!0-9]*}; waits() { sleep 1000 & wait; }; ` + text}
}

func TestEachRankHasItsCluster(t *testing.T) {
	var log bytes.Buffer
	require.NoError(t, Run(t.Context(), Options{Args: script(`echo "$TF_CONFIG" >&2; printf rest >&2`), Ranks: 3, Stderr: &log}))
	seen := map[int]*cluster.Cluster{}
	for line := range strings.Lines(log.String()) {
		text := strings.TrimSpace(line[max(0, strings.IndexByte(line, '{')):])
		if !strings.HasPrefix(text, "{") {
			assert.Regexp(t, `^(\[rank [12]\] )?rest\n$`, line)
			continue
		}
		c, err := cluster.FromEnvironment(func(name string) (string, bool) { return text, name == "TF_CONFIG" })
		require.NoError(t, err)
		prefix := map[int]string{0: "", 1: "[rank 1] ", 2: "[rank 2] "}[c.Rank]
		assert.True(t, strings.HasPrefix(line, prefix+"{"), line)
		seen[c.Rank] = c
	}
	require.Len(t, seen, 3, "%s", &log)
	assert.Equal(t, 3, strings.Count(log.String(), "rest\n"))
	assert.Len(t, seen[0].Workers, 3)
	assert.Equal(t, seen[0].Workers, seen[2].Workers)
}

func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name, script string
		cancel       bool // after all ranks have printed ready
		grace, kill  time.Duration
		min          int
		rank, code   int    // -1 for one of several ranks
		want         string // of the error; empty for none
	}{
		{"none", `exit 0`, false, 0, 0, 0, 0, 0, ""},
		{"a rank fails, and the others are stopped", `[ $rank = 1 ] && exit 5; trap "exit 130" TERM; waits`, false, 0, 0, 0, 1, 5, "rank 1 of 3 ended with exit code 5"},
		{"rank 0 fails", `[ $rank = 0 ] && exit 4; trap "exit 0" TERM; waits`, false, 0, 0, 0, 0, 4, "rank 0 of 3 ended with exit code 4"},
		{"a rank crashes", `[ $rank = 2 ] && kill -SEGV $$; trap "exit 0" TERM; waits`, false, 0, 0, 0, 2, 1, "rank 2 of 3 was killed by signal: segmentation fault"},
		{"a rank has ended before", `[ $rank = 1 ] || exit 0; exit 3`, false, 0, 0, 0, 1, 3, "rank 1 of 3 ended with exit code 3"},
		{"interrupted", `trap "exit 13$rank" TERM; echo ready >&2; waits`, true, 0, 0, 0, 0, 130, "rank 0 of 3 ended with exit code 130"},
		{"interrupted at the end", `trap "exit 0" TERM; echo ready >&2; waits`, true, 0, 0, 0, 0, 0, ""},
		{"a second signal", `trap "" TERM; trap "exit 7" INT; echo ready >&2; while :; do waits; done`, true, time.Millisecond, time.Hour, 0, 0, 7, "rank 0 of 3 ended with exit code 7"},
		{"SIGKILL", `trap "" TERM INT; echo ready >&2; while :; do waits; done`, true, time.Millisecond, time.Millisecond, 0, 0, 1, "rank 0 of 3 was killed because it had not ended in time"},
		{"a lost rank", `[ $rank = 1 ] && kill -KILL $$; [ $rank = 2 ] && exit 1; exit 0`, false, 0, 0, 1, 0, 0, ""},
		{"too many lost ranks", `[ $rank = 1 ] && kill -KILL $$; [ $rank = 2 ] && exit 5; trap "exit 130" TERM; waits`, false, 0, 0, 2, -1, 0, "rank [12] of 3 .*"},
		{"rank 0 is lost", `[ $rank = 0 ] && kill -KILL $$; trap "exit 130" TERM; waits`, false, 0, 0, 1, 0, 1, "rank 0 of 3 was killed by SIGKILL.*"},
		{"a rank that would fail again", `[ $rank = 2 ] && exit 2; trap "exit 130" TERM; waits`, false, 0, 0, 1, 2, 2, "rank 2 of 3 ended with exit code 2"},
		{"a rank waits when rank 0 has succeeded", `[ $rank = 2 ] || exit 0; trap "exit 130" TERM; waits`, false, 0, 0, 2, 0, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ready := 0
			err := Run(ctx, Options{Args: script(c.script), Ranks: 3, MinRanks: c.min, Grace: c.grace, killAfter: c.kill, Stderr: events(func(line string) {
				if strings.HasSuffix(line, "ready\n") {
					ready++
				}
				if ready == 3 && c.cancel {
					cancel()
				}
			})})
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			var failed *Error
			require.ErrorAs(t, err, &failed)
			assert.Regexp(t, "^"+c.want+"$", err)
			if c.rank < 0 { // one of several
				return
			}
			assert.Equal(t, c.rank, failed.Rank)
			assert.Equal(t, c.code, failed.Code)
		})
	}
}

func TestStartFails(t *testing.T) {
	err := Run(t.Context(), Options{Args: []string{"no-such-program"}, Ranks: 2, Stderr: os.Stderr})
	assert.ErrorContains(t, err, "rank 0: cannot start no-such-program")
	err = Run(t.Context(), Options{Args: []string{"true"}, Ranks: maxRanks + 1, Stderr: os.Stderr})
	assert.ErrorContains(t, err, "257 ranks on this machine: expected at most 256")
}

func TestLines(t *testing.T) {
	var got bytes.Buffer
	out := &output{w: &got}
	l := &lines{out: out, prefix: "> "}
	for _, part := range []string{"a", "b\nc", "", "\n\nd", strings.Repeat("x", maxLine), "e\nf"} {
		n, err := l.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	l.flush()
	l.flush()
	assert.Equal(t, "> ab\n> c\n> \n> d"+strings.Repeat("x", maxLine)+"\n> e\n> f\n", got.String())
}
