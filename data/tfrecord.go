package data

import (
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"steadyfit/internal/dtype"
	"steadyfit/internal/wire"
)

// tfRecord reads TFRecord files of tf.train.Example messages. A record is the length of the message
// (8 bytes), the checksum of the length, the message, and its checksum.
type tfRecord struct{}

const (
	// maxRecord limits the bytes of a record. Each worker has memory for one record.
	maxRecord = 256 << 20

	recordHead, recordTail = 12, 4
)

func (tfRecord) name() string { return "TFRecord" }

func (tfRecord) usualLabel() string { return "" }

func (tfRecord) begins(head []byte) bool {
	return len(head) >= recordHead && wire.Checksum(head[:8]) == binary.LittleEndian.Uint32(head[8:])
}

func (t tfRecord) scan(r io.Reader, size int64, each func(record, []byte) error) error {
	var head [recordHead]byte
	var raw []byte
	for at := int64(0); ; {
		got, err := io.ReadFull(r, head[:])
		switch {
		case err == io.EOF:
			return nil
		case err == io.ErrUnexpectedEOF:
			return truncatedRecord(at, int64(got))
		case err != nil:
			return corrupt(err)
		case !t.begins(head[:]) && at == 0:
			return fmt.Errorf("not a TFRecord file: the checksum of its first 8 bytes is wrong: %w", ErrFormat)
		case !t.begins(head[:]):
			return recordError(fmt.Sprintf("a wrong checksum of the length at byte %d", at), "a record", "copy or write the file again")
		}
		length := binary.LittleEndian.Uint64(head[:])
		if length > maxRecord {
			return recordError(fmt.Sprintf("a length of %d bytes at byte %d", length, at), fmt.Sprintf("at most %d", maxRecord), "write smaller records")
		}
		need := int64(length) + recordTail
		if left := size - at - recordHead; size >= 0 && left < need {
			return truncatedRecord(at, recordHead+left)
		}
		if raw, err = readGrowing(r, raw, int(need)); err == io.EOF || err == io.ErrUnexpectedEOF {
			return truncatedRecord(at, recordHead+int64(len(raw)))
		} else if err != nil {
			return corrupt(err)
		}
		content := raw[:length]
		found := recordAt(at+recordHead, content)
		if want := binary.LittleEndian.Uint32(raw[length:]); found.sum != want {
			return recordError(fmt.Sprintf("the checksum %#08x at byte %d", found.sum, at), fmt.Sprintf("%#08x, as stored in the file", want), "copy or write the file again")
		}
		if err := each(found, content); err != nil {
			return err
		}
		at += recordHead + need
	}
}

func truncatedRecord(at, have int64) error {
	return recordError(fmt.Sprintf("%d bytes from byte %d to the end of the file", have, at), "a whole record", "the file is truncated: copy or write it again")
}

// recordError returns an error for a record. recordSet.failed adds the file and the record.
func recordError(found, expected, fix string) error {
	return &RowError{Unit: "record", Found: found, Expected: expected, Fix: fix, Err: ErrFormat}
}

// readGrowing reads n bytes into buf. Since n may be wrong, memory grows as bytes are read. After an
// error, the result has the bytes that were read.
func readGrowing(r io.Reader, buf []byte, n int) ([]byte, error) {
	const least = 64 << 10
	for buf = buf[:0]; len(buf) < n; {
		from := len(buf)
		to := min(n, max(cap(buf), 2*from, least))
		buf = slices.Grow(buf, to-from)[:to]
		got, err := io.ReadFull(r, buf[from:])
		if err != nil {
			return buf[:from+got], err
		}
	}
	return buf, nil
}

// Numbers of fields in tensorflow/core/example/example.proto and feature.proto.
const (
	exampleFeatures = 1
	sequenceLists   = 2
	featuresFeature = 1
	entryKey        = 1
	entryValue      = 2
	featureBytes    = 1
	featureFloats   = 2
	featureInts     = 3
	listValue       = 1
)

const (
	notAnExample  = "a tf.train.Example"
	writeExamples = "write tf.train.Example messages, as with tf.io.TFRecordWriter"
)

func exampleFields(message []byte, err *error) iter.Seq[wire.Field] {
	return wire.Fields(message, err, func(_ int, cause error) error {
		return recordError(fmt.Sprintf("a damaged message (%v)", cause), notAnExample, writeExamples)
	})
}

func (tfRecord) values(raw []byte, err *error) iter.Seq2[[]byte, value] {
	return func(yield func([]byte, value) bool) {
		for f := range exampleFields(raw, err) {
			if f.Num == sequenceLists && f.Typ == protowire.BytesType {
				*err = recordError("a tf.train.SequenceExample", notAnExample, "write each sequence as a feature of one length")
				return
			}
			if f.Num != exampleFeatures {
				continue
			}
			for f := range exampleFields(f.Value, err) {
				if f.Num != featuresFeature {
					continue
				}
				var name []byte
				var v value
				for f := range exampleFields(f.Value, err) {
					switch f.Num {
					case entryKey:
						name = f.Value
					case entryValue:
						v = feature(f.Value, err)
					}
				}
				if *err != nil || !yield(name, v) {
					return
				}
			}
		}
	}
}

// feature returns the value of a Feature: its only list, whose elements are counted.
func feature(raw []byte, err *error) (v value) {
	for f := range exampleFields(raw, err) {
		var kind *dtype.Type
		switch f.Num {
		case featureBytes:
			kind = dtype.For[string]()
		case featureFloats:
			kind = dtype.For[float32]()
		case featureInts:
			kind = dtype.For[int64]()
		default:
			continue
		}
		if v.kind != nil {
			*err = recordError("two lists in a feature", notAnExample, writeExamples)
			return v
		}
		v = value{kind: kind, raw: f.Value}
	}
	if v.kind == nil || *err != nil {
		return v
	}
	for f := range exampleFields(v.raw, err) {
		if f.Num != listValue {
			continue
		}
		n, ok := 1, f.Typ == protowire.BytesType
		switch v.kind.Kind {
		case dtype.Float:
			ok = ok || f.Typ == protowire.Fixed32Type
			if f.Typ == protowire.BytesType {
				n, ok = len(f.Value)/4, len(f.Value)%4 == 0
			}
		case dtype.Int:
			ok = ok || f.Typ == protowire.VarintType
			if f.Typ == protowire.BytesType {
				n, ok = countVarints(f.Value)
			}
		}
		if !ok {
			*err = recordError("a damaged list of values", notAnExample, writeExamples)
			return v
		}
		v.count += n
	}
	return v
}

func countVarints(raw []byte) (n int, ok bool) {
	for ; len(raw) > 0; n++ {
		_, size := protowire.ConsumeVarint(raw)
		if size < 0 {
			return n, false
		}
		raw = raw[size:]
	}
	return n, true
}

func (tfRecord) decode(v value, dst vector, at int) (err error) {
	for f := range exampleFields(v.raw, &err) {
		if f.Num != listValue {
			continue
		}
		values := f.Value
		if f.Typ != protowire.BytesType {
			values = f.Raw[len(f.Raw)-f.Size:]
		}
		switch to := dst.(type) {
		case vec[float32]:
			for ; len(values) > 0; values = values[4:] {
				to[at] = math.Float32frombits(binary.LittleEndian.Uint32(values))
				at++
			}
		case vec[int64]:
			for len(values) > 0 {
				n, size := protowire.ConsumeVarint(values)
				to[at] = int64(n)
				values = values[size:]
				at++
			}
		case vec[string]:
			to[at] = string(values)
			at++
		}
	}
	return err
}

func (tfRecord) content(v value) []byte {
	var err error // feature has found the value
	for f := range exampleFields(v.raw, &err) {
		if f.Num == listValue {
			return f.Value
		}
	}
	return nil
}
