// Package wire iterates over the fields of an encoded protobuf message without decoding it, and has the
// checksum of TensorFlow's files.
package wire

import (
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field is a field of an encoded message.
type Field struct {
	Num protowire.Number
	Typ protowire.Type
	// Value is the content of a length-delimited field. Raw is the field with its key.
	Value, Raw []byte
	// Size is the size of Raw without the key.
	Size int
}

// Fields iterates over the fields of an encoded message until *err is set. If the message is
// damaged, it sets *err to the result of damaged, which gets the position and the cause.
func Fields(message []byte, err *error, damaged func(at int, cause error) error) iter.Seq[Field] {
	return func(yield func(Field) bool) {
		for rest := message; len(rest) > 0; {
			num, typ, key := protowire.ConsumeTag(rest)
			n := key
			if key >= 0 {
				n = protowire.ConsumeFieldValue(num, typ, rest[key:])
			}
			if n < 0 {
				*err = damaged(len(message)-len(rest), protowire.ParseError(n))
				return
			}
			f := Field{Num: num, Typ: typ, Raw: rest[:key+n], Size: n}
			if typ == protowire.BytesType {
				f.Value, _ = protowire.ConsumeBytes(rest[key:])
			}
			if !yield(f) || *err != nil {
				return
			}
			rest = rest[key+n:]
		}
	}
}
