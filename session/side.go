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
	tf     *tfbind.Session
	closed bool
}

// open makes the native session of a graph at the first call, and again if an earlier call failed.
func (d *side) open(config []byte, graph func() *graphdef.Graph) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return tfbind.ErrClosed
	case d.tf != nil:
		return nil
	}
	def, err := graph().Bytes()
	if err != nil {
		return err
	}
	tf, err := tfbind.NewSession(nil, config)
	if err != nil {
		return err
	}
	if err := tf.Graph().Import(def, ""); err != nil {
		return errors.Join(err, tf.Close())
	}
	d.tf = tf
	return nil
}

// output looks up an output.
func (d *side) output(name string) (tfbind.Output, error) {
	o, err := d.tf.Graph().Output(name)
	if err != nil {
		err = fmt.Errorf("tensor %q: %w", name, err)
	}
	return o, err
}

func (d *side) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return d.tf.Close()
}
