package observe

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/framework/summary_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"steadyfit/fit"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/wire"
)

// Field numbers in event.proto (TensorFlow 2.21), which has no generated Go type.
const (
	eventTime    = 1
	eventStep    = 2
	eventVersion = 3
	eventGraph   = 4
	eventSummary = 5
	eventSession = 7

	fileVersion = "brain.Event:2"
)

// sessionStart is the SessionLog with the status START.
var sessionStart = varint(nil, 1, 1)

func message(b []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}

func varint(b []byte, field protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

// event returns an Event message; content is encoded fields.
func event(at time.Time, step int64, content []byte) []byte {
	b := protowire.AppendTag(nil, eventTime, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(float64(at.UnixNano())/1e9))
	return append(varint(b, eventStep, step), content...)
}

// value returns a tensor in a form that a plugin of TensorBoard reads.
func value(tag, plugin string, class pb.DataClass, dtype types_go_proto.DataType, shape []int64, content []byte) *pb.Summary_Value {
	return &pb.Summary_Value{
		Tag: strings.ToValidUTF8(tag, "?"),
		Value: &pb.Summary_Value_Tensor{Tensor: &tensor_go_proto.TensorProto{
			Dtype: dtype, TensorShape: graphdef.Shape(shape).GetShape(), TensorContent: content,
		}},
		Metadata: &pb.SummaryMetadata{DataClass: class, PluginData: &pb.SummaryMetadata_PluginData{PluginName: plugin}},
	}
}

// scalar returns the value that tf.summary.scalar writes.
func scalar(name string, v float64) *pb.Summary_Value {
	return value(name, "scalars", pb.DataClass_DATA_CLASS_SCALAR, types_go_proto.DataType_DT_FLOAT, nil, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(v))))
}

// histogram returns the value that tf.summary.histogram writes: a row per bucket with its limits and
// its count.
func histogram(h fit.Histogram) *pb.Summary_Value {
	var content []byte
	for _, b := range h.Buckets {
		for _, v := range b {
			content = binary.LittleEndian.AppendUint64(content, math.Float64bits(v))
		}
	}
	return value(h.Name+histogramSuffix, "histograms", pb.DataClass_DATA_CLASS_TENSOR, types_go_proto.DataType_DT_DOUBLE, []int64{int64(len(h.Buckets)), 3}, content)
}

// histogramSuffix ends the tags of histograms, as in Keras.
const histogramSuffix = "/histogram"

const frameBytes = 8 + 4 + 4

// frame returns a record in the format of TFRecord files.
func frame(record []byte) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, len(record)+frameBytes), uint64(len(record)))
	b = binary.LittleEndian.AppendUint32(b, wire.Checksum(b))
	return binary.LittleEndian.AppendUint32(append(b, record...), wire.Checksum(record))
}

// unframe returns the first record of a file and its length with the frame. ok is false at the end of
// the file and for a damaged or incomplete record.
func unframe(b []byte) (record []byte, size int, ok bool) {
	if len(b) < frameBytes || binary.LittleEndian.Uint32(b[8:]) != wire.Checksum(b[:8]) {
		return nil, 0, false
	}
	n := binary.LittleEndian.Uint64(b)
	if n > uint64(len(b)-frameBytes) {
		return nil, 0, false
	}
	record = b[12 : 12+n]
	return record, int(n) + frameBytes, binary.LittleEndian.Uint32(b[12+n:]) == wire.Checksum(record)
}

// parsed is the part of an Event that a resumed run reads.
type parsed struct {
	step  int64
	tag   string // of the first value; empty if there is none
	value uint32 // the bits of the first value, if it is a scalar
	start bool   // the SessionLog START
}

func parseEvent(b []byte) (e parsed, values []*pb.Summary_Value, err error) {
	for f := range wire.Fields(b, &err, func(_ int, cause error) error { return cause }) {
		switch f.Num {
		case eventStep:
			n, _ := protowire.ConsumeVarint(f.Raw[len(f.Raw)-f.Size:])
			e.step = int64(n)
		case eventSession:
			e.start = bytes.Equal(f.Value, sessionStart)
		case eventSummary:
			var s pb.Summary
			err = proto.Unmarshal(f.Value, &s)
			values = s.GetValue()
		}
	}
	if len(values) > 0 {
		e.tag = values[0].GetTag()
		if content := values[0].GetTensor().GetTensorContent(); len(content) == 4 {
			e.value = binary.LittleEndian.Uint32(content)
		}
	}
	return e, values, err
}

// maxEventBytes limits the size of an event that a resumed run reads; the largest one has the graph.
const maxEventBytes = 1 << 30

// headBytes is the size of the head of a record: the length and its checksum.
const headBytes = 12

// recorded is the content of an event file. The field at has the byte offsets of the events, and end
// is the end of the last complete one.
type recorded struct {
	path   string
	events []parsed
	at     []int64
	end    int64
	size   int64
}

func readEvents(path string) (*recorded, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	r := &recorded{path: path, size: info.Size()}
	in := bufio.NewReader(file)
	var b []byte
	for {
		b = slices.Grow(b[:0], frameBytes)[:headBytes]
		if _, err := io.ReadFull(in, b); err != nil {
			return r, ended(err)
		}
		n := binary.LittleEndian.Uint64(b)
		if n > maxEventBytes || int64(n) > r.size-r.end-frameBytes {
			return r, nil
		}
		b = slices.Grow(b, int(n)+frameBytes)[:int(n)+frameBytes]
		if _, err := io.ReadFull(in, b[headBytes:]); err != nil {
			return r, ended(err)
		}
		record, size, ok := unframe(b)
		if !ok {
			return r, nil
		}
		e, _, err := parseEvent(record)
		if err != nil {
			return nil, fmt.Errorf("%s, at byte %d: %w", path, r.end, err)
		}
		r.events, r.at = append(r.events, e), append(r.at, r.end)
		r.end += int64(size)
	}
}

// ended returns nil if err is the end of a file, where a process that crashed leaves an incomplete
// record, and err otherwise.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// begins reports whether a training begins in the file.
func (r *recorded) begins() bool {
	return slices.ContainsFunc(r.events, func(e parsed) bool { return e.start })
}

// cut removes the first event for which beyond returns true, all events after it, and an incomplete
// record.
func (r *recorded) cut(beyond func(parsed) bool) error {
	if i := slices.IndexFunc(r.events, beyond); i >= 0 {
		r.events, r.end = r.events[:i], r.at[i]
	}
	if r.end == r.size {
		return nil
	}
	return os.Truncate(r.path, r.end)
}

// ownEvents is the end of the names of event files that this package writes.
const ownEvents = ".steadyfit.v2"

// newestEvents returns the files of the newest training in a folder, the last one first. It leaves out
// files of other programs.
func newestEvents(dir string) (newest []*recorded, err error) {
	paths, err := eventFiles(dir)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Backward(paths) {
		if !strings.HasSuffix(path, ownEvents) {
			continue
		}
		r, err := readEvents(path)
		if err != nil {
			return nil, err
		}
		newest = append(newest, r)
		if r.begins() {
			break
		}
	}
	if len(newest) == 0 || !newest[len(newest)-1].begins() {
		return nil, nil
	}
	return newest, nil
}

// cut removes the events for which beyond returns true from the files of the newest training in a
// folder. It returns the remaining events.
func cut(dir string, beyond func(parsed) bool) (remaining []parsed, err error) {
	newest, err := newestEvents(dir)
	if err != nil {
		return nil, err
	}
	for _, r := range newest {
		if err := r.cut(beyond); err != nil {
			return nil, err
		}
		remaining = append(remaining, r.events...)
	}
	return remaining, nil
}

// eventFiles returns the event files of a folder in the order in which TensorBoard reads them.
func eventFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var paths []string
	for _, e := range entries { // sorted by name
		if ok, _ := filepath.Match("events.out.tfevents.*", e.Name()); ok && e.Type().IsRegular() {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, err
}

// eventFile is an open event file.
type eventFile struct {
	file *os.File
	// size is the size of the complete records.
	size int64
}

// createEvents creates an event file that follows the other files of a folder.
func createEvents(dir string, at time.Time) (*eventFile, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	paths, err := eventFiles(dir)
	if err != nil {
		return nil, err
	}
	seconds := at.Unix()
	if len(paths) > 0 { // a file of the same second would be sorted by its process ID
		var last int64
		if n, _ := fmt.Sscanf(filepath.Base(paths[len(paths)-1]), "events.out.tfevents.%d", &last); n == 1 {
			seconds = max(seconds, last+1)
		}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.0"+ownEvents, seconds, host, os.Getpid())
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	e := &eventFile{file: file}
	if err := e.write(event(at, 0, message(nil, eventVersion, []byte(fileVersion)))); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return e, nil
}

// write writes an event completely or not at all.
func (e *eventFile) write(event []byte) error {
	record := frame(event)
	if _, err := e.file.WriteAt(record, e.size); err != nil {
		return errors.Join(err, e.file.Truncate(e.size))
	}
	e.size += int64(len(record))
	return nil
}

// summary writes an event with values.
func (e *eventFile) summary(at time.Time, step int64, values []*pb.Summary_Value) error {
	content, err := proto.Marshal(&pb.Summary{Value: values})
	if err != nil {
		return err
	}
	return e.write(event(at, step, message(nil, eventSummary, content)))
}

func (e *eventFile) close() error {
	if e == nil {
		return nil
	}
	return e.file.Close()
}
