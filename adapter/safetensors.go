package adapter

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"steadyfit/tfbind"
)

// A file of safetensors (github.com/huggingface/safetensors, format 0.3) has the length of its header
// as uint64, the header as JSON, and the values of all tensors without gaps. The header maps the name
// of each tensor to a type, a shape and a position, and the name __metadata__ to an object of texts.

// metadataName is the key of the metadata in the header.
const metadataName = "__metadata__"

// The limits on a header: the size of the header in bytes, the size of Adapter.Record in the header,
// and the number of weights and of texts in the metadata.
const (
	maxHeader  = 8 << 20
	maxRecord  = 1 << 20
	maxEntries = 100_000
)

// alignment is the alignment of the values in the file.
const alignment = 8

// types maps element types to their names in files.
var types = map[tfbind.DType]string{
	tfbind.Float64: "F64", tfbind.Float32: "F32", tfbind.Float16: "F16", tfbind.BFloat16: "BF16",
	tfbind.Int64: "I64", tfbind.Int32: "I32", tfbind.Int16: "I16", tfbind.Int8: "I8",
	tfbind.Uint64: "U64", tfbind.Uint32: "U32", tfbind.Uint16: "U16", tfbind.Uint8: "U8", tfbind.Bool: "BOOL",
}

// entry is a tensor in the header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
	of      tfbind.DType
}

// encode returns the content of a file, and adds the hash of the values to the metadata. As in files of
// the Python package, weights with large elements come first, which aligns all values.
func encode(weights map[string]Weight, metadata map[string]string) ([]byte, error) {
	names := slices.SortedFunc(maps.Keys(weights), func(a, b string) int {
		return cmp.Or(cmp.Compare(weights[b].DType.Size(), weights[a].DType.Size()), cmp.Compare(a, b))
	})
	header, values := map[string]any{}, sha256.New()
	var at int64
	for _, name := range names {
		w := weights[name]
		kind, ok := types[w.DType]
		if !ok {
			return nil, fmt.Errorf("weight %s is %s, which a file of safetensors cannot hold", name, w.DType)
		}
		end := at + int64(len(w.Data))
		shape := append([]int64{}, w.Shape...)
		e := entry{kind, shape, [2]int64{at, end}, w.DType}
		if size, err := e.bytes(w.DType); err != nil || size != int64(len(w.Data)) || name == metadataName {
			return nil, fmt.Errorf("weight %s of shape %v has %d bytes; expected a name other than %s and the bytes of its shape", name, shape, len(w.Data), metadataName)
		}
		header[name], at = e, end
		values.Write(w.Data)
	}
	metadata[sumKey] = hex.EncodeToString(values.Sum(nil))
	header[metadataName] = metadata
	text, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	for len(text)%alignment != 0 {
		text = append(text, ' ')
	}
	if len(text) > maxHeader || len(names) > maxEntries {
		return nil, fmt.Errorf("%d weights need a header of %d bytes; expected at most %d weights and %d bytes", len(names), len(text), maxEntries, maxHeader)
	}
	out := make([]byte, 0, 8+int64(len(text))+at)
	out = append(binary.LittleEndian.AppendUint64(out, uint64(len(text))), text...)
	for _, name := range names {
		out = append(out, weights[name].Data...)
	}
	return out, nil
}

// bytes returns the size of the values of a tensor with the shape of e and the type d.
func (e entry) bytes(d tfbind.DType) (int64, error) {
	n := int64(d.Size())
	for _, size := range e.Shape {
		if size < 0 || size > 0 && n > (1<<62)/size {
			return 0, fmt.Errorf("it has the shape %v", e.Shape)
		}
		n *= size
	}
	return n, nil
}

// decode reads a file of the given size. It checks the header before it reads the values, whose
// total size is limited to most. The weights share one buffer.
func decode(r io.Reader, size, most int64) (map[string]Weight, map[string]string, error) {
	var length [8]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, nil, errors.New("it has no header")
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > math.MaxInt64 || int64(n) > size-8 {
		return nil, nil, fmt.Errorf("its header should have %d bytes, more than the file has", n)
	}
	if n > maxHeader {
		return nil, nil, fmt.Errorf("its header has %d bytes, expected at most %d", n, maxHeader)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, nil, err
	}
	entries, metadata, err := header(text)
	if err != nil {
		return nil, nil, err
	}
	if metadata[formatKey] != format {
		return nil, nil, fmt.Errorf("its metadata have the format %q, expected %q", metadata[formatKey], format)
	}
	if size -= 8 + int64(n); size > most {
		return nil, nil, fmt.Errorf("it has %d bytes of values, expected at most %d, so it may belong to another model", size, most)
	}
	if err := checkSpans(entries, size); err != nil {
		return nil, nil, err
	}
	values := make([]byte, size)
	if _, err := io.ReadFull(r, values); err != nil {
		return nil, nil, err
	}
	if sum := sha256.Sum256(values); metadata[sumKey] != "" && metadata[sumKey] != hex.EncodeToString(sum[:]) {
		return nil, nil, fmt.Errorf("its values are not those that were written; a program that changes them must remove %s from the metadata", sumKey)
	}
	weights := make(map[string]Weight, len(entries))
	for name, e := range entries {
		from, to := e.Offsets[0], e.Offsets[1]
		if !finite(e.of, values[from:to]) {
			return nil, nil, fmt.Errorf("weight %q has an element that is NaN or infinite", name)
		}
		weights[name] = Weight{DType: e.of, Shape: e.Shape, Data: values[from:to:to]}
	}
	return weights, metadata, nil
}

// exponents has masks of the exponent bits in the last two bytes of an element. All of them are set if
// the element is NaN or infinite.
var exponents = map[tfbind.DType]uint16{tfbind.Float64: 0x7ff0, tfbind.Float32: 0x7f80, tfbind.BFloat16: 0x7f80, tfbind.Float16: 0x7c00}

// finite reports whether no element is NaN or infinite.
func finite(d tfbind.DType, data []byte) bool {
	ones, floating := exponents[d]
	if !floating {
		return true
	}
	for element := range slices.Chunk(data, d.Size()) {
		if binary.LittleEndian.Uint16(element[len(element)-2:])&ones == ones {
			return false
		}
	}
	return true
}

func header(text []byte) (entries map[string]*entry, metadata map[string]string, err error) {
	entries, metadata = map[string]*entry{}, map[string]string{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err = members(d, func(name string) error {
		if name == metadataName {
			return named("its metadata", members(d, func(key string) error {
				var value string
				err := d.Decode(&value)
				metadata[key] = value
				return err
			}))
		}
		e := &entry{}
		entries[name] = e
		return named(fmt.Sprintf("weight %q", name), d.Decode(e))
	})
	if _, end := d.Token(); err == nil && !errors.Is(end, io.EOF) {
		err = errors.New("text after top-level value")
	}
	return entries, metadata, named("its header", err)
}

func named(what string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return err
}

// members calls do with the name of each member of a JSON object. do must decode the value of the
// member.
func members(d *json.Decoder, do func(name string) error) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return cmp.Or(err, errors.New("expected an object"))
	}
	seen := map[string]bool{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		text, _ := name.(string)
		if len(seen) == maxEntries || seen[text] {
			return fmt.Errorf("%q is repeated, or follows %d others; expected at most %d", text, len(seen), maxEntries)
		}
		seen[text] = true
		if err := do(text); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// checkSpans sets the types of the entries (entry.of), and returns an error unless the values of the
// entries fill size bytes without gaps and overlaps.
func checkSpans(entries map[string]*entry, size int64) error {
	var spans [][2]int64
	for name, e := range entries {
		if err := e.check(size); err != nil {
			return fmt.Errorf("weight %q: %w", name, err)
		}
		spans = append(spans, e.Offsets)
	}
	slices.SortFunc(spans, func(a, b [2]int64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	var end int64
	for _, s := range spans {
		if s[0] != end {
			return fmt.Errorf("its values overlap or have gaps at byte %d", end)
		}
		end = s[1]
	}
	if end != size {
		return fmt.Errorf("it has %d bytes of values, and its header expects %d", size, end)
	}
	return nil
}

// check sets e.of to the type of the entry, and checks the position of the entry in values of size
// bytes.
func (e *entry) check(size int64) error {
	for d, kind := range types {
		if kind != e.DType {
			continue
		}
		e.of = d
		n, err := e.bytes(d)
		if from, to := e.Offsets[0], e.Offsets[1]; err == nil && (from < 0 || to < from || to > size || to-from != n) {
			err = fmt.Errorf("it takes %d bytes, and the header places it from %d to %d of %d", n, from, to, size)
		}
		return err
	}
	return fmt.Errorf("its type %q is unknown", e.DType)
}
