package session

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/tfbind"
)

type closing struct{ times int }

func (c *closing) Close() error { c.times++; return nil }

// An object made from a session that was closed in the meantime is closed.
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
