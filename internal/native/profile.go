package native

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	stats "github.com/galeone/tensorflow/tensorflow/go/core/framework/step_stats_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/proto"
)

// Profiled is a traced execution of one or several train steps.
type Profiled struct {
	First, Last  int64 // numbers of the steps
	Began, Ended time.Time
	// Metadata has a serialized tensorflow.RunMetadata for each signature that ran.
	Metadata [][]byte
}

// traceEvent is an event of the Trace Event Format. Ph is X for a duration and M for the name of a process.
// Times are in microseconds.
type traceEvent struct {
	Name string            `json:"name"`
	Ph   string            `json:"ph"`
	Pid  int               `json:"pid"`
	Tid  int               `json:"tid"`
	Time float64           `json:"ts"`
	Dur  float64           `json:"dur,omitempty"`
	Args map[string]string `json:"args,omitempty"`
}

// WriteProfile writes executions in the Trace Event Format, which Perfetto and chrome://tracing open. The
// steps and each device are a process. Operations that run at the same time are in different rows (threads) of
// the device, since TensorFlow does not record the threads. WriteProfile returns the number of operations, which is 0 if the executor cannot trace.
// The format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
func WriteProfile(w io.Writer, list []Profiled) (operations int, err error) {
	events := []traceEvent{{Name: "process_name", Ph: "M", Args: map[string]string{"name": "train steps"}}}
	devices := map[string]int{}
	rows := map[int][]time.Time{} // the end of the last operation in each row of a device
	var origin time.Time
	if len(list) > 0 {
		origin = list[0].Began
	}
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	for _, p := range list {
		name := fmt.Sprintf("step %d", p.First)
		if p.Last > p.First {
			name = fmt.Sprintf("steps %d to %d", p.First, p.Last)
		}
		events = append(events, traceEvent{Name: name, Ph: "X", Time: micros(p.Began.Sub(origin)), Dur: micros(p.Ended.Sub(p.Began))})
		for _, metadata := range p.Metadata {
			var run pb.RunMetadata
			if err := proto.Unmarshal(metadata, &run); err != nil {
				return 0, fmt.Errorf("read RunMetadata: %w", err)
			}
			for _, device := range run.GetStepStats().GetDevStats() {
				pid, ok := devices[device.GetDevice()]
				if !ok {
					pid = len(devices) + 1
					devices[device.GetDevice()] = pid
					events = append(events, traceEvent{Name: "process_name", Ph: "M", Pid: pid, Args: map[string]string{"name": device.GetDevice()}})
				}
				nodes := slices.SortedStableFunc(slices.Values(device.GetNodeStats()), func(a, b *stats.NodeExecStats) int {
					return cmp.Compare(a.GetAllStartNanos()+a.GetOpStartRelNanos(), b.GetAllStartNanos()+b.GetOpStartRelNanos())
				})
				for _, node := range nodes {
					began := time.Unix(0, node.GetAllStartNanos()).Add(time.Duration(node.GetOpStartRelNanos()))
					took := time.Duration(node.GetOpEndRelNanos() - node.GetOpStartRelNanos())
					row := slices.IndexFunc(rows[pid], func(free time.Time) bool { return !began.Before(free) })
					if row < 0 {
						row = len(rows[pid])
						rows[pid] = append(rows[pid], time.Time{})
					}
					rows[pid][row] = began.Add(took)
					events = append(events, traceEvent{
						Name: cmp.Or(typeOf(node), node.GetNodeName()), Ph: "X", Pid: pid, Tid: row,
						Time: micros(began.Sub(origin)), Dur: micros(took),
						Args: map[string]string{"name": node.GetNodeName(), "label": node.GetTimelineLabel()},
					})
					operations++
				}
			}
		}
	}
	err = json.NewEncoder(w).Encode(map[string]any{"traceEvents": events, "displayTimeUnit": "ms"})
	return operations, err
}
