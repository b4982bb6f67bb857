package train

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// network is a network of ranks, each in a namespace with the address 10.77.0.(rank+1). The test
// itself carries the packets between their TUN devices, so that it can lose them on kernels without netem.
type network struct{ ranks []*port }

// port is the network device of a rank.
type port struct {
	namespace string
	device    *os.File
	cut       atomic.Bool // loses all packets from and to this rank
}

func newNetwork(t *testing.T, ranks int) *network {
	t.Helper()
	n := &network{}
	ip := func(args ...string) error {
		text, err := exec.Command("ip", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, text)
		}
		return nil
	}
	var carriers sync.WaitGroup
	t.Cleanup(func() {
		for _, p := range n.ranks {
			_ = p.device.Close()
		}
		carriers.Wait()
	})
	for i := range ranks {
		name := fmt.Sprintf("sf%d-%d", os.Getpid(), i)
		if err := ip("netns", "add", name); err != nil {
			t.Skipf("this test needs network namespaces, which need root and iproute2: %v", err)
		}
		t.Cleanup(func() { _ = ip("netns", "delete", name) })
		device, err := tunnel(name)
		if err != nil {
			t.Skipf("this test needs TUN devices: %v", err)
		}
		n.ranks = append(n.ranks, &port{namespace: name, device: device})
		require.NoError(t, ip("link", "set", name, "netns", name))
		require.NoError(t, ip("-n", name, "addr", "add", fmt.Sprintf("10.77.0.%d/24", i+1), "dev", name))
		require.NoError(t, ip("-n", name, "link", "set", name, "up"))
		require.NoError(t, ip("-n", name, "link", "set", "lo", "up"))
	}
	for _, p := range n.ranks {
		carriers.Go(func() { n.carry(p) })
	}
	return n
}

// in returns the command line that runs a program in the namespace of a rank.
func (n *network) in(rank int) []string {
	return []string{"ip", "netns", "exec", n.ranks[rank].namespace}
}

// tunnel makes a TUN device, whose packets are read from and written to the file.
func tunnel(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil // after TUNSETIFF: a descriptor without a device cannot be polled
}

// carry writes the packets of a rank to their destinations until the rank's device is closed.
func (n *network) carry(from *port) {
	buffer := make([]byte, 1<<16)
	for {
		size, err := from.device.Read(buffer)
		if err != nil {
			return
		}
		if size < 20 || buffer[0]>>4 != 4 { // not IPv4
			continue
		}
		to := int(buffer[19]) - 1 // the last byte of the destination
		if to >= 0 && to < len(n.ranks) && !from.cut.Load() && !n.ranks[to].cut.Load() {
			_, _ = n.ranks[to].device.Write(buffer[:size])
		}
	}
}
