package memory

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each kind of a mark is valid JSON.
func TestTextOfMark(t *testing.T) {
	for _, kind := range []string{"step", `a "b" \c`, "étape", "a\x01\a\xffb", ""} {
		m := &marks{kind: kind, steps: map[string]int{kind: 3}, counts: map[Layer]int64{"a": 1, "b": 2}}
		var back struct {
			Mark   string
			Steps  map[string]int
			Counts map[Layer]int64
		}
		require.NoError(t, json.Unmarshal(m.message(), &back), kind)
		require.Equal(t, strings.ToValidUTF8(kind, "\ufffd"), back.Mark)
		require.Equal(t, map[string]int{back.Mark: 3}, back.Steps)
		require.Equal(t, map[Layer]int64{"a": 1, "b": 2}, back.Counts)
	}
}
