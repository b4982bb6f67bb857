//go:build !linux

package memory

type gauge struct{ closed bool }

func (g *gauge) open(Layer) error { return nil }

func (g *gauge) read(layer Layer) Reading {
	usage, err := Read()
	if err != nil || g.closed || layer != RSS {
		return Reading{}
	}
	return usage.RSS
}

func (g *gauge) close() error { g.closed = true; return nil }

func uncertainty(Layer) Bytes { return 0 }
