package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestGolden compares what the command prints and returns with the transcripts in
// testdata/golden. With STEADYFIT_UPDATE set, it writes the transcripts instead.
//
// A script runs the command with run, or with fit, which stands for fit of the model
// and the data builtin:digits. Both write to the file transcript: the arguments, standard
// output, standard error with "2> " before each line, and an exit code other than 0.
// With -n as the first argument, every number in the output is written as N. TensorFlow's
// own log is left out, since it depends on the processor.
//
//lane:skip onednn (trains nothing)
func TestGolden(t *testing.T) {
	if raceDetector() {
		t.Skip("what the command prints does not depend on the race detector; the tests without it have this one")
	}
	p := scriptParams(t, "testdata/golden")
	p.Cmds["run"] = func(ts *testscript.TestScript, neg bool, args []string) { transcribe(ts, "run", nil, args) }
	p.Cmds["fit"] = func(ts *testscript.TestScript, neg bool, args []string) {
		transcribe(ts, "fit", []string{"fit", "--model", "builtin:digits", "--data", "builtin:digits"}, args)
	}
	testscript.Run(t, p)
}

var (
	number = regexp.MustCompile(`[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?`)
	// aligned matches the space between two columns.
	aligned = regexp.MustCompile(`(\S) {2,}`)
	// hashed matches the folder of a built-in model, with the hash of its content.
	hashed        = regexp.MustCompile(`(models/[a-z0-9-]+)-[0-9a-f]{16}`)
	tensorflowLog = regexp.MustCompile(`^(WARNING: All log messages before absl|[IWEF][0-9]{4} )`)
)

// transcribe runs the command and adds its output to the file transcript.
func transcribe(ts *testscript.TestScript, name string, first, args []string) {
	mask := func(s string) string { return hashed.ReplaceAllString(s, "$1-HASH") }
	shown := strings.Join(append([]string{name}, args...), " ")
	if len(args) > 0 && args[0] == "-n" {
		args = args[1:]
		// A figure of a benchmark, which follows a tab, may be negative: memory may shrink.
		mask = func(s string) string {
			return aligned.ReplaceAllString(number.ReplaceAllString(strings.ReplaceAll(s, "\t-", "\t"), "N"), "$1  ")
		}
	}
	code := 0
	var exit *exec.ExitError
	if err := ts.Exec("steadyfit", append(first, args...)...); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	// Package protobuf uses another kind of space in its errors in some builds.
	named := strings.NewReplacer("\u00a0", " ", ts.Getenv("WORK"), "$WORK", ts.Getenv("MODELS"), "$MODELS",
		ts.Getenv("STEADYFIT_TENSORFLOW"), "$TENSORFLOW")
	var text strings.Builder
	fmt.Fprintf(&text, "$ %s\n%s", named.Replace(shown), named.Replace(mask(ts.ReadFile("stdout"))))
	for line := range strings.Lines(ts.ReadFile("stderr")) {
		if !tensorflowLog.MatchString(line) {
			text.WriteString("2> " + named.Replace(mask(line)))
		}
	}
	if code != 0 {
		fmt.Fprintf(&text, "exit %d\n", code)
	}
	file, err := os.OpenFile(ts.MkAbs("transcript"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	ts.Check(err)
	_, err = file.WriteString(text.String() + "\n")
	ts.Check(errors.Join(err, file.Close()))
}
