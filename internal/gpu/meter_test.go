package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/memory"
)

func TestMeter(t *testing.T) {
	const pid = 77
	notAvailable := ^uint64(0)
	for _, c := range []struct {
		name    string
		devices []*fakeDevice
		want    memory.Reading
	}{
		{"its own", []*fakeDevice{{used: 1000, processes: []processInfo{running(5, 10), running(pid, 300)}}},
			memory.Known(300)},
		{"on one of two", []*fakeDevice{{used: 1000}, {used: 1000, processes: []processInfo{running(pid, 300)}}},
			memory.Known(300)},
		{"on both", []*fakeDevice{{processes: []processInfo{running(pid, 20)}},
			{processes: []processInfo{running(pid, 300)}}}, memory.Known(320)},
		{"not listed", []*fakeDevice{{used: 1000, processes: []processInfo{running(5, 10)}}}, memory.Known(1000)},
		{"listed without an amount", []*fakeDevice{{used: 1000, processes: []processInfo{running(pid, notAvailable)}}},
			memory.Known(1000)},
		{"listed with nothing", []*fakeDevice{{used: 1000, processes: []processInfo{running(pid, 0)}}}, memory.Known(1000)},
		{"neither", []*fakeDevice{{queue: noPermission, memory: noPermission}}, memory.Reading{}},
		{"nothing in use", []*fakeDevice{{}}, memory.Reading{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, opened(t, &fakeNVML{devices: c.devices}).Meter(pid).Read())
		})
	}
}

// After the amount of the process was known, the meter never reports that of the device.
func TestMeterDoesNotMix(t *testing.T) {
	device := &fakeDevice{used: 1000}
	d := opened(t, &fakeNVML{devices: []*fakeDevice{device}})
	m := d.Meter(77)
	require.Equal(t, memory.Known(1000), m.Read())
	device.processes = []processInfo{running(77, 300)}
	require.Equal(t, memory.Known(300), m.Read())
	device.queue = unknownError
	require.Equal(t, memory.Reading{}, m.Read())
	device.queue, device.processes = success, nil
	require.Equal(t, memory.Reading{}, m.Read(), "never zero")
	require.Equal(t, memory.Reading{}, new(Meter).Read())
}
