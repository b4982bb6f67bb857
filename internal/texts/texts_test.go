package texts

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCount(t *testing.T) {
	assert.Equal(t, "0 steps", Count(0, "step"))
	assert.Equal(t, "1 step", Count(int64(1), "step"))
	assert.Equal(t, "2 steps", Count(2, "step"))
}

func TestList(t *testing.T) {
	assert.Empty(t, List(nil, "and"))
	assert.Equal(t, "a", List([]string{"a"}, "and"))
	assert.Equal(t, "a and b", List([]string{"a", "b"}, "and"))
	assert.Equal(t, "a, b or c", List([]string{"a", "b", "c"}, "or"))
}

func TestDuration(t *testing.T) {
	assert.Equal(t, "999ns", Duration(999))
	assert.Equal(t, "1.24ms", Duration(1_235_900*time.Nanosecond))
	assert.Equal(t, "2m3s", Duration(123_400*time.Millisecond))
}

func TestWrap(t *testing.T) {
	assert.Equal(t, "- the quick\n  brown\n  incomprehensible\n  fox",
		Wrap("- ", 2, " the quick brown\nincomprehensible fox", 12))
	assert.Equal(t, "é ö ü", Wrap("é ", 0, "ö ü", 5))
	assert.Equal(t, "- ", Wrap("- ", 2, "", 12))
}
