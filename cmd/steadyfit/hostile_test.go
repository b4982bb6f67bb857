package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/memory"
)

// TestHostileInputs runs the command with files that expand without end and with options that no
// machine can satisfy. Each is a usage error that says what is wrong, before memory is allocated
// for it.
//
//lane:skip race (measures memory)
func TestHostileInputs(t *testing.T) {
	const most = memory.GiB
	dir := t.TempDir()
	file := func(name string, write func(w io.Writer)) string {
		t.Helper()
		path := filepath.Join(dir, name)
		f, err := os.Create(path)
		require.NoError(t, err)
		write(f)
		require.NoError(t, f.Close())
		return path
	}
	write := func(w io.Writer, text string) {
		_, err := io.WriteString(w, text)
		require.NoError(t, err)
	}
	// header returns the header of an array of bytes.
	header := func(shape string) string {
		var b strings.Builder
		require.NoError(t, writeNPY(&b, data.Array{Shape: []int{1}, Values: []uint8{0}}))
		text := strings.Replace(b.String()[:b.Len()-1], "(1,)", shape, 1)
		return text[:b.Len()-2-(len(shape)-len("(1,)"))-1] + "\n"
	}
	columns := func(name, pattern string) string {
		return file(name, func(w io.Writer) {
			var text strings.Builder
			for i := range 1_000_000 {
				fmt.Fprintf(&text, pattern, strconv.Itoa(i))
			}
			write(w, text.String()+"label\n"+strings.Repeat("1,", 1_000_000)+"3\n")
		})
	}
	fit := []string{"fit", "--model", "builtin:digits", "--data"}
	on := func(path string, args ...string) []string { return append(append(fit[:4:4], path), args...) }
	digits := func(args ...string) []string { return on("builtin:digits", args...) }
	huge := strconv.Itoa(math.MaxInt)
	for _, c := range []struct {
		name string
		args []string
		says []string
	}{
		{"csv of a million columns", on(columns("million.csv", "c%s,")), []string{"million.csv", "[1000000]"}},
		{"csv of a million columns of one name", on(columns("same.csv", "c%.0s,")),
			[]string{"same.csv: line 1, column", "a unique name"}},
		{"npy that promises much", on(file("promise.npy", func(w io.Writer) { write(w, header("(1099511627776,)")) })),
			[]string{"promise.npy"}},
		{"data without end", on("/dev/zero"), []string{"/dev/zero"}},
		{"full history", digits("--history", "/dev/full"), []string{"--history /dev/full: the file is not a history"}},
		{"batch", digits("--batch", huge), []string{"expected 1 to 2147483647"}},
		{"batch of evaluate", []string{"evaluate", "--model", "builtin:digits", "--data", "builtin:digits", "--batch", huge},
			[]string{"expected 1 to 2147483647"}},
		{"batch of bench", []string{"bench", "--model", "builtin:digits", "--batch", "1000000000"},
			[]string{"input x", "smaller --batch"}},
		{"pairs of matrix", []string{"matrix", "--workloads", "W0", "--pairs", "1000000000"},
			[]string{"expected 1 to 1000"}},
		{"largest batch of bench", []string{"bench", "--model", "builtin:digits", "--batch", "2147483647"},
			[]string{"input x", "smaller --batch"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			cmd := program(t, c.args...)
			limited := exec.CommandContext(ctx, cmd.Path)
			limited.Env = cmd.Env
			out, err := limited.CombinedOutput()
			require.NoError(t, ctx.Err(), "it does not come to its end")
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, exitUsage, exit.ExitCode(), "%s", out)
			text := string(out)
			assert.Contains(t, text, "steadyfit: ", "no crash, whose exit code is 2, too")
			for _, says := range c.says {
				assert.Contains(t, text, says)
			}
			if usage, ok := exit.SysUsage().(*syscall.Rusage); ok && !raceDetector() {
				assert.Less(t, memory.Bytes(usage.Maxrss)*memory.KiB, most)
			}
		})
	}
}
