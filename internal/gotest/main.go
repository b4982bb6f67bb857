// Command gotest runs `go test` and prints what go test prints without -v,
// plus one line for each skipped test with its reason, the slowest tests, and a last
// line that counts. go test alone hides skips, so a run on a machine that lacks something
// looks the same as a complete one.
//
//	go run ./internal/gotest -title "unit tests" -- -race ./tfbind
//
// Arguments after -- go to go test. With -summary the counts are appended to a
// file, one line per run; `gotest -total FILE` prints and sums such a file, and
// exits 1 if a test failed. Only the Makefile uses this command.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("gotest", flag.ContinueOnError)
	flags.SetOutput(stderr)
	title := flags.String("title", "tests", "name of this run in the summary")
	summary := flags.String("summary", "", "file to append the counts to")
	total := flags.String("total", "", "print and sum this summary instead of running tests")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *total != "" {
		return printTotal(*total, stdout, stderr)
	}
	// The environment's go is the one that runs this.
	cmd := exec.Command("go", append([]string{"test", "-json"}, flags.Args()...)...)
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintf(stderr, "gotest: %v\n", err)
		return 1
	}
	var c counts
	readErr := c.read(out, stdout)
	waitErr := cmd.Wait()
	c.title = *title
	c.writeSlowest(stdout)
	fmt.Fprintln(stdout, c.line())
	if *summary != "" {
		if err := appendLine(*summary, c.line()); err != nil {
			fmt.Fprintf(stderr, "gotest: %v\n", err)
			return 1
		}
	}
	if readErr != nil {
		fmt.Fprintf(stderr, "gotest: %v\n", readErr)
		return 1
	}
	var exit *exec.ExitError
	if errors.As(waitErr, &exit) {
		return exit.ExitCode()
	}
	if waitErr != nil {
		fmt.Fprintf(stderr, "gotest: %v\n", waitErr)
		return 1
	}
	return 0
}

// event is one line of test2json output (`go doc test2json`).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64 // s
}

// counts are top-level tests and examples; subtests are their parts, except
// that a skipped subtest counts as skipped, since its parent passes without it.
type counts struct {
	title                   string
	passed, failed, skipped int
	slow                    []event // the slowest tests, with those that they are parts of
}

// slowest is how many tests are named with their time: a run that is too slow is mended there.
const slowest = 12

// timed keeps a test that has ended, if it is among the slowest.
func (c *counts) timed(e event) {
	const worthATry = 5 // s
	if e.Test == "" || e.Elapsed < worthATry {
		return
	}
	c.slow = append(c.slow, e)
	slices.SortFunc(c.slow, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
	c.slow = c.slow[:min(len(c.slow), slowest)]
}

func (c *counts) writeSlowest(out io.Writer) {
	for _, e := range c.slow {
		fmt.Fprintf(out, "slow: %4.0f s  %s in %s\n", e.Elapsed, e.Test, e.Package)
	}
}

func (c counts) line() string {
	return fmt.Sprintf("%s: %d passed, %d failed, %d skipped", c.title, c.passed, c.failed, c.skipped)
}

// read prints the events as plain go test output and counts them.
func (c *counts) read(in io.Reader, out io.Writer) error {
	// Output of a test is held back until it is known to have failed.
	held := map[string]*strings.Builder{}
	failedTests := map[string]bool{} // packages in which a test failed
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			c.event(line, held, failedTests, out)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *counts) event(line []byte, held map[string]*strings.Builder, failedTests map[string]bool, out io.Writer) {
	var e event
	if !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &e) != nil {
		out.Write(line) // a message of the go command itself
		return
	}
	key := e.Package + "\x00" + e.Test
	if e.Action == "pass" || e.Action == "fail" {
		c.timed(e)
	}
	switch e.Action {
	case "build-output":
		io.WriteString(out, e.Output)
	case "output":
		if e.Test != "" {
			b := held[key]
			if b == nil {
				b = &strings.Builder{}
				held[key] = b
			}
			b.WriteString(e.Output)
			return
		}
		if !empty(e.Output) {
			io.WriteString(out, e.Output)
		}
	case "pass":
		if e.Test != "" && !strings.Contains(e.Test, "/") {
			c.passed++
		}
		delete(held, key)
	case "skip":
		if e.Test != "" {
			c.skipped++
			fmt.Fprintf(out, "skipped %s in %s: %s\n", e.Test, e.Package, reason(held[key]))
		}
		delete(held, key)
	case "fail":
		if b := held[key]; b != nil {
			io.WriteString(out, b.String())
			delete(held, key)
		}
		switch {
		case e.Test == "":
			// A package that does not build, or whose process died, fails
			// without a failed test.
			if !failedTests[e.Package] {
				c.failed++
				c.release(e.Package, held, out)
			}
		case !strings.Contains(e.Test, "/"):
			c.failed++
			failedTests[e.Package] = true
		}
	}
}

// empty reports whether a line of a package says nothing: PASS alone stands
// above a closing line that says ok, and with -run most packages have no such test.
func empty(line string) bool {
	return line == "PASS\n" || line == "testing: warning: no tests to run\n" ||
		strings.HasSuffix(line, "[no tests to run]\n") || strings.HasSuffix(line, "[no test files]\n")
}

// release prints what unfinished tests of a dead process had written.
func (c *counts) release(pkg string, held map[string]*strings.Builder, out io.Writer) {
	for key, b := range held {
		if strings.HasPrefix(key, pkg+"\x00") {
			io.WriteString(out, b.String())
			delete(held, key)
		}
	}
}

// reason picks the message of t.Skip from a skipped test's output.
func reason(b *strings.Builder) string {
	if b == nil {
		return "no reason given"
	}
	var kept []string
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		kept = append(kept, line)
	}
	if len(kept) == 0 {
		return "no reason given"
	}
	return strings.Join(kept, " ")
}

func appendLine(path, line string) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = fmt.Fprintln(f, line)
	return err
}

// printTotal prints the lines of a summary and their sum.
func printTotal(path string, stdout, stderr io.Writer) int {
	text, err := os.ReadFile(path)
	if err != nil {
		fmt.Fprintf(stderr, "gotest: %v\n", err)
		return 1
	}
	sum := counts{title: "total"}
	for line := range strings.Lines(string(text)) {
		_, rest, found := strings.Cut(strings.TrimSpace(line), ": ")
		var p, f, s int
		if _, err := fmt.Sscanf(rest, "%d passed, %d failed, %d skipped", &p, &f, &s); !found || err != nil {
			fmt.Fprintf(stderr, "gotest: %s: unreadable line %q\n", path, line)
			return 1
		}
		fmt.Fprintf(stdout, "  %s\n", strings.TrimSpace(line))
		sum.passed += p
		sum.failed += f
		sum.skipped += s
	}
	fmt.Fprintln(stdout, sum.line())
	if sum.failed > 0 {
		return 1
	}
	return 0
}
