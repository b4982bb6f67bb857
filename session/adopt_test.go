package session

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"steadyfit/tfbind"
)

type closing struct{ times int }

func (c *closing) Close() error { c.times++; return nil }

// What is made of a session that was closed meanwhile is closed, and not kept.
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

// A training that runs out of memory again and again lacks memory.
func TestChildErrorOutOfMemory(t *testing.T) {
	aborted := Death{OutOfMemory: true, Cause: "killed by signal: aborted: what():  std::bad_alloc"}
	killed, crashed := Death{OOMKilled: true, OutOfMemory: true, Cause: "killed by the kernel, as memory ran out"}, Death{Cause: "crashed"}
	for _, c := range []struct {
		deaths []Death
		want   bool
	}{
		{nil, false}, {[]Death{crashed}, false}, {[]Death{killed}, true},
		{[]Death{killed, crashed}, false}, {[]Death{killed, crashed, killed}, true},
		{[]Death{aborted}, true}, {[]Death{killed, crashed, aborted}, true},
	} {
		err := error(&ChildError{Code: 1, Text: "text", Deaths: c.deaths})
		assert.Equal(t, c.want, errors.Is(err, ErrOutOfMemory), c.deaths)
		assert.NotErrorIs(t, err, ErrRetry)
		if c.want {
			assert.ErrorContains(t, err, "it needs more memory than there is")
		}
	}
}
