//go:build galeone

package main

import (
	"bytes"
	"encoding/json"
	"slices"
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
		"W0": {"gc=step", "reset=reload"}, "W2": {"release=drop"}, "W3": {"shapes=pad"}, "W4": {"close=session", "reuse=1"},
		"W5": {"graph=sealed"}, "W6": {"fetches=fixed"}, "W8": {"goroutines=1"}, "W10": {"history=last"},
		"S0": {"rows=100", "data=disk rows=100"}, "S3": {"augment=1", "shapes=varying"},
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
				assert.NotEmpty(t, facts["binding"])
				trained := !slices.Contains([]string{"W3", "W5", "W6", "W8", "W10", "W12"}, w.ID)
				assert.Equal(t, trained, facts[program.FactLossLast] != "")
			})
		}
	}
}
