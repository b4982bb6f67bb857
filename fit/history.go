package fit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"steadyfit/memory"
	"steadyfit/session"
)

// History is what a run did.
type History struct {
	// Records has one entry per epoch. After a resume, the epochs before it are
	// there too.
	Records []Record
	// Stopped says why a hook asked for the end of the run, or why there was
	// nothing to do; otherwise it is empty.
	Stopped string
	// Done is true if the training is over and the session has its result: all epochs
	// are done, or a hook has finished it, as EarlyStop does. It is false if a hook has
	// only stopped it, to go on in another process, say, and after an error.
	Done bool
	// ResumedFrom is the checkpoint that the run continued; empty if it began
	// anew.
	ResumedFrom string
	// Checkpoint is the newest checkpoint of the run; empty if there is none.
	Checkpoint string
}

// Last is the record of the last epoch; the zero Record if there is none.
func (h *History) Last() Record {
	if len(h.Records) == 0 {
		return Record{}
	}
	return h.Records[len(h.Records)-1]
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

// Record is what is known of one epoch. As JSON it is one object whose fields are
// recordFields, the metrics and, if there were resets, the list of these; what is not
// known is left out.
type Record struct {
	// Epoch counts from 1.
	Epoch int
	// Step is the number of train steps done at the end of the epoch.
	Step int64
	// Metrics are means over the samples of the epoch; those of the validation
	// begin with "val_" and are missing in epochs without validation.
	Metrics Metrics
	// LearningRate is the rate of the last step; nil if it is up to the model.
	LearningRate *float64
	// Seconds is how long the epoch took, validation included.
	Seconds float64
	// SamplesPerSecond and StepsPerSecond are over the time of training, without
	// that of the validation; 0 if no time passed.
	SamplesPerSecond float64
	StepsPerSecond   float64
	// DataWait is the share of that time, from 0 to 1, in which a step could not begin
	// because its batch was not there yet; nil if it is not known. What is read and made
	// while steps run (data.Prefetch) does not count.
	DataWait *float64
	// Memory is that of this process at the end of the epoch.
	Memory memory.Usage
	// GPU is the memory in use on GPUs at the end of the epoch, if the session says so:
	// see session.Session.GPUBytes.
	GPU memory.Reading
	// LiveTensors is the number of native tensors that are held, if the session
	// says so.
	LiveTensors *int64
	// Resets are those of the session in the epoch, and before its first step.
	Resets Resets
	// Events are words for what happened in the epoch, such as "learning_rate".
	Events []string
}

// Resets are what resets of a session did, in sum and one by one.
type Resets struct {
	Count int `json:"count"`
	// Returned is how much less memory the process had after them; it is negative
	// if it had more, and unknown if that could not be read.
	Returned memory.Reading `json:"returned"`
	// Seconds is the time that they took.
	Seconds float64 `json:"seconds"`
	// Each are the first 32 of them, in order.
	Each []Reset `json:"each,omitempty"`
}

// eachReset is how many resets of an epoch are recorded one by one.
const eachReset = 32

// Reset is what one reset of a session did.
type Reset struct {
	// Step is the number of train steps done before it.
	Step int64
	// Depth is how far it went.
	Depth session.Depth
	// Returned and Seconds are as in Resets.
	Returned memory.Reading
	Seconds  float64
}

// resetJSON is a Reset in the history.
type resetJSON struct {
	Step     int64         `json:"step"`
	Depth    session.Depth `json:"depth"`
	Returned *int64        `json:"returned_bytes,omitempty"`
	Seconds  float64       `json:"seconds"`
}

// MarshalJSON leaves out what is not known.
func (r Reset) MarshalJSON() ([]byte, error) {
	j := resetJSON{Step: r.Step, Depth: r.Depth, Seconds: r.Seconds}
	if r.Returned.OK {
		bytes := int64(r.Returned.Bytes)
		j.Returned = &bytes
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Reset) UnmarshalJSON(text []byte) error {
	var j resetJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	*r = Reset{Step: j.Step, Depth: j.Depth, Seconds: j.Seconds}
	if j.Returned != nil {
		r.Returned = memory.Known(memory.Bytes(*j.Returned))
	}
	return nil
}

// add adds one.
func (r *Resets) add(one Reset) {
	r.Returned = memory.Reading{
		Bytes: r.Returned.Bytes + one.Returned.Bytes,
		OK:    one.Returned.OK && (r.Returned.OK || r.Count == 0),
	}
	r.Count++
	r.Seconds += one.Seconds
	if len(r.Each) < eachReset {
		r.Each = append(r.Each, one)
	}
}

// recordFields are the fields of a Record in JSON, except for its metrics, in
// order. Metrics come between the second and the third.
var recordFields = []string{
	"epoch", "step", "learning_rate", "seconds", "samples_per_second", "steps_per_second", "data_wait",
	"rss_bytes", "anon_bytes", "peak_bytes", "gpu_bytes", "live_tensors",
	"resets", "reset_returned_bytes", "reset_seconds", "event",
}

// resetList is the field of Resets.Each in JSON, after all recordFields. It is no
// column of a CSVLog.
const resetList = "reset_list"

// fieldsBeforeMetrics is how many of the recordFields come before the metrics.
const fieldsBeforeMetrics = 2

// eventSeparator joins the events of a record into one text.
const eventSeparator = ","

// field returns the text of one of recordFields; ok is false if it is not known.
// All but the event are numbers.
func (r *Record) field(name string) (text string, ok bool) {
	float := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	size := func(v memory.Reading) (string, bool) { return strconv.FormatInt(int64(v.Bytes), 10), v.OK }
	switch name {
	case "epoch":
		return strconv.Itoa(r.Epoch), true
	case "step":
		return strconv.FormatInt(r.Step, 10), true
	case "learning_rate":
		if r.LearningRate != nil {
			return float(*r.LearningRate), true
		}
	case "seconds":
		return float(r.Seconds), true
	case "samples_per_second":
		return float(r.SamplesPerSecond), r.SamplesPerSecond > 0
	case "steps_per_second":
		return float(r.StepsPerSecond), r.StepsPerSecond > 0
	case "data_wait":
		if r.DataWait != nil {
			return float(*r.DataWait), true
		}
	case "rss_bytes":
		return size(r.Memory.RSS)
	case "anon_bytes":
		return size(r.Memory.Anon)
	case "peak_bytes":
		return size(r.Memory.Peak)
	case "gpu_bytes":
		return size(r.GPU)
	case "live_tensors":
		if r.LiveTensors != nil {
			return strconv.FormatInt(*r.LiveTensors, 10), true
		}
	case "resets":
		return strconv.Itoa(r.Resets.Count), r.Resets.Count > 0
	case "reset_returned_bytes":
		return size(r.Resets.Returned)
	case "reset_seconds":
		return float(r.Resets.Seconds), r.Resets.Count > 0
	case "event":
		return strings.Join(r.Events, eventSeparator), len(r.Events) > 0
	}
	return "", false
}

// MarshalJSON writes the record as one flat object, in a fixed order.
func (r Record) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	put := func(name string, value []byte) error {
		key, err := json.Marshal(name)
		if err != nil {
			return fmt.Errorf("history: field %q: %w", name, err)
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
		return nil
	}
	for i, name := range recordFields {
		if i == fieldsBeforeMetrics {
			for _, m := range r.Metrics {
				value, err := number(m.Value).MarshalJSON()
				if err != nil {
					return nil, fmt.Errorf("history: metric %s: %w", m.Name, err)
				}
				if err := put(m.Name, value); err != nil {
					return nil, err
				}
			}
		}
		text, ok := r.field(name)
		if !ok {
			continue
		}
		value := []byte(text)
		if name == "event" {
			var err error
			if value, err = json.Marshal(text); err != nil {
				return nil, fmt.Errorf("history: event %q: %w", text, err)
			}
		}
		if err := put(name, value); err != nil {
			return nil, err
		}
	}
	if each := r.Resets.Each; len(each) > 0 {
		value, err := json.Marshal(each)
		if err != nil {
			return nil, fmt.Errorf("history: resets: %w", err)
		}
		if err := put(resetList, value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON reads what MarshalJSON writes. Numbers of other names are
// metrics, in their order.
func (r *Record) UnmarshalJSON(text []byte) error {
	*r = Record{}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("history: a record is a JSON object, found %.40q", text)
	}
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
		if err := r.setField(name, value); err != nil {
			return fmt.Errorf("history: field %s: %w", name, err)
		}
	}
	if r.Epoch < 1 {
		return fmt.Errorf("history: no epoch in the record %.80s", text)
	}
	return nil
}

func (r *Record) setField(name string, value json.RawMessage) error {
	size := func(to *memory.Reading) error {
		to.OK = true
		return json.Unmarshal(value, &to.Bytes)
	}
	switch name {
	case "epoch":
		return json.Unmarshal(value, &r.Epoch)
	case "step":
		return json.Unmarshal(value, &r.Step)
	case "learning_rate":
		return json.Unmarshal(value, &r.LearningRate)
	case "seconds":
		return json.Unmarshal(value, &r.Seconds)
	case "samples_per_second":
		return json.Unmarshal(value, &r.SamplesPerSecond)
	case "steps_per_second":
		return json.Unmarshal(value, &r.StepsPerSecond)
	case "data_wait":
		return json.Unmarshal(value, &r.DataWait)
	case "rss_bytes":
		return size(&r.Memory.RSS)
	case "anon_bytes":
		return size(&r.Memory.Anon)
	case "peak_bytes":
		return size(&r.Memory.Peak)
	case "gpu_bytes":
		return size(&r.GPU)
	case "live_tensors":
		return json.Unmarshal(value, &r.LiveTensors)
	case "resets":
		return json.Unmarshal(value, &r.Resets.Count)
	case "reset_returned_bytes":
		return size(&r.Resets.Returned)
	case "reset_seconds":
		return json.Unmarshal(value, &r.Resets.Seconds)
	case resetList:
		return json.Unmarshal(value, &r.Resets.Each)
	case "event":
		var events string
		if err := json.Unmarshal(value, &events); err != nil {
			return err
		}
		r.Events = strings.Split(events, eventSeparator)
		return nil
	}
	var v number
	if err := v.UnmarshalJSON(value); err != nil {
		return err
	}
	r.Metrics = append(r.Metrics, Metric{Name: name, Value: float64(v)})
	return nil
}

// String is the record on one line, as Progress prints it: names and values,
// separated by two spaces.
func (r Record) String() string {
	return recordLine(r, strconv.Itoa(r.Epoch), strconv.FormatInt(r.Step, 10))
}

// recordLine prints a record with values padded to columns.
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
	if len(r.Events) > 0 {
		fmt.Fprintf(&b, "  event %s", strings.Join(r.Events, eventSeparator))
	}
	return strings.TrimRight(b.String(), " ")
}

// formatShare prints a share as percent.
func formatShare(v float64) string { return strconv.FormatFloat(100*v, 'f', 1, 64) + "%" }

// formatRate prints a speed with three digits or more.
func formatRate(v float64) string {
	decimals := 0
	if v < 10 {
		decimals = 2
	} else if v < 100 {
		decimals = 1
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}
