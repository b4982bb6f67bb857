// Package child is what a parent needs to know of a process that it has started
// and that has died: what its log says, whether the kernel killed it for memory,
// and how to end it together with what it has started itself.
//
// It decides nothing: whether a death is worth another try is up to packages
// matrix and session. It knows nothing of TensorFlow, and is pure Go.
package child

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// logKeep is how much of a child's standard error is looked through for a cause,
// in bytes: when a library aborts, Go's traces of all goroutines come after it.
const logKeep = 256 << 10

// Tail keeps the last 256 KiB of what is written to it. It is for one goroutine at
// a time.
type Tail struct{ kept []byte }

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if len(t.kept) > 2*logKeep {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-logKeep:]...)
	}
	return len(p), nil
}

// String is valid UTF-8, whatever was written.
func (t *Tail) String() string {
	kept := t.kept
	if len(kept) > logKeep {
		kept = kept[len(kept)-logKeep:]
	}
	return string(bytes.ToValidUTF8(kept, []byte("?")))
}

// Lines returns the last n lines that are not empty, each cut to 200 bytes.
func (t *Tail) Lines(n int) []string {
	var lines []string
	for line := range strings.Lines(t.String()) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		lines[i] = cut(line)
	}
	return lines
}

// telling are words of the line of a log that says what went wrong, as the last
// lines are often a trace. What Go says of the signal comes after what a library
// said when it aborted, and is worth less.
var telling = [][]string{
	{"terminate called", "what():", "fatal error:", "panic:", "F0000", "Check failed", "MemoryError", "out of memory", "OOM"},
	{"SIGSEGV:", "SIGABRT:", "SIGBUS:", "SIGFPE:", "SIGILL:"},
}

// informs is how TensorFlow begins a line that only informs, the one that comes before the
// first of them, and the second of two (cpu_feature_guard.cc).
var informs = regexp.MustCompile(`^(I\d{4} |\d{4}-\d\d-\d\d \S+ I |WARNING: All log messages before absl::InitializeLog|To enable the following instructions: )`)

// Telling is the line of a log that says what went wrong, cut to 200 bytes; the
// last line, if none is known to. Lines in which TensorFlow only informs are not among them.
func Telling(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	for _, words := range telling {
		for i := len(lines) - 1; i >= 0; i-- {
			for _, word := range words {
				if strings.Contains(lines[i], word) {
					return cut(strings.TrimSpace(lines[i]))
				}
			}
		}
	}
	for _, line := range slices.Backward(lines) {
		if !informs.MatchString(line) {
			return cut(strings.TrimSpace(line))
		}
	}
	return ""
}

// crashes are words of the first line that a crash writes.
var crashes = regexp.MustCompile(`terminate called|fatal error:|SIG(SEGV|ABRT|BUS|FPE|ILL):`)

// noMemory is what TensorFlow, C++, C and Go write when an allocation fails.
var noMemory = regexp.MustCompile(`std::bad_alloc|OOM when allocating|[Oo]ut of memory|[Cc]annot allocate memory`)

// OutOfMemory reports whether the log of a process that crashed says that an allocation
// had failed just before: in the 20 lines before the first line of the crash, or in the two
// after it. Some TensorFlow kernels do not check for a failed allocation.
func OutOfMemory(log string) bool {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	crash := slices.IndexFunc(lines, crashes.MatchString)
	if crash < 0 {
		crash = len(lines) - 1
	}
	return slices.ContainsFunc(lines[max(0, crash-20):min(len(lines), crash+3)], noMemory.MatchString)
}

func cut(line string) string {
	if len(line) > 200 {
		return strings.ToValidUTF8(line[:200], "") + "..."
	}
	return line
}
