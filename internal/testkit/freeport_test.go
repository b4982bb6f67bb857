package testkit

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFreeAddresses(t *testing.T) {
	held := map[string]bool{}
	for _, address := range FreeAddresses(t, 500) {
		held[address] = true
	}
	assert.Len(t, held, 500)
	for range 2000 { // of about 14,000 ports
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		assert.NotContains(t, held, l.Addr().String())
		require.NoError(t, l.Close())
	}
	for address := range held {
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		l, err := net.Listen("tcp", ":"+port)
		require.NoError(t, err)
		require.NoError(t, l.Close())
		l, err = net.Listen("tcp", address)
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
}
