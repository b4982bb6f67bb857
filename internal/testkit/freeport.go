//go:build unix

package testkit

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// FreeAddresses returns n addresses of this machine. Until the test ends, a bound socket that does not
// listen holds each port: a program that asks for any free port does not get this one, but a server
// that asks for this port does.
func FreeAddresses(t testing.TB, n int) (list []string) {
	t.Helper()
	for range n {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		require.NoError(t, err)
		syscall.CloseOnExec(fd)
		t.Cleanup(func() { require.NoError(t, syscall.Close(fd)) })
		require.NoError(t, syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)) // as servers do
		require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
		name, err := syscall.Getsockname(fd)
		require.NoError(t, err)
		list = append(list, fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port))
	}
	return list
}
