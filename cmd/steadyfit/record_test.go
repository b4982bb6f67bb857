package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/train"
)

// A model with its adapter, merged or not, reads data as the training of the adapter did: columns
// by their names, in any order.
func TestAdapterKeepsItsRecord(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	const base = "../../session/testdata/digits-lora"
	var header string
	for i := range 64 {
		header += fmt.Sprintf("c%d,", i)
	}
	rows := "label\n"
	for i := range 10 {
		rows += strings.Repeat("0,", 64) + fmt.Sprintf("class %d\n", i)
	}
	rows = strings.ReplaceAll(rows, "\n0,0,", "\n16,3,")
	require.NoError(t, os.WriteFile(in("tenant.csv"), []byte(header+rows), 0o666))
	swapped := strings.ReplaceAll(strings.Replace(header, "c0,c1,", "c1,c0,", 1)+rows, "\n16,3,", "\n3,16,")
	require.NoError(t, os.WriteFile(in("swapped.csv"), []byte(swapped), 0o666))
	require.NoError(t, os.WriteFile(in("last.csv"), []byte(header+"label\n"+strings.Repeat("0,", 64)+"class 9\n"), 0o666))
	require.NoError(t, os.WriteFile(in("output.csv"), []byte(header+"output\n"+strings.Repeat("0,", 64)+"7\n"), 0o666))
	c := train.Config{Model: base, Data: train.Data{Path: in("tenant.csv")}, Loop: fit.Loop{Batch: 10, Epochs: 1},
		OutAdapter: in("adapter")}
	_, err := train.Run(t.Context(), c)
	require.NoError(t, err)
	c.Adapter, c.OutAdapter, c.Data.Path = c.OutAdapter, "", in("swapped.csv")
	_, err = train.Run(t.Context(), c)
	require.NoError(t, err)
	steadyfit := func(want int, args ...string) string {
		var stdout, stderr bytes.Buffer
		require.Equal(t, want, run(t.Context(), args, &stdout, &stderr), "%v: %s", args, &stderr)
		return stdout.String() + stderr.String()
	}
	steadyfit(0, "merge", "--model", base, "--adapter", in("adapter"), "--out", in("merged"))
	for _, model := range [][]string{{"--model", base, "--adapter", in("adapter")}, {"--model", in("merged")}} {
		var predictions [2]string
		for i, table := range []string{"tenant.csv", "swapped.csv"} {
			steadyfit(0, append([]string{"predict", "--data", in(table), "--out", in("p.csv")}, model...)...)
			text, err := os.ReadFile(in("p.csv"))
			require.NoError(t, err)
			predictions[i] = string(text)
			steadyfit(0, append([]string{"predict", "--data", in(table), "--out", in("p.csv"), "--keep", "label,c1"}, model...)...)
			kept, err := os.ReadFile(in("p.csv"))
			require.NoError(t, err)
			assert.Contains(t, "label,c1,"+strings.SplitN(string(text), "\n", 2)[0], strings.SplitN(string(kept), "\n", 2)[0])
			assert.Contains(t, string(kept), "_class 0,")
			assert.Contains(t, string(kept), "\nclass 0,3,")
		}
		assert.Equal(t, predictions[0], predictions[1])
		steadyfit(0, append([]string{"predict", "--data", in("output.csv"), "--out", in("p.csv"), "--keep", "output"},
			model...)...)
		kept, err := os.ReadFile(in("p.csv"))
		require.NoError(t, err)
		assert.Regexp(t, "^data.output,output_class 0,.*\n7,", string(kept))
		steadyfit(0, append([]string{"evaluate", "--data", in("last.csv")}, model...)...)
	}
}
