package fit

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/rank"
)

// offers is a group of ranks that offer checkpoints; see run.source.
type offers struct {
	rank.Group
	others []int64
}

func (o offers) Gather(own int64) ([]int64, error) { return append([]int64{own}, o.others...), nil }

// Rank 0 decides from which checkpoint all ranks resume, and logs if a copy on another rank is
// newer.
func TestNewerCopy(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "ckpt-5"), 0o777))
	for _, c := range []struct {
		resume string
		others []int64
		source int
		says   string
	}{
		{dir, []int64{6, 0}, 0, ""},
		{dir, []int64{6, 10}, 0, "although another rank has a newer copy\" step=5 rank=2 copy=9"},
		{t.TempDir(), []int64{6, 10}, 2, "from a copy\" rank=2 step=9"},
		{"", []int64{6, 10}, 0, ""},
	} {
		var log bytes.Buffer
		r := &run{loop: &Loop{Resume: c.resume}, state: State{Log: warnings(&log)}, ranks: offers{others: c.others}}
		source, err := r.source()
		require.NoError(t, err)
		require.Equal(t, c.source, source)
		require.Contains(t, log.String(), c.says)
		require.Equal(t, c.says == "", log.Len() == 0)
	}
}
