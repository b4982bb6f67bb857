package child

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// logKeep is the number of bytes at the end of a log that are searched for a cause. After the message of
// a library that aborts, Go prints the stacks of all goroutines.
const logKeep = 256 << 10

// Tail keeps the last 256 KiB written to it. It is for one goroutine at a time.
type Tail struct{ kept []byte }

// Write appends to the tail. It never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if len(t.kept) > 2*logKeep {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-logKeep:]...)
	}
	return len(p), nil
}

// String returns the tail as valid UTF-8.
func (t *Tail) String() string {
	kept := t.kept
	if len(kept) > logKeep {
		kept = kept[len(kept)-logKeep:]
	}
	return string(bytes.ToValidUTF8(kept, []byte("?")))
}

// causes lists words that mark the line with the cause, best first. The last lines of a log are often
// stacks, and Go's line about the signal follows the message of the library.
var causes = [][]string{
	{"terminate called", "what():", "fatal error:", "panic:", "F0000", "Check failed", "MemoryError", "out of memory",
		"OOM"},
	{"SIGSEGV:", "SIGABRT:", "SIGBUS:", "SIGFPE:", "SIGILL:"},
}

// informs matches TensorFlow's log lines of level INFO, the line before the first of them, and the second
// line of cpu_feature_guard.cc.
var informs = regexp.MustCompile(`^(I\d{4} |\d{4}-\d\d-\d\d \S+ I |WARNING: All log messages before absl::InitializeLog|To enable the following instructions: )`)

// CauseLine returns the line of a log that names the cause of a crash, truncated to 200 bytes. If there
// is no such line, it returns the last line above TensorFlow's level INFO.
func CauseLine(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	for _, words := range causes {
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

var crashes = regexp.MustCompile(`terminate called|fatal error:|SIG(SEGV|ABRT|BUS|FPE|ILL):`)

// noMemory matches messages about failed allocations by TensorFlow, C++, C and Go.
var noMemory = regexp.MustCompile(`std::bad_alloc|OOM when allocating|[Oo]ut of memory|[Cc]annot allocate memory`)

// OutOfMemory reports whether a log mentions a failed allocation within 20 lines before the first line of
// the crash or 2 lines after it. Some TensorFlow kernels do not check for failed allocations and crash.
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
