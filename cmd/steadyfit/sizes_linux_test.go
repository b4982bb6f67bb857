package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// BenchmarkDataSizes trains the digits model for 300 shuffled steps on arrays of up to 50 GB on disk,
// and on 100 MB in memory. It reports the most anonymous, file-backed and resident memory of the process,
// read every 10 ms. The files are sparse, so the disk needs no room for them.
//
//	go test ./cmd/steadyfit -run xxx -bench DataSizes -benchtime 1x
func BenchmarkDataSizes(b *testing.B) {
	const pixels = 64
	for _, c := range []struct {
		name  string
		bytes int
	}{
		{"100MB-in-memory", 1e8}, {"2GB", 2e9}, {"10GB", 1e10}, {"50GB", 5e10},
	} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			samples := c.bytes / (pixels + 1)
			sparseArray(b, filepath.Join(dir, "x.npy"), samples*pixels, fmt.Sprintf("(%d, %d)", samples, pixels))
			sparseArray(b, filepath.Join(dir, "y.npy"), samples, fmt.Sprintf("(%d,)", samples))
			for b.Loop() {
				most := peaks(b, "fit", "--model", "builtin:digits", "--data", dir, "--scale", "0,16",
					"--epochs", "3", "--steps-per-epoch", "100", "--batch", "64", "--seed", "1")
				for _, layer := range []memory.Layer{memory.Anon, memlayer.File, memory.RSS} {
					b.ReportMetric(float64(most[layer])/1e6, "MB-"+string(layer))
				}
			}
		})
	}
}

// sparseArray makes a .npy file of zeros, one byte each.
func sparseArray(b *testing.B, path string, size int, shape string) {
	b.Helper()
	header := []byte("\x93NUMPY\x01\x00")
	text := fmt.Sprintf("{'descr': '|u1', 'fortran_order': False, 'shape': %s, }\n", shape)
	header = append(binary.LittleEndian.AppendUint16(header, uint16(len(text))), text...)
	require.NoError(b, os.WriteFile(path, header, 0o600))
	require.NoError(b, os.Truncate(path, int64(len(header)+size)))
}

// peaks runs the command, and returns the most memory of each layer.
func peaks(b *testing.B, args ...string) map[memory.Layer]memory.Bytes {
	b.Helper()
	cmd := program(b, args...)
	output := start(b, cmd)
	// The sampler is opened before Wait, after which another process may have the same PID.
	sampler, err := memory.NewSampler(cmd.Process.Pid)
	require.NoError(b, err)
	defer sampler.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	most := map[memory.Layer]memory.Bytes{}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			require.NoError(b, err, "%s", output)
			return most
		case <-tick.C:
			var sample memory.Sample
			if sampler.Sample(0, &sample) != nil {
				continue // the process has ended
			}
			for _, layer := range []memory.Layer{memory.Anon, memlayer.File, memory.RSS} {
				most[layer] = max(most[layer], sample.Get(layer).Bytes)
			}
		}
	}
}
