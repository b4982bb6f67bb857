//go:build !linux || !cgo || nonvml

package gpu

import "steadyfit/memory"

// library is empty: there is no NVML here.
type library struct{}

func (d *Driver) open() error {
	d.why = "this program was built without NVML: it takes Linux, cgo, and no build tag nonvml"
	return nil
}

func (*Driver) source(int) memory.Source { return nil }

func (*Driver) close() error { return nil }
