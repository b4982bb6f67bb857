package session

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/gpu"
	"steadyfit/tfbind"
)

// report is what `nvidia-smi -q -x` says of a process, cut down to what is read.
const report = `#!/bin/sh
cat <<END
<nvidia_smi_log><driver_version>570.1</driver_version><gpu><product_name>NVIDIA H200</product_name>
<fb_memory_usage><total>143771 MiB</total><used>1535 MiB</used></fb_memory_usage>
<processes><process_info><pid>$PPID</pid><type>C</type><used_memory>1510 MiB</used_memory></process_info></processes>
</gpu></nvidia_smi_log>
END
`

// The driver is asked where there is a GPU, and not after the session has ended.
func TestGPUBytes(t *testing.T) {
	driver, _ := gpu.Open()
	require.NoError(t, driver.Close())
	if driver.Version() != "" {
		t.Skip("this machine has a driver of NVIDIA, which goes before the nvidia-smi of the test")
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(report), 0o755))
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))

	cpu, card := tfbind.Device{Type: "CPU"}, tfbind.Device{Type: "GPU"}
	require.Nil(t, newGPUMeter([]tfbind.Device{cpu}))
	s := &Session{gpu: newGPUMeter([]tfbind.Device{cpu, card})}
	bytes, ok := s.GPUBytes()
	require.True(t, ok)
	require.EqualValues(t, 1510<<20, bytes)

	require.NoError(t, s.Close())
	bytes, ok = s.GPUBytes()
	require.False(t, ok)
	require.Zero(t, bytes)
}

// Without a driver, nothing is told rather than 0.
func TestGPUBytesNotTold(t *testing.T) {
	t.Setenv("PATH", "")
	driver, _ := gpu.Open()
	require.NoError(t, driver.Close())
	if driver.Why() == "" {
		t.Skip("this machine has a driver of NVIDIA; the test is of one without")
	}
	s := &Session{gpu: newGPUMeter([]tfbind.Device{{Type: "GPU"}})}
	_, ok := s.GPUBytes()
	require.False(t, ok)
	require.NoError(t, s.Close())
}
