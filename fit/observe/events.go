package observe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/framework/summary_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

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

// sessionStart is the SessionLog with the status START. TensorBoard drops all earlier events of the folder
// whose step is at least that of this event.
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

// scalar returns the value that tf.summary.scalar writes.
func scalar(name string, v float64) *pb.Summary_Value {
	return &pb.Summary_Value{
		Tag: strings.ToValidUTF8(name, "?"),
		Value: &pb.Summary_Value_Tensor{Tensor: &tensor_go_proto.TensorProto{
			Dtype: types_go_proto.DataType_DT_FLOAT, TensorShape: graphdef.Shape(nil).GetShape(),
			TensorContent: binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(v))),
		}},
		Metadata: &pb.SummaryMetadata{DataClass: pb.DataClass_DATA_CLASS_SCALAR,
			PluginData: &pb.SummaryMetadata_PluginData{PluginName: "scalars"}},
	}
}

const frameBytes = 8 + 4 + 4

// frame returns a record in the format of TFRecord files.
func frame(record []byte) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, len(record)+frameBytes), uint64(len(record)))
	b = binary.LittleEndian.AppendUint32(b, wire.Checksum(b))
	return binary.LittleEndian.AppendUint32(append(b, record...), wire.Checksum(record))
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
	name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.0.steadyfit.v2", seconds, host, os.Getpid())
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
