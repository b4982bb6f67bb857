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

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
	"steadyfit/internal/wire"
)

const fileVersion = "brain.Event:2"

// scalar returns the value that tf.summary.scalar writes.
func scalar(name string, v float64) *tfproto.Summary_Value {
	return &tfproto.Summary_Value{
		Tag: strings.ToValidUTF8(name, "?"),
		Tensor: &tfproto.TensorProto{
			Dtype: tfproto.DataType_DT_FLOAT, TensorShape: graphdef.Shape(nil).GetShape(),
			TensorContent: binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(v))),
		},
		Metadata: &tfproto.SummaryMetadata{DataClass: tfproto.DataClass_DATA_CLASS_SCALAR,
			PluginData: &tfproto.SummaryMetadata_PluginData{PluginName: "scalars"}},
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
	if err := e.write(at, &tfproto.Event{What: &tfproto.Event_FileVersion{FileVersion: fileVersion}}); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return e, nil
}

// write writes an event completely or not at all.
func (e *eventFile) write(at time.Time, event *tfproto.Event) error {
	event.WallTime = float64(at.UnixNano()) / 1e9
	content, err := proto.Marshal(event)
	if err != nil {
		return err
	}
	record := frame(content)
	if _, err := e.file.WriteAt(record, e.size); err != nil {
		return errors.Join(err, e.file.Truncate(e.size))
	}
	e.size += int64(len(record))
	return nil
}
