package nearest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSort(t *testing.T) {
	names := []string{"infer", "train_n", "train"}
	require.Equal(t, []string{"train", "train_n", "infer"}, Sort("Tran", names))
	require.Equal(t, []string{"infer", "train_n", "train"}, names, "the argument stays")
	require.Equal(t, []string{"a", "b"}, Sort("c", []string{"b", "a"}), "equally near: by name")
	require.Empty(t, Sort("a", nil))
	long := strings.Repeat("x", 1<<20)
	require.Equal(t, []string{long + "b", "y"}, Sort(long+"a", []string{"y", long + "b"}))
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "abc", 0}, {"", "four", 4}, {"kitten", "sitting", 3}, {"TF_X", "TFX", 1}, {"a", "A", 1}} {
		require.Equal(t, c.want, distance(c.a, c.b), "%q %q", c.a, c.b)
		require.Equal(t, c.want, distance(c.b, c.a), "%q %q", c.b, c.a)
	}
}

func TestMeant(t *testing.T) {
	names := []string{"epochs", "batch"}
	require.Equal(t, "epochs", Meant("epoch", names))
	require.Equal(t, "epochs", Meant("EPOCH", names))
	require.Empty(t, Meant("depths", names))
	require.Empty(t, Meant("ba", names), "too short")
	require.Empty(t, Meant("batch", nil))
}
