package child

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTelling(t *testing.T) {
	for _, test := range []struct{ name, log, want string }{
		{"empty", "", ""},
		{"last line", "one\ntwo\n", "two"},
		{"a check before Go's trace", "F0000 check.cc:1] Check failed: x\nSIGABRT: abort\nPC=0x1\ngoroutine 1", "F0000 check.cc:1] Check failed: x"},
		{"a fault in C", "loading\nSIGSEGV: segmentation violation\nPC=0x1\ngoroutine 1", "SIGSEGV: segmentation violation"},
		{"the last of several", "panic: a\npanic: b\ngoroutine 1", "panic: b"},
		{"long", "panic: " + strings.Repeat("é", 200), "panic: " + strings.Repeat("é", 96) + "..."},
	} {
		t.Run(test.name, func(t *testing.T) { assert.Equal(t, test.want, Telling(test.log)) })
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var tail Tail
	for range 5 * logKeep / 8 {
		_, _ = tail.Write([]byte("1234567\n"))
	}
	_, _ = tail.Write([]byte("\n  last \xff\n"))
	assert.LessOrEqual(t, len(tail.String()), logKeep)
	assert.LessOrEqual(t, cap(tail.kept), 4*logKeep)
	assert.Equal(t, []string{"1234567", "last ?"}, tail.Lines(2))
	assert.Empty(t, (&Tail{}).Lines(20))
}
