package fit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"steadyfit/memory"
)

// History is the result of a run.
type History struct {
	// Records has one entry per epoch, including the epochs before a resume.
	Records []Record
	// Stopped is the reason why a hook stopped the run or why there was nothing to train;
	// otherwise empty.
	Stopped string
	// Done is true if the training is complete: all epochs are done, or a hook such as
	// EarlyStop called State.Finish. It is false after an error or State.Stop.
	Done bool
	// Restored is the epoch whose weights Checkpoint.RestoreBest restored; 0 if it restored none.
	Restored int
	// ResumedFrom is the checkpoint from which the run resumed; empty for a new training.
	ResumedFrom string
	// Checkpoint is the newest checkpoint; empty if there is none.
	Checkpoint string
}

// Last returns the record of the last epoch, or the zero Record.
func (h *History) Last() Record {
	if len(h.Records) == 0 {
		return Record{}
	}
	return h.Records[len(h.Records)-1]
}

// Final returns the record of the epoch whose weights the session has after the run: that of Restored, or the last.
func (h *History) Final() Record {
	for _, r := range h.Records {
		if r.Epoch == h.Restored {
			return r
		}
	}
	return h.Last()
}

// Metric returns the values of a metric, one per epoch that has it.
func (h *History) Metric(name string) []float64 {
	var values []float64
	for _, r := range h.Records {
		if v, ok := r.Metrics.Get(name); ok {
			values = append(values, v)
		}
	}
	return values
}

// Record describes one epoch. Its JSON form is one flat object that includes the metrics and
// omits unknown values.
type Record struct {
	Epoch int
	// Step is the number of train steps at the end of the epoch.
	Step int64
	// Metrics are means over the samples of the epoch. The names of validation metrics begin
	// with "val_".
	Metrics Metrics
	// LearningRate is the learning rate of the last step; nil if Loop.LearningRate is nil.
	LearningRate *float64
	// Seconds is the duration of the epoch including its validation.
	Seconds float64
	// SamplesPerSecond and StepsPerSecond are speeds of training, without validation; 0 if
	// unknown.
	SamplesPerSecond float64
	StepsPerSecond   float64
	// DataWait is the share of the training time, from 0 to 1, during which steps waited for
	// data; nil if unknown.
	DataWait *float64
	// Memory is the memory of this process at the end of the epoch.
	Memory memory.Usage
	// GPU is the memory in use on GPUs at the end of the epoch.
	GPU memory.Reading
	// LiveTensors is the number of native tensors at the end of the epoch.
	LiveTensors *int64
	// CheckpointPause is the time in seconds for which training waited for checkpoints since the
	// previous record.
	CheckpointPause float64
	// Resets are the resets of the session since the previous epoch.
	Resets Resets
	// Events are the names of events in the epoch, such as "learning_rate".
	Events []string
}

// Resets summarizes the resets of a session in one epoch.
type Resets struct {
	Count int `json:"count"`
	// Returned is the memory that the resets released; negative if memory grew.
	Returned memory.Reading `json:"returned"`
	// Seconds is the total duration of the resets.
	Seconds float64 `json:"seconds"`
}

func (r *Resets) add(more Resets) {
	r.Returned = memory.Reading{Bytes: r.Returned.Bytes + more.Returned.Bytes,
		OK: more.Returned.OK && (r.Returned.OK || r.Count == 0)}
	r.Count += more.Count
	r.Seconds += more.Seconds
}

func known(r memory.Reading) *int64 {
	if !r.OK {
		return nil
	}
	bytes := int64(r.Bytes)
	return &bytes
}

func reading(bytes *int64) memory.Reading {
	if bytes == nil {
		return memory.Reading{}
	}
	return memory.Known(memory.Bytes(*bytes))
}

// recordJSON is the JSON form of a Record without its metrics, which follow the field step. A
// CSV file has the same columns except the last.
type recordJSON struct {
	Epoch            int      `json:"epoch"`
	Step             int64    `json:"step"`
	LearningRate     *float64 `json:"learning_rate,omitempty"`
	Seconds          float64  `json:"seconds"`
	SamplesPerSecond float64  `json:"samples_per_second,omitempty"`
	StepsPerSecond   float64  `json:"steps_per_second,omitempty"`
	DataWait         *float64 `json:"data_wait,omitempty"`
	RSS              *int64   `json:"rss_bytes,omitempty"`
	Anon             *int64   `json:"anon_bytes,omitempty"`
	Peak             *int64   `json:"peak_bytes,omitempty"`
	GPU              *int64   `json:"gpu_bytes,omitempty"`
	LiveTensors      *int64   `json:"live_tensors,omitempty"`
	Resets           int      `json:"resets,omitempty"`
	ResetReturned    *int64   `json:"reset_returned_bytes,omitempty"`
	ResetSeconds     *float64 `json:"reset_seconds,omitempty"`
	Event            string   `json:"event,omitempty"`
	CheckpointPause  float64  `json:"checkpoint_pause_seconds,omitempty"`
}

// fieldsBeforeMetrics is the number of fields of recordJSON before the metrics.
const fieldsBeforeMetrics = 2

var recordFields = func() (names []string) {
	for f := range reflect.TypeFor[recordJSON]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}()

const eventSeparator = ","

func (r *Record) fields() recordJSON {
	j := recordJSON{
		Epoch: r.Epoch, Step: r.Step, LearningRate: r.LearningRate, Seconds: r.Seconds,
		SamplesPerSecond: r.SamplesPerSecond, StepsPerSecond: r.StepsPerSecond, DataWait: r.DataWait,
		RSS: known(r.Memory.RSS), Anon: known(r.Memory.Anon), Peak: known(r.Memory.Peak), GPU: known(r.GPU),
		LiveTensors: r.LiveTensors,
		Resets:      r.Resets.Count, ResetReturned: known(r.Resets.Returned),
		Event: strings.Join(r.Events, eventSeparator),
	}
	if r.Resets.Seconds > 0 { // unknown for a reset by process
		j.ResetSeconds = &r.Resets.Seconds
	}
	j.CheckpointPause = r.CheckpointPause
	return j
}

// column returns the text of a field or metric for a CSV file; empty if it is unknown.
func (r *Record) column(name string) string {
	if v, ok := r.Metrics.Get(name); ok {
		return fmt.Sprint(v)
	}
	i := slices.Index(recordFields, name)
	if i < 0 {
		return "" // this epoch lacks the metric
	}
	v := reflect.ValueOf(r.fields()).Field(i)
	if v.IsZero() && !slices.Contains([]string{"epoch", "step", "seconds"}, name) {
		return ""
	}
	return fmt.Sprint(reflect.Indirect(v).Interface())
}

// MarshalJSON writes the fields in a fixed order.
func (r Record) MarshalJSON() ([]byte, error) {
	fields, err := json.Marshal(r.fields())
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	text := fmt.Appendf(nil, `{"epoch":%d,"step":%d`, r.Epoch, r.Step)
	rest := fields[len(text):]
	for _, m := range r.Metrics {
		name, err := json.Marshal(m.Name)
		if err != nil {
			return nil, fmt.Errorf("history: metric %q: %w", m.Name, err)
		}
		value, err := number(m.Value).MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("history: metric %s: %w", m.Name, err)
		}
		text = fmt.Appendf(text, ",%s:%s", name, value)
	}
	return append(text, rest...), nil
}

// UnmarshalJSON reads the output of MarshalJSON. Every field with an unknown name becomes a
// metric.
func (r *Record) UnmarshalJSON(text []byte) error {
	*r = Record{}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("history: a record is a JSON object, found %.40q", text)
	}
	fields := make(map[string]json.RawMessage)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return fmt.Errorf("history: %w", err)
		}
		name, _ := token.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("history: field %s: %w", name, err)
		}
		if slices.Contains(recordFields, name) {
			fields[name] = value
			continue
		}
		var v number
		if err := v.UnmarshalJSON(value); err != nil {
			return fmt.Errorf("history: metric %s: %w", name, err)
		}
		r.Metrics = append(r.Metrics, Metric{Name: name, Value: float64(v)})
	}
	var j recordJSON
	if own, err := json.Marshal(fields); err != nil {
		return fmt.Errorf("history: %w", err)
	} else if err := json.Unmarshal(own, &j); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	if j.Epoch < 1 {
		return fmt.Errorf("history: no epoch in the record %.80s", text)
	}
	r.Epoch, r.Step, r.LearningRate, r.Seconds = j.Epoch, j.Step, j.LearningRate, j.Seconds
	r.SamplesPerSecond, r.StepsPerSecond, r.DataWait = j.SamplesPerSecond, j.StepsPerSecond, j.DataWait
	r.Memory.RSS, r.Memory.Anon, r.Memory.Peak = reading(j.RSS), reading(j.Anon), reading(j.Peak)
	r.GPU, r.LiveTensors = reading(j.GPU), j.LiveTensors
	r.Resets = Resets{Count: j.Resets, Returned: reading(j.ResetReturned)}
	if j.ResetSeconds != nil {
		r.Resets.Seconds = *j.ResetSeconds
	}
	r.CheckpointPause = j.CheckpointPause
	if j.Event != "" {
		r.Events = strings.Split(j.Event, eventSeparator)
	}
	return nil
}

// String returns the line that Progress prints for the record.
func (r Record) String() string {
	return recordLine(r, strconv.Itoa(r.Epoch), strconv.FormatInt(r.Step, 10))
}

func recordLine(r Record, epoch, step string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "epoch %s  step %s", epoch, step)
	for _, m := range r.Metrics {
		fmt.Fprintf(&b, "  %s %-9s", m.Name, m.text())
	}
	if r.LearningRate != nil {
		fmt.Fprintf(&b, "  learning_rate %-9.4g", *r.LearningRate)
	}
	if r.StepsPerSecond > 0 {
		fmt.Fprintf(&b, "  steps/s %-8s", formatRate(r.StepsPerSecond))
	}
	if r.DataWait != nil {
		fmt.Fprintf(&b, "  data_wait %-6s", formatShare(*r.DataWait))
	}
	if r.Memory.RSS.OK {
		fmt.Fprintf(&b, "  rss %-10s", r.Memory.RSS)
	}
	if r.Memory.Anon.OK {
		fmt.Fprintf(&b, "  anon %-10s", r.Memory.Anon)
	}
	if r.GPU.OK {
		fmt.Fprintf(&b, "  gpu %-10s", r.GPU)
	}
	if r.CheckpointPause > 0 {
		fmt.Fprintf(&b, "  checkpoint_pause %-6s", fmt.Sprintf("%.0fms", 1000*r.CheckpointPause))
	}
	if len(r.Events) > 0 {
		fmt.Fprintf(&b, "  event %s", strings.Join(r.Events, eventSeparator))
	}
	return strings.TrimRight(b.String(), " ")
}

func formatShare(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) + "%" }

func formatRate(v float64) string {
	decimals := 0
	if v < 10 {
		decimals = 2
	} else if v < 100 {
		decimals = 1
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}
