package memory

import "fmt"

// Gauge reads one amount of this process, so cheaply that a loop can look at it
// after each step: about a microsecond on Linux. A [Sampler] reads all of them for
// ten times as much. It is for one goroutine at a time. Close it at the end.
//
// The kernel keeps the numbers that RSS and Anon come from per processor and adds
// them up now and then, so they may be off by some hundred KiB per processor.
type Gauge struct {
	layer Layer
	gauge
}

// NewGauge reads RSS, Anon, or CgroupUsed. Another layer is an error; so is one that
// this machine does not tell (ErrUnavailable).
func NewGauge(layer Layer) (*Gauge, error) {
	g := &Gauge{layer: layer}
	switch layer {
	case RSS, Anon, CgroupUsed:
	default:
		return nil, fmt.Errorf("memory gauge: %q cannot be read by itself; there are %s, %s, %s", layer, RSS, Anon, CgroupUsed)
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

// Close gives the files back. Reading afterwards is unknown.
func (g *Gauge) Close() error { return g.close() }
