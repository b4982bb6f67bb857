package data

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/dtype"
	"steadyfit/internal/tfproto"
	"steadyfit/internal/wire"
)

// A record of a TFRecord file is the length of the message (8 bytes), the checksum of the length, the message,
// which is a tf.train.Example, and its checksum.
const (
	// maxRecord limits the bytes of a record. Each worker has memory for one record.
	maxRecord = 256 << 20

	recordHead, recordTail = 12, 4
)

// tfRecord reads TFRecord files.
type tfRecord struct{}

func (tfRecord) usualLabel() string { return "" }

func (tfRecord) scan(f io.Reader, size int64, each func(offset int64, sum uint32, raw []byte) error) error {
	r := bufio.NewReaderSize(f, 1<<20)
	var head [recordHead]byte
	var raw []byte
	for at := int64(0); ; {
		got, err := io.ReadFull(r, head[:])
		begins := wire.Checksum(head[:8]) == binary.LittleEndian.Uint32(head[8:])
		switch {
		case err == io.EOF:
			return nil
		case err == io.ErrUnexpectedEOF:
			return truncatedRecord(at, int64(got))
		case err != nil:
			return corrupt(err)
		case !begins && at == 0:
			return fmt.Errorf("not a TFRecord file, or a compressed one, which has to be decompressed: %w", ErrFormat)
		case !begins:
			return recordError(fmt.Sprintf("a wrong checksum of the length at byte %d", at), "a record",
				"copy or write the file again")
		}
		length := binary.LittleEndian.Uint64(head[:])
		if length > maxRecord {
			return recordError(fmt.Sprintf("a length of %d bytes at byte %d", length, at),
				fmt.Sprintf("at most %d", maxRecord), "write smaller records")
		}
		need := int(length) + recordTail
		if left := size - at - recordHead; left < int64(need) {
			return truncatedRecord(at, recordHead+left)
		}
		raw = slices.Grow(raw[:0], need)[:need]
		if _, err := io.ReadFull(r, raw); err != nil {
			return corrupt(err)
		}
		content := raw[:length]
		sum := wire.Checksum(content)
		if want := binary.LittleEndian.Uint32(raw[length:]); sum != want {
			return recordError(fmt.Sprintf("the checksum %#08x at byte %d", sum, at),
				fmt.Sprintf("%#08x, as stored in the file", want), "copy or write the file again")
		}
		if err := each(at+recordHead, sum, content); err != nil {
			return err
		}
		at += recordHead + int64(need)
	}
}

func truncatedRecord(at, have int64) error {
	return recordError(fmt.Sprintf("%d bytes from byte %d to the end of the file", have, at), "a whole record",
		"the file is truncated: copy or write it again")
}

// recordError returns an error for a record. recordSet.failed adds the file and the record.
func recordError(found, expected, fix string) error {
	return &RowError{Unit: "record", Found: found, Expected: expected, Fix: fix, Err: ErrFormat}
}

const (
	notAnExample  = "a tf.train.Example"
	writeExamples = "write tf.train.Example messages, as with tf.io.TFRecordWriter"
)

func (tfRecord) values(raw []byte, err *error) iter.Seq2[string, value] {
	return func(yield func(string, value) bool) {
		var example tfproto.Example
		if damaged := proto.Unmarshal(raw, &example); damaged != nil {
			*err = recordError(fmt.Sprintf("a damaged message (%v)", damaged), notAnExample, writeExamples)
			return
		}
		if len(example.ProtoReflect().GetUnknown()) > 0 {
			*err = recordError("another message, such as a tf.train.SequenceExample", notAnExample,
				"write each sequence as a feature of one length")
			return
		}
		features := example.GetFeatures().GetFeature()
		for _, name := range slices.Sorted(maps.Keys(features)) {
			if !yield(name, featureValue(features[name])) {
				return
			}
		}
	}
}

func featureValue(f *tfproto.Feature) value {
	var v vector
	switch list := f.GetKind().(type) {
	case *tfproto.Feature_FloatList:
		v = vec[float32](list.FloatList.GetValue())
	case *tfproto.Feature_Int64List:
		v = vec[int64](list.Int64List.GetValue())
	case *tfproto.Feature_BytesList:
		all := list.BytesList.GetValue()
		if len(all) == 1 {
			return value{kind: dtype.For[string](), count: 1, raw: all[0]}
		}
		texts := make(vec[string], len(all))
		for i, text := range all {
			texts[i] = string(text)
		}
		v = texts
	default:
		return value{}
	}
	return value{kind: v.kind(), count: v.len(), decoded: v}
}
