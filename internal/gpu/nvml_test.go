package gpu

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

const gpuIsLost, libraryMismatch status = 15, 18

// Statuses of nvmlReturn_t that only tests return.
const (
	notSupported status = 3
	unknownError status = 999
)

// fakeNVML returns what a test specifies.
type fakeNVML struct {
	init, count status
	devices     []*fakeDevice
}

// running returns a process on a fake device.
func running(pid uint32, bytes uint64) processInfo { return processInfo{pid: pid, used: bytes} }

type fakeDevice struct {
	name          string
	handle        status
	memory, queue status
	used          uint64
	processes     []processInfo
}

// functions returns the functions of the fake. The handle of a device is its index.
func (f *fakeNVML) functions() *functions {
	all := f.devices
	put := func(text string, into *byte, size uint32) {
		copy(unsafe.Slice(into, size), text+"\x00")
	}
	n := &functions{
		init:        func() status { return f.init },
		errorString: func(status) string { return "in its words" },
		count: func(n *uint32) status {
			*n = uint32(len(f.devices))
			return f.count
		},
		device: func(i uint32, into *handle) status {
			*into = handle(i)
			return f.devices[i].handle
		},
		name: func(d handle, text *byte, size uint32) status {
			put(all[d].name, text, size)
			return success
		},
		memory: func(d handle, into *memoryInfo) status {
			into.total, into.used = 1<<30, all[d].used
			return all[d].memory
		},
		processes: func(d handle, n *uint32, into *processInfo) status {
			room := *n
			*n = uint32(len(all[d].processes))
			if *n > room {
				return insufficientSize
			}
			copy(unsafe.Slice(into, room), all[d].processes)
			return all[d].queue
		},
	}
	return n
}

const unknown = -1

// amounts are the readings of a sample, in the order of the layers.
type amounts []struct {
	layer memory.Layer
	bytes int64
}

func sampled(s memory.Source) amounts {
	var all amounts
	s(func(l memory.Layer, r memory.Reading) {
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
	require.NoError(t, d.open(lib.functions()))
	require.Empty(t, d.Why())
	return d
}

func TestOneGPU(t *testing.T) {
	const pid = 77
	notAvailable := ^uint64(0)
	for _, c := range []struct {
		name      string
		processes []processInfo
		queue     status
		want      int64
	}{
		{"listed", []processInfo{running(5, 10), running(pid, 300)}, success, 300},
		{"listed twice", []processInfo{running(pid, 300), running(5, 10), running(pid, 20)}, success, 320},
		{"others are listed", []processInfo{running(5, 10)}, success, unknown},
		{"nothing is listed", nil, success, unknown},
		{"not available", []processInfo{running(pid, notAvailable)}, success, unknown},
		{"listed twice, one not available", []processInfo{running(pid, 5), running(pid, notAvailable)}, success, unknown},
		{"listed twice, first not available", []processInfo{running(pid, notAvailable), running(pid, 5)}, success, unknown},
		{"listed with nothing", []processInfo{running(pid, 0)}, success, unknown},
		{"not permitted", nil, noPermission, unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := opened(t, &fakeNVML{devices: []*fakeDevice{{used: 1000, processes: c.processes, queue: c.queue}}})
			require.Equal(t, amounts{{memlayer.GPUUsed, 1000}, {memlayer.GPUProcess, c.want}}, sampled(d.Source(pid)))
		})
	}
}

// The list grows until it contains all processes. If a driver always asks for a larger list, the amount is
// unknown.
func TestManyProcesses(t *testing.T) {
	device := &fakeDevice{}
	for pid := range uint32(1000) {
		device.processes = append(device.processes, running(pid, 1))
	}
	require.EqualValues(t, 1, sampled(opened(t, &fakeNVML{devices: []*fakeDevice{device}}).Source(999))[1].bytes)
	for name, ask := range map[string]func(n *uint32) status{
		"always more":        func(n *uint32) status { *n += 1; return insufficientSize },
		"no number":          func(n *uint32) status { *n = 1 << 31; return insufficientSize },
		"more than it wrote": func(n *uint32) status { *n += 1; return success },
	} {
		t.Run(name, func(t *testing.T) {
			d := &Driver{functions: &functions{processes: func(_ handle, n *uint32, _ *processInfo) status { return ask(n) }}}
			all, ok := (&source{driver: d}).running(0)
			require.False(t, ok)
			require.Empty(t, all)
		})
	}
}

// Once the process was listed, driver and caller agree on process IDs, so unlisted means 0.
func TestNotListedIsNothingOnceItWasListed(t *testing.T) {
	device := &fakeDevice{processes: []processInfo{running(5, 10)}}
	s := opened(t, &fakeNVML{devices: []*fakeDevice{device}}).Source(77)
	process := func() int64 { return sampled(s)[1].bytes }
	require.EqualValues(t, unknown, process())
	device.processes = append(device.processes, running(77, 20))
	require.EqualValues(t, 20, process())
	device.processes = nil
	require.Zero(t, process())
	device.queue = unknownError
	require.EqualValues(t, unknown, process())
}

func TestSeveralGPUs(t *testing.T) {
	first := &fakeDevice{used: 10}
	second := &fakeDevice{used: 20, processes: []processInfo{running(77, 5)}}
	lib := &fakeNVML{devices: []*fakeDevice{first, second}}
	d := opened(t, lib)
	s := d.Source(77)
	require.Equal(t, amounts{{memlayer.GPUUsed, 30}, {memlayer.GPUProcess, 5}}, sampled(s),
		"the second GPU shows that the ID fits")

	first.memory, first.queue = gpuIsLost, gpuIsLost
	require.Equal(t, amounts{{memlayer.GPUUsed, unknown}, {memlayer.GPUProcess, unknown}}, sampled(s),
		"a sum without one of its parts is not known")

	first.memory, first.queue = success, success
	require.EqualValues(t, 30, sampled(s)[0].bytes, "what is back is known again")

	require.EqualValues(t, unknown, sampled(d.Source(0))[1].bytes, "another process is another source")
}

// A sampler includes the layers of the GPU.
func TestSampler(t *testing.T) {
	d := opened(t, &fakeNVML{devices: []*fakeDevice{{used: 1000,
		processes: []processInfo{running(uint32(os.Getpid()), 9)}}}})
	sampler, err := memory.NewSampler(0, d.Source(0))
	require.NoError(t, err)
	defer sampler.Close()
	var sample memory.Sample
	require.NoError(t, sampler.Sample(1, &sample))
	require.Equal(t, memory.Known(1000), sample.Get(memlayer.GPUUsed))
	require.Equal(t, memory.Known(9), sample.Get(memlayer.GPUProcess))
}

func TestMemoryNotTold(t *testing.T) {
	d := opened(t, &fakeNVML{devices: []*fakeDevice{{name: "NVIDIA GB10", memory: notSupported,
		processes: []processInfo{running(1, 5)}}}})
	require.Equal(t, []GPU{{ID: "0", Name: "NVIDIA GB10"}}, d.GPUs())
	require.Equal(t, "NVIDIA GB10", d.GPUs()[0].String())
	require.Equal(t, amounts{{memlayer.GPUUsed, unknown}, {memlayer.GPUProcess, 5}}, sampled(d.Source(1)))
}

func TestDriverNotLoaded(t *testing.T) {
	lib := &fakeNVML{init: driverNotLoaded}
	d := &Driver{}
	require.NoError(t, d.open(lib.functions()))
	require.Contains(t, d.Why(), "is not loaded")
	require.Nil(t, d.Source(0))
	require.Empty(t, d.GPUs())
}

func TestDriverThatDoesNotAnswer(t *testing.T) {
	for _, c := range []struct {
		lib       *fakeNVML
		is        status
		text, why string
	}{
		{&fakeNVML{init: libraryMismatch}, libraryMismatch, "nvidia-smi", "NVML cannot be started"},
		{&fakeNVML{init: noPermission}, noPermission, "nvidia-smi", "NVML cannot be started"},
		{&fakeNVML{count: unknownError}, unknownError, "count the GPUs", "count the GPUs"},
		{&fakeNVML{devices: []*fakeDevice{{handle: gpuIsLost}}}, gpuIsLost, "GPU 0 does not answer",
			"no GPU that this process may use"},
	} {
		d := &Driver{}
		err := d.open(c.lib.functions())
		require.ErrorIs(t, err, c.is)
		require.ErrorContains(t, err, c.text)
		require.Contains(t, d.Why(), c.why)
		require.Nil(t, d.Source(0))
	}
}

func TestOneGPUOfSeveralFails(t *testing.T) {
	lib := &fakeNVML{devices: []*fakeDevice{{handle: noPermission}, {handle: gpuIsLost}, {name: "C", used: 4}}}
	d := &Driver{}
	err := d.open(lib.functions())
	require.ErrorIs(t, err, gpuIsLost)
	require.NotErrorIs(t, err, noPermission)
	require.Empty(t, d.Why())
	require.Equal(t, "2", d.GPUs()[0].ID)
	require.Equal(t, amounts{{memlayer.GPUUsed, 4}, {memlayer.GPUProcess, unknown}}, sampled(d.Source(1)))
}

func TestSampleDoesNotAllocate(t *testing.T) {
	d := opened(t, &fakeNVML{devices: []*fakeDevice{{used: 4, processes: []processInfo{running(1, 2)}}, {used: 5}}})
	s := d.Source(1)
	add := func(memory.Layer, memory.Reading) {}
	require.Zero(t, testing.AllocsPerRun(100, func() { s(add) }))
}
