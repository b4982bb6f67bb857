package child

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCauseLine(t *testing.T) {
	for _, test := range []struct{ name, log, want string }{
		{"empty", "", ""},
		{"last line", "one\ntwo\n", "two"},
		{"TensorFlow only informs", "one\nWARNING: All log messages before absl::InitializeLog() is called are written to " +
			"STDERR\nI0000 00:00:1795385686.188613    2790 port.cc:153] oneDNN custom operations are on.\n2026-11-22 " +
			"20:14:33.473431: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized to " +
			"use available CPU instructions in performance-critical operations.\nTo enable the following instructions: " +
			"AVX2 AVX512F FMA, in other operations, rebuild TensorFlow with the appropriate compiler flags.", "one"},
		{"nothing but that", "I0000 00:00:1795385686.188613    2790 port.cc:153] oneDNN custom operations are on.", ""},
		{"a check before Go's trace", "F0000 check.cc:1] Check failed: x\nSIGABRT: abort\nPC=0x1\ngoroutine 1",
			"F0000 check.cc:1] Check failed: x"},
		{"a fault in C", "loading\nSIGSEGV: segmentation violation\nPC=0x1\ngoroutine 1", "SIGSEGV: segmentation violation"},
		{"the last of several", "panic: a\npanic: b\ngoroutine 1", "panic: b"},
		{"long", "panic: " + strings.Repeat("é", 200), "panic: " + strings.Repeat("é", 96) + "..."},
	} {
		t.Run(test.name, func(t *testing.T) { assert.Equal(t, test.want, CauseLine(test.log)) })
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
	assert.True(t, strings.HasSuffix(tail.String(), "1234567\n\n  last ?\n"))
	assert.Empty(t, (&Tail{}).String())
}

func TestOutOfMemory(t *testing.T) {
	const oom = "W0000 op_kernel.cc:1] OP_REQUIRES failed at conv.cc:1 : RESOURCE_EXHAUSTED: OOM when allocating " +
		"tensor with shape[8]\n"
	const segv = "SIGSEGV: segmentation violation\nPC=0x1 m=2\n\ngoroutine 1 [syscall]:\nmain.main()\n"
	later := strings.Repeat("epoch 1/3  step 8\n", 40)
	for _, c := range []struct {
		name, log string
		want      bool
	}{
		{"C++", "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nSIGABRT: abort\n" + later, true},
		{"a kernel that does not check", oom + "fatal error: unexpected signal during runtime execution\n" + segv + later,
			true},
		{"a kernel that does not check, without a word of the crash", later + oom, true},
		{"C", "cannot allocate memory for thread-local data: ABORT\n", true},
		{"Go", "fatal error: runtime: out of memory\n\nruntime stack:\n" + later, true},
		{"long before", oom + later + segv, false},
		{"another crash", segv, false},
		{"nothing", "", false},
	} {
		assert.Equal(t, c.want, OutOfMemory(c.log), c.name)
	}
}
