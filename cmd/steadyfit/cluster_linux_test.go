package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inNamespaces runs the program $0 as two ranks, each in a network of its own, which a cable
// connects. /etc/hosts has the names of the ranks. PET_NODE_RANK is the rank.
const inNamespaces = `
set -e
mount --bind "$DIR/hosts" /etc/hosts
unshare -n sleep 1000 &
peer=$!
trap "kill $peer" EXIT
while [ "$(readlink /proc/$peer/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do :; done
ip link add rank0 type veth peer name rank1 netns $peer
ip address add 10.9.0.1/24 dev rank0
ip link set lo up
ip link set rank0 up
nsenter -t $peer -n ip address add 10.9.0.2/24 dev rank1
nsenter -t $peer -n ip link set lo up
nsenter -t $peer -n ip link set rank1 up
PET_NODE_RANK=0 "$0" >"$DIR/log0" 2>&1 &
first=$!
PET_NODE_RANK=1 nsenter -t $peer -n "$0" >"$DIR/log1" 2>&1 || echo "rank 1 failed: $?"
wait $first
`

// Two processes with the variables of the Indexed Job train as one, over a network.
func TestIndexedJobInNamespaces(t *testing.T) {
	if out, err := exec.Command("unshare", "-n", "-m", "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Skipf("this needs the right to make network namespaces, as root has: %v: %s", err, out)
	}
	launched, dir := t.TempDir(), t.TempDir()
	out, err := launchDigits(t, launched, "--epochs", "3").CombinedOutput()
	require.NoError(t, err, "%s", out)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "hosts"),
		[]byte("127.0.0.1 localhost\n10.9.0.1 fine-tune-0.fine-tune\n10.9.0.2 fine-tune-1.fine-tune\n"), 0o600))
	arguments, err := json.Marshal(append(digitsFit(dir), "--epochs", "3"))
	require.NoError(t, err)
	cmd := exec.Command("unshare", "-n", "-m", "sh", "-c", inNamespaces, os.Args[0])
	cmd.Env = append(os.Environ(), argsEnv+"="+string(arguments), "DIR="+dir)
	environment := indexedEnvironment(t, 0)
	delete(environment, "PET_NODE_RANK")
	for name, value := range environment {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err = cmd.CombinedOutput()
	logs := make([]string, 2)
	for rank, file := range []string{"log0", "log1"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		assert.NoError(t, err)
		logs[rank] = string(text)
	}
	require.NoError(t, err, "%s\n%v", out, logs)
	require.Empty(t, string(out), "%v", logs)
	assert.Contains(t, logs[0], "cluster: rank 0 of 2, from PET_MASTER_ADDR\n")
	assert.Contains(t, logs[1], "cluster: rank 1 of 2, from PET_MASTER_ADDR\n")
	assert.True(t, bytes.Equal(launchedWeights(t, launched), launchedWeights(t, dir)), "the weights differ")
}
