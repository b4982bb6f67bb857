package native_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/native"
	"steadyfit/internal/tfproto"
)

// Write writes each execution to the file at once, so that only one execution is in memory.
// Operations at the same time are in different rows.
func TestProfileWriter(t *testing.T) {
	var nodes []*tfproto.NodeExecStats
	for i := range int64(100) {
		nodes = append(nodes, &tfproto.NodeExecStats{
			NodeName: strings.Repeat("n", 100), TimelineLabel: "out = MatMul(a, b)",
			AllStartNanos: 1000 * (i / 2), OpEndRelNanos: 900,
		})
	}
	metadata, err := proto.Marshal(&tfproto.RunMetadata{StepStats: &tfproto.StepStats{DevStats: []*tfproto.DeviceStepStats{{Device: "cpu", NodeStats: nodes}}}})
	require.NoError(t, err)
	var file bytes.Buffer
	w := native.NewProfileWriter(&file)
	for i := range int64(5) {
		before := file.Len()
		step := native.Profiled{First: i, Last: i, Began: time.Unix(0, 0), Ended: time.Unix(0, 50_000),
			Metadata: [][]byte{metadata}}
		require.NoError(t, w.Write(step))
		require.Greater(t, file.Len()-before, 15_000)
	}
	require.NoError(t, w.End())
	assert.Equal(t, 500, w.Operations)
	var trace struct {
		TraceEvents []struct {
			Name, Ph string
			Pid, Tid int
		}
	}
	require.NoError(t, json.Unmarshal(file.Bytes(), &trace))
	count := map[string]int{}
	rows := map[int]int{}
	for _, e := range trace.TraceEvents {
		if count[e.Ph+" "+e.Name]++; e.Ph == "X" && e.Pid == 1 {
			rows[e.Tid]++
		}
	}
	assert.Equal(t, map[string]int{"M process_name": 2, "X step 0": 1, "X step 1": 1, "X step 2": 1, "X step 3": 1,
		"X step 4": 1, "X MatMul": 500}, count)
	assert.GreaterOrEqual(t, len(rows), 2)

	full := errors.New("no space")
	w = native.NewProfileWriter(failing{full})
	assert.ErrorIs(t, errors.Join(w.Write(native.Profiled{Metadata: [][]byte{metadata}}), w.End()), full)
	assert.ErrorContains(t, native.NewProfileWriter(&file).Write(native.Profiled{Metadata: [][]byte{{1}}}),
		"read RunMetadata")
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
