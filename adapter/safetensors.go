package adapter

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"steadyfit/tfbind"
)

// A file of safetensors (github.com/huggingface/safetensors, format 0.3) has the length of its
// header as uint64, the header as JSON, and the values of all tensors without gaps. The header
// maps names to type, shape and position, and __metadata__ to texts.

// metadataName is the key of the metadata in the header.
const metadataName = "__metadata__"

// maxHeader is the largest header that the Python package reads.
const maxHeader = 100 << 20

// alignment is the alignment of the values in the file.
const alignment = 8

// types are the names of element types in files, by type.
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
}

// encode returns the content of a file. Large elements come first, which aligns all values, as
// the Python package does.
func encode(weights map[string]Weight, metadata map[string]string) ([]byte, error) {
	names := make([]string, 0, len(weights))
	for name := range weights {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(weights[b].DType.Size(), weights[a].DType.Size()), cmp.Compare(a, b))
	})
	header := map[string]any{metadataName: metadata}
	var at int64
	for _, name := range names {
		w := weights[name]
		kind, ok := types[w.DType]
		if !ok {
			return nil, fmt.Errorf("weight %s is %s, which a file of safetensors cannot hold", name, w.DType)
		}
		end := at + int64(len(w.Data))
		shape := append([]int64{}, w.Shape...)
		e := entry{kind, shape, [2]int64{at, end}}
		if size, err := e.bytes(w.DType); err != nil || size != int64(len(w.Data)) || name == metadataName {
			return nil, fmt.Errorf("weight %s of shape %v has %d bytes; expected a name other than %s and the bytes of its shape", name, shape, len(w.Data), metadataName)
		}
		header[name], at = e, end
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	for len(text)%alignment != 0 {
		text = append(text, ' ')
	}
	out := make([]byte, 0, 8+int64(len(text))+at)
	out = append(binary.LittleEndian.AppendUint64(out, uint64(len(text))), text...)
	for _, name := range names {
		out = append(out, weights[name].Data...)
	}
	return out, nil
}

// bytes returns the size of the values that the shape has.
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

// decode reads the content of a file. The weights share its memory.
func decode(raw []byte) (map[string]Weight, map[string]string, error) {
	if len(raw) < 8 {
		return nil, nil, errors.New("it has no header")
	}
	size := binary.LittleEndian.Uint64(raw)
	if size > maxHeader || size > uint64(len(raw)-8) {
		return nil, nil, fmt.Errorf("its header should have %d bytes, more than the file has", size)
	}
	var header map[string]json.RawMessage
	if err := json.Unmarshal(raw[8:8+size], &header); err != nil {
		return nil, nil, fmt.Errorf("its header: %w", err)
	}
	values := raw[8+size:]
	weights, metadata := map[string]Weight{}, map[string]string{}
	var spans [][2]int64
	for name, text := range header {
		if name == metadataName {
			if err := strict(text, &metadata); err != nil {
				return nil, nil, fmt.Errorf("its metadata: %w", err)
			}
			continue
		}
		var e entry
		if err := strict(text, &e); err != nil {
			return nil, nil, fmt.Errorf("weight %q: %w", name, err)
		}
		w, err := e.weight(values)
		if err != nil {
			return nil, nil, fmt.Errorf("weight %q: %w", name, err)
		}
		weights[name] = w
		spans = append(spans, e.Offsets)
	}
	slices.SortFunc(spans, func(a, b [2]int64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	var end int64
	for _, s := range spans {
		if s[0] != end {
			return nil, nil, fmt.Errorf("its values overlap or have gaps at byte %d", end)
		}
		end = s[1]
	}
	if end != int64(len(values)) {
		return nil, nil, fmt.Errorf("it has %d bytes of values, and its header expects %d", len(values), end)
	}
	return weights, metadata, nil
}

// weight returns the tensor of an entry.
func (e entry) weight(values []byte) (Weight, error) {
	for d, kind := range types {
		if kind != e.DType {
			continue
		}
		n, err := e.bytes(d)
		from, to := e.Offsets[0], e.Offsets[1]
		if err == nil && (from < 0 || to < from || to > int64(len(values)) || to-from != n) {
			err = fmt.Errorf("it takes %d bytes, and the header places it from %d to %d of %d", n, from, to, len(values))
		}
		if err != nil {
			return Weight{}, err
		}
		return Weight{DType: d, Shape: e.Shape, Data: values[from:to:to]}, nil
	}
	return Weight{}, fmt.Errorf("its type %q is unknown", e.DType)
}

// strict decodes JSON without unknown fields.
func strict(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(to)
}
