package session

import (
	"errors"
	"fmt"
	"sync"

	"steadyfit/internal/graphdef"
	"steadyfit/tfbind"
)

// side is a small graph in a native session of its own. Any goroutine may use it, also during a
// reset of the Session.
type side struct {
	mu     sync.Mutex
	opened bool
	err    error // the error of output, or ErrClosed
	tf     *tfbind.Session
}

// open makes the native session at the first call, and again if an earlier call failed. define adds
// the operations, and find looks them up.
func (d *side) open(config []byte, define func(*graphdef.Graph) (find func())) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened {
		return d.err
	}
	g := &graphdef.Graph{}
	find := define(g)
	def, err := g.Bytes()
	if err == nil {
		err = d.load(def, config)
	}
	if err == nil {
		find()
		err = d.err
	}
	if err != nil {
		err = errors.Join(err, d.tf.Close())
		d.err, d.tf = nil, nil
		return err
	}
	d.opened = true
	return nil
}

// load makes the native session of a serialized graph.
func (d *side) load(def, config []byte) (err error) {
	if d.tf, err = tfbind.NewSession(nil, config); err == nil {
		err = d.tf.Graph().Import(def, "")
	}
	return err
}

// output looks up an output. An error makes open fail.
func (d *side) output(name string) (o tfbind.Output) {
	if d.err != nil {
		return o
	}
	o, err := d.tf.Graph().Output(name)
	if err != nil {
		d.err = fmt.Errorf("tensor %q: %w", name, err)
	}
	return o
}

func (d *side) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened, d.err = true, tfbind.ErrClosed
	return d.tf.Close()
}
