// Package cluster describes the processes that train one model together, and finds them in the
// environment of a scheduler.
//
// Each process is a rank. All ranks have the same list of addresses and their own index in it.
// [FromEnvironment] reads the variables of Kubeflow's TFJob, of Kubeflow Trainer and of Slurm. The
// package does not need TensorFlow.
package cluster

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"steadyfit/option"
)

// maxRanks is the largest number of ranks. It bounds the memory for a list of ranks from the
// environment or a file.
const maxRanks = 4096

// Cluster describes the processes ("ranks") that train one model together.
type Cluster struct {
	Workers []string      // address host:port of each rank, in order
	Rank    int           // index of this process
	Start   time.Duration // longest wait for the other ranks, at the start and in a step; 0 means 10 minutes
	Timeout time.Duration // longest time for which the machine of a rank may be silent; 0 means 1 minute
	From    string        // variable that describes the cluster, for messages
}

// String returns, for example, "rank 1 of 4, from TF_CONFIG".
func (c *Cluster) String() string {
	text := fmt.Sprintf("rank %d of %d", c.Rank, len(c.Workers))
	if c.From != "" {
		text += ", from " + c.From
	}
	return text
}

// Check returns an *option.Error if a field is invalid.
func (c *Cluster) Check() error {
	switch n := len(c.Workers); {
	case n == 0 || n > maxRanks:
		return &option.Error{Option: "Cluster.Workers", Value: fmt.Sprintf("of length %d", n),
			Reason: fmt.Sprintf("expected 1 to %d addresses", maxRanks)}
	case c.Rank < 0 || c.Rank >= n:
		return &option.Error{Option: "Cluster.Rank", Value: c.Rank,
			Reason: fmt.Sprintf("expected 0 to %d, since the cluster has %d ranks", n-1, n)}
	case c.Start < 0:
		return &option.Error{Option: "Cluster.Start", Value: c.Start, Reason: "expected 0 or more"}
	case c.Timeout < 0:
		return &option.Error{Option: "Cluster.Timeout", Value: c.Timeout, Reason: "expected 0 or more"}
	}
	ranks := map[string]int{}
	for rank, address := range c.Workers {
		if reason := wrong(address); reason != "" {
			return &option.Error{Option: "Cluster.Workers", Value: shorten(address), Reason: reason}
		}
		if first, double := ranks[address]; double {
			return &option.Error{Option: "Cluster.Workers", Value: address,
				Reason: fmt.Sprintf("ranks %d and %d have this address", first, rank),
				Fix:    "use another port for each rank of a machine"}
		}
		ranks[address] = rank
	}
	return nil
}

// wrong returns the reason why an address is invalid, or "".
func wrong(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "expected host:port"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "expected a port from 1 to 65535"
	}
	if host == "" || len(host) > 253 || strings.ContainsFunc(host, notInHost) {
		return "expected a host name or an IP address before the port"
	}
	return ""
}

func notInHost(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._:%", r)
}

// shorten shortens a value from outside for an error.
func shorten(text string) string {
	const most = 80
	if runes := []rune(strings.ToValidUTF8(text[:min(len(text), 4*most)], "?")); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
