package native

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/tfproto"
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

// ProfileWriter writes executions in the Trace Event Format, which Perfetto and chrome://tracing
// open. In the file, the train steps are one process, and each device is another one. Operations
// that run at the same time are in different rows (threads) of the device, since TensorFlow does
// not record the threads. Only one execution is in memory. The format:
// docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
type ProfileWriter struct {
	// Operations is the number of operations, which is 0 if the executor cannot trace.
	Operations int

	w         *bufio.Writer
	err       error
	separator string    // before the next event
	origin    time.Time // when the first execution began; zero before it
	devices   map[string]int
	rows      map[int][]time.Time // the end of the last operation in each row of a device
}

// NewProfileWriter returns a writer to w. The caller calls End.
func NewProfileWriter(w io.Writer) *ProfileWriter {
	p := &ProfileWriter{w: bufio.NewWriter(w), devices: map[string]int{}, rows: map[int][]time.Time{}}
	_, p.err = p.w.WriteString(`{"displayTimeUnit":"ms","traceEvents":[` + "\n")
	p.process(0, "train steps")
	return p
}

// Write writes an execution. After an error, all later calls return it.
func (w *ProfileWriter) Write(p Profiled) error {
	if w.origin.IsZero() {
		w.origin = p.Began
	}
	name := fmt.Sprintf("step %d", p.First)
	if p.Last > p.First {
		name = fmt.Sprintf("steps %d to %d", p.First, p.Last)
	}
	w.span(traceEvent{Name: name}, p.Began, p.Ended.Sub(p.Began))
	for _, metadata := range p.Metadata {
		var run tfproto.RunMetadata
		if err := proto.Unmarshal(metadata, &run); err != nil {
			w.err = cmp.Or(w.err, fmt.Errorf("read RunMetadata: %w", err))
		}
		for _, device := range run.GetStepStats().GetDevStats() {
			w.device(device)
		}
	}
	return w.err
}

// End writes the end of the file. It does not close the writer.
func (w *ProfileWriter) End() error {
	if w.err == nil {
		_, w.err = w.w.WriteString("\n]}\n")
	}
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

// device writes the operations of a device.
func (w *ProfileWriter) device(device *tfproto.DeviceStepStats) {
	pid, ok := w.devices[device.GetDevice()]
	if !ok {
		pid = len(w.devices) + 1
		w.devices[device.GetDevice()] = pid
		w.process(pid, device.GetDevice())
	}
	nodes := slices.SortedStableFunc(slices.Values(device.GetNodeStats()), func(a, b *tfproto.NodeExecStats) int {
		return cmp.Compare(a.GetAllStartNanos()+a.GetOpStartRelNanos(), b.GetAllStartNanos()+b.GetOpStartRelNanos())
	})
	for _, node := range nodes {
		began := time.Unix(0, node.GetAllStartNanos()).Add(time.Duration(node.GetOpStartRelNanos()))
		took := time.Duration(node.GetOpEndRelNanos() - node.GetOpStartRelNanos())
		rows := w.rows[pid]
		row := slices.IndexFunc(rows, func(free time.Time) bool { return !began.Before(free) })
		if row < 0 {
			row = len(rows)
			rows = append(rows, time.Time{})
		}
		rows[row] = began.Add(took)
		w.rows[pid] = rows
		w.span(traceEvent{
			Name: cmp.Or(typeOf(node), node.GetNodeName()), Pid: pid, Tid: row,
			Args: map[string]string{"name": node.GetNodeName(), "label": node.GetTimelineLabel()},
		}, began, took)
		w.Operations++
	}
}

// process writes the name of a process, and span an event with a duration.
func (w *ProfileWriter) process(pid int, name string) {
	w.event(traceEvent{Name: "process_name", Ph: "M", Pid: pid, Args: map[string]string{"name": name}})
}

func (w *ProfileWriter) span(e traceEvent, began time.Time, took time.Duration) {
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	e.Ph, e.Time, e.Dur = "X", micros(began.Sub(w.origin)), micros(took)
	w.event(e)
}

func (w *ProfileWriter) event(e traceEvent) {
	if w.err != nil {
		return
	}
	text, err := json.Marshal(e)
	if err == nil {
		_, err = w.w.WriteString(w.separator + string(text))
	}
	w.separator, w.err = ",\n", err
}
