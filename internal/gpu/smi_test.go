package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/memory"
)

// What testdata/smi has is cut down to what is read, and to what must not be taken
// for it.

// fakeSMI puts a program nvidia-smi on the PATH that prints a file, which the
// test may replace, and exits with a code.
func fakeSMI(t *testing.T, file string, code int) (says string) {
	t.Helper()
	dir := t.TempDir()
	says = filepath.Join(dir, "says")
	text, err := os.ReadFile(filepath.Join("testdata", "smi", file))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(says, text, 0o644))
	script := fmt.Sprintf("#!/bin/sh\n[ \"$*\" = '-q -x' ] || exit 99\ncat '%s'\nexit %d\n", says, code)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o755))
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return says
}

func openedSMI(t *testing.T) *Driver {
	t.Helper()
	d := &Driver{why: "no NVML"}
	require.NoError(t, d.openSMI())
	require.Empty(t, d.Why())
	return d
}

func TestSMI(t *testing.T) {
	says := fakeSMI(t, "two.xml", 0)
	d := openedSMI(t)
	require.Equal(t, "570.133.20", d.Version())
	require.Equal(t, []GPU{
		{ID: "0", UUID: "GPU-a", Name: "NVIDIA H200", Memory: memory.Known(143771 * memory.MiB)},
		{ID: "1", UUID: "GPU-b", Name: "NVIDIA GB10"},
	}, d.GPUs())

	s := d.Source(77)
	require.Equal(t, amounts{{memory.GPUUsed, unknown}, {memory.GPUProcess, 1510 << 20},
		{"gpu used (0)", 1535 << 20}, {"gpu process used (0)", 1510 << 20}, {"gpu used (1)", unknown}, {"gpu process used (1)", 0}}, sampled(s))
	require.EqualValues(t, unknown, sampled(d.Source(78))[1].bytes, "it only draws")
	require.EqualValues(t, unknown, sampled(d.Source(79))[1].bytes, "the amount is not told")

	// GPUs that have gone, and then a program that has.
	require.NoError(t, os.WriteFile(says, []byte("<nvidia_smi_log></nvidia_smi_log>"), 0o644))
	for _, a := range sampled(s) {
		require.EqualValues(t, unknown, a.bytes, a.layer)
	}
	require.NoError(t, os.Remove(says))
	for _, a := range sampled(s) {
		require.EqualValues(t, unknown, a.bytes, a.layer)
	}

	require.NoError(t, d.Close())
	require.Nil(t, d.Source(77))
}

func TestSMIOfDividedGPUs(t *testing.T) {
	fakeSMI(t, "divided.xml", 0)
	d := openedSMI(t)
	require.Equal(t, []GPU{
		{ID: "0:0", Name: "NVIDIA A100-SXM4-40GB MIG", Memory: memory.Known(19968 * memory.MiB), MIG: true},
		{ID: "0:1", Name: "NVIDIA A100-SXM4-40GB MIG", Memory: memory.Known(9856 * memory.MiB), MIG: true},
		{ID: "1", UUID: "GPU-b", Name: "NVIDIA A100-SXM4-40GB", MIG: true},
	}, d.GPUs())
	require.Equal(t, amounts{{memory.GPUUsed, unknown}, {memory.GPUProcess, unknown},
		{"gpu used (0:0)", 37 << 20}, {"gpu process used (0:0)", 0}, {"gpu used (0:1)", 1205 << 20}, {"gpu process used (0:1)", 1168 << 20},
		{"gpu used (1)", unknown}, {"gpu process used (1)", unknown}}, sampled(d.Source(77)),
		"of a divided GPU this user may not know the whole")
}

// A GPU that tells no list of processes does not tell that this one is not in it.
func TestSMIWithoutAList(t *testing.T) {
	const one, two = "<gpu><fb_memory_usage><used>2 MiB</used></fb_memory_usage>", "<processes><process_info><pid>77</pid><type>C</type><used_memory>1 MiB</used_memory></process_info></processes></gpu>"
	says := fakeSMI(t, "two.xml", 0)
	for _, c := range []struct {
		list string
		want int64
	}{
		{"", unknown}, {"<processes>N/A</processes>", unknown}, {"<processes>[Insufficient Permissions]</processes>", unknown},
		{"<processes>\n\t</processes>", 0}, {"<processes>None</processes>", 0},
	} {
		require.NoError(t, os.WriteFile(says, []byte("<nvidia_smi_log>"+one+two+one+c.list+"</gpu></nvidia_smi_log>"), 0o644))
		got := sampled(openedSMI(t).Source(77))
		require.EqualValues(t, 1<<20, got[3].bytes, c.list)
		require.EqualValues(t, c.want, got[5].bytes, c.list)
	}
}

func TestSMIWithoutADriver(t *testing.T) {
	for _, c := range []struct {
		name, says string
		code       int
		failed     bool
	}{
		{"no driver", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\nMake sure that it runs.\n", smiNoDriver, false},
		{"no library", "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n", smiNoLibrary, false},
		{"another failure", "Unable to determine the device handle for GPU0: Unknown Error\n", 15, true},
		{"something else", "not XML", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			says := fakeSMI(t, "two.xml", c.code)
			require.NoError(t, os.WriteFile(says, []byte(c.says), 0o644))
			d := &Driver{why: "no NVML"}
			err := d.openSMI()
			require.Equal(t, c.failed, err != nil, "%v", err)
			require.Contains(t, d.Why(), "no NVML; nvidia-smi")
			require.NotContains(t, d.Why(), "\n")
			require.Empty(t, d.GPUs())
			require.Nil(t, d.Source(0))
			require.NoError(t, d.Close())
		})
	}
	t.Run("no program", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		d := &Driver{why: "no NVML"}
		require.NoError(t, d.openSMI())
		require.Equal(t, "no NVML; nor is there an nvidia-smi", d.Why())
	})
	t.Run("no GPU", func(t *testing.T) {
		says := fakeSMI(t, "two.xml", 0)
		require.NoError(t, os.WriteFile(says, []byte("<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>"), 0o644))
		d := &Driver{}
		require.NoError(t, d.openSMI())
		require.Equal(t, "the driver has no GPU that this process may use", d.Why())
	})
}
