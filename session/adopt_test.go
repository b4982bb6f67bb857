package session

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/tfbind"
)

type closing struct{ times int }

func (c *closing) Close() error { c.times++; return nil }

// If a session is closed while an object is made from it, the object is closed too.
func TestAdopt(t *testing.T) {
	s, c, o := &Session{}, &closing{}, &stateOps{}
	put := func(n *native) { n.state = o }
	assert.NoError(t, s.adopt(c, put))
	assert.Same(t, o, s.state)
	assert.Zero(t, c.times)

	s = &Session{closed: true}
	assert.ErrorIs(t, s.adopt(c, put), tfbind.ErrClosed)
	assert.ErrorIs(t, s.adopt(nil, put), tfbind.ErrClosed)
	assert.Nil(t, s.state)
	assert.Equal(t, 1, c.times)
}
