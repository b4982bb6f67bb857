package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"time"

	"steadyfit/internal/contract"
	"steadyfit/supervise"
)

// The ports of ranks are below those that Linux uses for outgoing connections, so that a rank finds its
// port free when it restarts.
const lowPort, highPort = 10000, 32768

// maxLocal is far above the number of ranks that a machine can run well.
const maxLocal = 256

// FreeAddresses returns addresses of this machine on which no process listens.
func FreeAddresses(n int) (addresses []string, err error) {
	if n > maxLocal {
		return nil, fmt.Errorf("%d ranks on this machine: expected at most %d", n, maxLocal)
	}
	for _, offset := range rand.Perm(highPort - lowPort) {
		if len(addresses) == n {
			break
		}
		port := strconv.Itoa(lowPort + offset)
		// Servers of TensorFlow listen on all addresses.
		listener, err := net.Listen("tcp", ":"+port)
		if err != nil {
			continue
		}
		defer listener.Close() // all stay open until the last is found, so that they differ
		addresses = append(addresses, net.JoinHostPort("127.0.0.1", port))
	}
	if len(addresses) < n {
		return nil, fmt.Errorf("found %d free ports from %d to %d, and %d ranks need one each", len(addresses), lowPort,
			highPort-1, n)
	}
	return addresses, nil
}

// portWait is the longest wait of AwaitPort.
const portWait = 10 * time.Second

// AwaitPort waits until the port of this rank is free, at most 10 s. An earlier process of the rank may
// still use the port, and a server of TensorFlow would share the port with it. If the port stays in
// use, the error is supervise.ErrRetry.
func (c *Cluster) AwaitPort(ctx context.Context) error {
	_, port, err := net.SplitHostPort(c.Workers[c.Rank])
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		listener, err := net.Listen("tcp", ":"+port)
		if err == nil {
			return listener.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Since(began) > portWait {
			return contract.Mark(fmt.Errorf("%v needs the port %s: %w; end the process that uses it, or use another port",
				c, port,
				err), supervise.ErrRetry)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the port %s: %w", port, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
