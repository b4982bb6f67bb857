//go:build galeone

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/program"
	"steadyfit/savedmodels"
)

func TestEveryWorkload(t *testing.T) {
	options := map[string][]string{
		"W0": {"gc=step"}, "W2": {"release=drop"}, "W4": {"close=session"},
		"S0": {"rows=100", "data=disk rows=100"},
	}
	for _, w := range matrix.Workloads() {
		if _, ok := w.Takes[matrix.Galeone]; !ok || w.Like != "" {
			continue
		}
		for _, option := range append([]string{""}, options[w.ID]...) {
			t.Run(w.ID+" "+option, func(t *testing.T) {
				args := []string{"--steps=4", "--epoch=2", "--batch=8", "--scratch=" + t.TempDir()}
				if w.Model != "" {
					m, err := savedmodels.Builtin(w.Model)
					require.NoError(t, err)
					args = append(args, "--model="+m.Dir)
				}
				for _, o := range strings.Fields(option) {
					args = append(args, "--"+o)
				}
				var out bytes.Buffer
				require.NoError(t, workload(w.ID, args, &out))
				facts := map[string]string{}
				require.NoError(t, json.Unmarshal(out.Bytes(), &facts))
				assert.NotEmpty(t, facts[program.FactLossLast])
			})
		}
	}
}
