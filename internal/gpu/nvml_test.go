//go:build linux && cgo && !nonvml

package gpu

import (
	"os"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"steadyfit/memory"
)

// fakeNVML answers what a test says. What is not answered here fails by a nil
// interface.
type fakeNVML struct {
	nvml.Interface
	init, count, shutdown nvml.Return
	devices               []*fakeDevice
	without               []string // functions that the library lacks
	shutdowns             int
}

func (f *fakeNVML) Init() nvml.Return { return f.init }

func (f *fakeNVML) Shutdown() nvml.Return {
	f.shutdowns++
	return f.shutdown
}

func (f *fakeNVML) SystemGetDriverVersion() (string, nvml.Return) { return "570.1", nvml.SUCCESS }

func (f *fakeNVML) DeviceGetCount() (int, nvml.Return) { return len(f.devices), f.count }

func (f *fakeNVML) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	return f.devices[i], f.devices[i].handle
}

func (f *fakeNVML) Extensions() nvml.ExtendedInterface { return f }

func (f *fakeNVML) LookupSymbol(name string) error {
	for _, w := range f.without {
		if w == name {
			return os.ErrNotExist
		}
	}
	return nil
}

type fakeDevice struct {
	nvml.Device
	name, uuid              string
	handle                  nvml.Return
	memory1, memory2, queue nvml.Return
	used, reserved          uint64
	processes               []nvml.ProcessInfo
	mig                     bool
	instances               []*fakeDevice // a nil one is a gap
}

func (d *fakeDevice) GetName() (string, nvml.Return) { return d.name, nvml.SUCCESS }

func (d *fakeDevice) GetUUID() (string, nvml.Return) {
	if d.uuid == "" {
		return "", nvml.ERROR_NOT_SUPPORTED
	}
	return d.uuid, nvml.SUCCESS
}

func (d *fakeDevice) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return nvml.Memory{Total: 1 << 30, Used: d.used + d.reserved}, d.memory1
}

func (d *fakeDevice) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	return nvml.Memory_v2{Total: 1 << 30, Used: d.used, Reserved: d.reserved}, d.memory2
}

func (d *fakeDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return d.processes, d.queue
}

func (d *fakeDevice) GetMigMode() (int, int, nvml.Return) {
	if d.mig {
		return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
	}
	return 0, 0, nvml.ERROR_NOT_SUPPORTED
}

func (d *fakeDevice) GetMaxMigDeviceCount() (int, nvml.Return) {
	return len(d.instances), nvml.SUCCESS
}

func (d *fakeDevice) GetMigDeviceHandleByIndex(i int) (nvml.Device, nvml.Return) {
	if d.instances[i] == nil {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return d.instances[i], nvml.SUCCESS
}

const unknown = -1

// amounts are the readings of a sample by layer, in order, with unknown for those.
type amounts []struct {
	layer memory.Layer
	bytes int64
}

func sampled(s memory.Source) amounts {
	var all amounts
	s.Sample(func(l memory.Layer, r memory.Reading) {
		b := int64(r.Bytes)
		if !r.OK {
			b = unknown
		}
		all = append(all, struct {
			layer memory.Layer
			bytes int64
		}{l, b})
	})
	return all
}

func opened(t *testing.T, lib *fakeNVML) *Driver {
	t.Helper()
	d := &Driver{}
	require.NoError(t, d.openWith(lib))
	require.Empty(t, d.Why())
	return d
}

func running(pid uint32, bytes uint64) nvml.ProcessInfo {
	return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: bytes}
}

func TestOneGPU(t *testing.T) {
	const pid = 77
	notAvailable := ^uint64(0)
	for _, c := range []struct {
		name      string
		processes []nvml.ProcessInfo
		queue     nvml.Return
		want      int64
	}{
		{"listed", []nvml.ProcessInfo{running(5, 10), running(pid, 300)}, nvml.SUCCESS, 300},
		{"listed twice", []nvml.ProcessInfo{running(pid, 300), running(5, 10), running(pid, 20)}, nvml.SUCCESS, 320},
		{"others are listed", []nvml.ProcessInfo{running(5, 10)}, nvml.SUCCESS, unknown},
		{"nothing is listed", nil, nvml.SUCCESS, unknown},
		{"not available", []nvml.ProcessInfo{running(pid, notAvailable)}, nvml.SUCCESS, unknown},
		{"listed twice, one not available", []nvml.ProcessInfo{running(pid, 5), running(pid, notAvailable)}, nvml.SUCCESS, unknown},
		{"listed twice, first not available", []nvml.ProcessInfo{running(pid, notAvailable), running(pid, 5)}, nvml.SUCCESS, unknown},
		{"listed with nothing", []nvml.ProcessInfo{running(pid, 0)}, nvml.SUCCESS, unknown},
		{"not permitted", nil, nvml.ERROR_NO_PERMISSION, unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := opened(t, &fakeNVML{devices: []*fakeDevice{{used: 1000, reserved: 50, processes: c.processes, queue: c.queue}}})
			require.Equal(t, amounts{{memory.GPUUsed, 1000}, {memory.GPUProcess, c.want}}, sampled(d.Source(pid)))
		})
	}
}

// The driver and the caller agree on process IDs from the first time on that the
// process was listed.
func TestNotListedIsNothingOnceItWasListed(t *testing.T) {
	device := &fakeDevice{processes: []nvml.ProcessInfo{running(5, 10)}}
	s := opened(t, &fakeNVML{devices: []*fakeDevice{device}}).Source(77)
	process := func() int64 { return sampled(s)[1].bytes }
	require.EqualValues(t, unknown, process())
	device.processes = append(device.processes, running(77, 20))
	require.EqualValues(t, 20, process())
	device.processes = nil
	require.Zero(t, process())
	device.queue = nvml.ERROR_UNKNOWN
	require.EqualValues(t, unknown, process())
}

func TestSeveralGPUs(t *testing.T) {
	first := &fakeDevice{used: 10}
	second := &fakeDevice{used: 20, processes: []nvml.ProcessInfo{running(77, 5)}}
	lib := &fakeNVML{devices: []*fakeDevice{first, second}}
	d := opened(t, lib)
	s := d.Source(77)
	require.Equal(t, amounts{{memory.GPUUsed, 30}, {memory.GPUProcess, 5},
		{"gpu used (0)", 10}, {"gpu process used (0)", 0}, {"gpu used (1)", 20}, {"gpu process used (1)", 5}}, sampled(s),
		"the second GPU shows that the ID fits")

	first.memory2, first.queue = nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_IS_LOST
	require.Equal(t, amounts{{memory.GPUUsed, unknown}, {memory.GPUProcess, unknown},
		{"gpu used (0)", unknown}, {"gpu process used (0)", unknown}, {"gpu used (1)", 20}, {"gpu process used (1)", 5}}, sampled(s),
		"a sum without one of its parts is not known")

	first.memory2, first.queue = nvml.SUCCESS, nvml.SUCCESS
	require.EqualValues(t, 30, sampled(s)[0].bytes, "what is back is known again")

	require.EqualValues(t, unknown, sampled(d.Source(0))[1].bytes, "another process is another source")
}

func TestThisProcess(t *testing.T) {
	d := opened(t, &fakeNVML{devices: []*fakeDevice{{processes: []nvml.ProcessInfo{running(uint32(os.Getpid()), 9)}}}})
	require.EqualValues(t, 9, sampled(d.Source(0))[1].bytes)
}

// The layers come out of a sampler as every other.
func TestSampler(t *testing.T) {
	d := opened(t, &fakeNVML{devices: []*fakeDevice{{used: 1000, processes: []nvml.ProcessInfo{running(uint32(os.Getpid()), 9)}}}})
	sampler, err := memory.NewSampler(memory.SamplerOptions{Sources: []memory.Source{d.Source(0)}})
	require.NoError(t, err)
	defer sampler.Close()
	var sample memory.Sample
	require.NoError(t, sampler.Sample(1, &sample))
	require.Equal(t, memory.Known(1000), sample.Get(memory.GPUUsed))
	require.Equal(t, memory.Known(9), sample.Get(memory.GPUProcess))
}

func TestDriverBefore510(t *testing.T) {
	lib := &fakeNVML{without: []string{"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode"}, devices: []*fakeDevice{{used: 1000, reserved: 50, mig: true}}}
	d := opened(t, lib)
	require.Equal(t, []GPU{{ID: "0", Memory: memory.Known(1 << 30)}}, d.GPUs())
	require.EqualValues(t, 1050, sampled(d.Source(1))[0].bytes, "with what is reserved")
}

func TestMemoryNotTold(t *testing.T) {
	d := opened(t, &fakeNVML{devices: []*fakeDevice{{name: "NVIDIA GB10", memory1: nvml.ERROR_NOT_SUPPORTED, memory2: nvml.ERROR_NOT_SUPPORTED,
		processes: []nvml.ProcessInfo{running(1, 5)}}}})
	require.Equal(t, []GPU{{ID: "0", Name: "NVIDIA GB10"}}, d.GPUs())
	require.Equal(t, "NVIDIA GB10", d.GPUs()[0].String())
	require.Equal(t, amounts{{memory.GPUUsed, unknown}, {memory.GPUProcess, 5}}, sampled(d.Source(1)))
}

func TestMIG(t *testing.T) {
	d := opened(t, &fakeNVML{devices: []*fakeDevice{
		{name: "A", uuid: "GPU-a", mig: true, memory1: nvml.ERROR_NO_PERMISSION, memory2: nvml.ERROR_NO_PERMISSION,
			instances: []*fakeDevice{{name: "A MIG 1g.5gb", uuid: "MIG-a", used: 1}, nil, {name: "A MIG 2g.10gb", uuid: "MIG-b", used: 2}}},
		{name: "B", mig: true, memory1: nvml.ERROR_NO_PERMISSION, memory2: nvml.ERROR_NO_PERMISSION},
	}})
	gib := memory.Known(1 << 30)
	require.Equal(t, []GPU{{"0:0", "MIG-a", "A MIG 1g.5gb", gib, true}, {"0:2", "MIG-b", "A MIG 2g.10gb", gib, true}, {ID: "1", Name: "B", MIG: true}}, d.GPUs())
	require.Equal(t, "A MIG 1g.5gb, 1.0 GiB", d.GPUs()[0].String())
	got := sampled(d.Source(1))
	require.EqualValues(t, "gpu process used (0:2)", got[5].layer)
	require.EqualValues(t, 2, got[4].bytes)
}

func TestNoDriver(t *testing.T) {
	for ret, why := range map[nvml.Return]string{nvml.ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found", nvml.ERROR_DRIVER_NOT_LOADED: "is not loaded"} {
		lib := &fakeNVML{init: ret}
		d := &Driver{}
		require.NoError(t, d.openWith(lib))
		require.Contains(t, d.Why(), why)
		require.Nil(t, d.Source(0))
		require.Empty(t, d.GPUs())
		require.NoError(t, d.Close())
		require.Zero(t, lib.shutdowns, "what was not opened is not closed: the function may not be there")
	}
}

func TestDriverThatDoesNotAnswer(t *testing.T) {
	for _, c := range []struct {
		lib       *fakeNVML
		is        nvml.Return
		text, why string
		shutdowns int
	}{
		{&fakeNVML{init: nvml.ERROR_LIB_RM_VERSION_MISMATCH}, nvml.ERROR_LIB_RM_VERSION_MISMATCH, "restart the machine", "NVML does not start", 0},
		{&fakeNVML{init: nvml.ERROR_NO_PERMISSION}, nvml.ERROR_NO_PERMISSION, "/dev/nvidiactl", "NVML does not start", 0},
		{&fakeNVML{count: nvml.ERROR_UNKNOWN}, nvml.ERROR_UNKNOWN, "count the GPUs", "count the GPUs", 1},
		{&fakeNVML{devices: []*fakeDevice{{handle: nvml.ERROR_GPU_IS_LOST}}}, nvml.ERROR_GPU_IS_LOST, "GPU 0 does not answer", "no GPU that this process may use", 1},
	} {
		d := &Driver{}
		err := d.openWith(c.lib)
		require.ErrorIs(t, err, c.is)
		require.ErrorContains(t, err, c.text)
		require.Contains(t, d.Why(), c.why)
		require.Nil(t, d.Source(0))
		require.NoError(t, d.Close())
		require.Equal(t, c.shutdowns, c.lib.shutdowns)
	}
}

func TestOneGPUOfSeveralFails(t *testing.T) {
	lib := &fakeNVML{devices: []*fakeDevice{{handle: nvml.ERROR_NO_PERMISSION}, {handle: nvml.ERROR_GPU_IS_LOST}, {name: "C", used: 4}}}
	d := &Driver{}
	err := d.openWith(lib)
	require.ErrorIs(t, err, nvml.ERROR_GPU_IS_LOST)
	require.NotErrorIs(t, err, nvml.ERROR_NO_PERMISSION)
	require.Empty(t, d.Why())
	require.Equal(t, "2", d.GPUs()[0].ID)
	require.Equal(t, amounts{{memory.GPUUsed, 4}, {memory.GPUProcess, unknown}}, sampled(d.Source(1)))
}

func TestClose(t *testing.T) {
	lib := &fakeNVML{devices: []*fakeDevice{{used: 4}}}
	d := opened(t, lib)
	s := d.Source(1)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	require.Equal(t, 1, lib.shutdowns)
	require.Equal(t, amounts{{memory.GPUUsed, unknown}, {memory.GPUProcess, unknown}}, sampled(s))
	require.Nil(t, d.Source(1))
	require.Len(t, d.GPUs(), 1)

	lib = &fakeNVML{devices: []*fakeDevice{{}}, shutdown: nvml.ERROR_UNKNOWN}
	require.ErrorIs(t, opened(t, lib).Close(), nvml.ERROR_UNKNOWN)
}

func TestSourcesOfSeveralGoroutines(t *testing.T) {
	d := opened(t, &fakeNVML{devices: []*fakeDevice{{used: 4}, {used: 5}}})
	var wait sync.WaitGroup
	for pid := range 4 {
		wait.Go(func() {
			s := d.Source(pid + 1)
			for range 100 {
				if s != nil { // closed first
					sampled(s)
				}
			}
		})
	}
	wait.Go(func() { require.NoError(t, d.Close()) })
	wait.Wait()
}

func TestSampleDoesNotAllocate(t *testing.T) {
	d := opened(t, &fakeNVML{devices: []*fakeDevice{{used: 4, processes: []nvml.ProcessInfo{running(1, 2)}}, {used: 5}}})
	s := d.Source(1)
	add := func(memory.Layer, memory.Reading) {}
	require.Zero(t, testing.AllocsPerRun(100, func() { s.Sample(add) }))
}
