// Package gauge reads a layer of the memory of this process after each step of a training.
package gauge

import (
	"fmt"
	"iter"

	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// Gauge reads one layer of this process after each step: in about 1 us on Linux, and 10 us for
// CgroupWorkingSet. It is for one goroutine at a time, and must be closed.
type Gauge struct {
	layer memory.Layer
	files
}

// New opens a gauge of RSS, Anon or CgroupWorkingSet. Other layers are an error; a
// layer that this machine does not report is memory.ErrUnavailable.
func New(layer memory.Layer) (*Gauge, error) {
	g := &Gauge{layer: layer}
	switch layer {
	case memory.RSS, memory.Anon, memlayer.CgroupWorkingSet:
	default:
		return nil, fmt.Errorf("memory gauge: layer %q; expected %s, %s or %s", layer, memory.RSS, memory.Anon, memlayer.CgroupWorkingSet)
	}
	if err := g.open(); err != nil {
		return nil, fmt.Errorf("memory gauge: %w", err)
	}
	if !g.Read().OK {
		g.Close()
		return nil, fmt.Errorf("memory gauge: %w: %s is not reported here", memory.ErrUnavailable, layer)
	}
	return g, nil
}

// Layers returns the known amounts of memory by name: rss, anon, file, peak and gpu.
func Layers(u memory.Usage, gpu memory.Reading) iter.Seq2[string, memory.Bytes] {
	return func(yield func(string, memory.Bytes) bool) {
		for _, layer := range []struct {
			name string
			memory.Reading
		}{{"rss", u.RSS}, {"anon", u.Anon}, {"file", u.File}, {"peak", u.Peak}, {"gpu", gpu}} {
			if layer.OK && !yield(layer.name, layer.Bytes) {
				return
			}
		}
	}
}
