package data

import (
	"bufio"
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
		case !begins && at == 0 && (head[0] == 0x1f && head[1] == 0x8b || head[0] == 0x78 && (0x7800+int(head[1]))%31 == 0):
			return fmt.Errorf("TFRecord compressed by %s is %w: decompress the file",
				map[bool]string{true: "zlib", false: "gzip"}[head[0] == 0x78], ErrUnsupported)
		case !begins && at == 0:
			return fmt.Errorf("not a TFRecord file: the checksum of its first 8 bytes is wrong: %w", ErrFormat)
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
				*err = recordError("a tf.train.SequenceExample", notAnExample,
					"write each sequence as a feature of one length")
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
		case dtype.FloatKind:
			ok = ok || f.Typ == protowire.Fixed32Type
			if f.Typ == protowire.BytesType {
				n, ok = len(f.Value)/4, len(f.Value)%4 == 0
			}
		case dtype.IntKind:
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

// decodeFeature writes the elements of a value to dst, starting at index at.
func decodeFeature(v value, dst vector, at int) (err error) {
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

// featureText returns the bytes of a text value with one element.
func featureText(v value) []byte {
	var err error // stays nil, since function feature has parsed the value
	for f := range exampleFields(v.raw, &err) {
		if f.Num == listValue {
			return f.Value
		}
	}
	return nil
}
