package memory

import "fmt"

// CgroupWorkingSet is CgroupUsed without the file pages that have not been used
// lately (inactive_file in memory.stat), which the kernel drops before it runs out of
// memory: by this amount kubelet evicts. Reading and writing files does not move it
// much, as it does CgroupUsed. Only a [Gauge] reads it.
const CgroupWorkingSet Layer = "cgroup working set"

// Gauge reads one amount of this process, so cheaply that a loop can look at it
// after each step: about a microsecond on Linux, and some ten for CgroupWorkingSet. A
// [Sampler] reads all of them for ten times as much. It is for one goroutine at a
// time. Close it at the end. How exact it is, Uncertainty says.
type Gauge struct {
	layer Layer
	gauge
}

// NewGauge reads RSS, Anon, CgroupUsed, or CgroupWorkingSet. Another layer is an
// error; so is one that this machine does not tell (ErrUnavailable).
func NewGauge(layer Layer) (*Gauge, error) {
	g := &Gauge{layer: layer}
	switch layer {
	case RSS, Anon, CgroupUsed, CgroupWorkingSet:
	default:
		return nil, fmt.Errorf("memory gauge: %q cannot be read by itself; there are %s, %s, %s, %s", layer, RSS, Anon, CgroupUsed, CgroupWorkingSet)
	}
	if err := g.open(layer); err != nil {
		return nil, fmt.Errorf("memory gauge: %w", err)
	}
	if !g.Read().OK {
		g.Close()
		return nil, fmt.Errorf("memory gauge: %w: %s is not told here", ErrUnavailable, layer)
	}
	return g, nil
}

// Layer is what it reads.
func (g *Gauge) Layer() Layer { return g.layer }

// Read is the amount now.
func (g *Gauge) Read() Reading { return g.read(g.layer) }

// Uncertainty is how much more there may be than Read says, at most: Linux counts
// pages on each processor and adds them up when one has counted a batch of them. For
// RSS and Anon a batch is 32 pages, or twice the processors of the machine if that is
// more (percpu_counter_batch, Linux 6.2; 64 page faults per thread before that): 256
// KiB with 2 processors, 32 MiB with 64. Linux 6.16 and later add up for RSS and Anon
// but not for Peak, so the bound is the same there. For control groups a batch is 64
// pages.
func (g *Gauge) Uncertainty() Bytes { return uncertainty(g.layer) }

// Close gives the files back. Reading afterwards is unknown.
func (g *Gauge) Close() error { return g.close() }
