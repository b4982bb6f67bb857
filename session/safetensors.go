package session

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"steadyfit/tfbind"
)

// A file of safetensors (github.com/huggingface/safetensors, format 0.3) has the length of its header
// as uint64, the header as JSON, and the values of all tensors without gaps. The header maps the name
// of each tensor to a type, a shape and a position, and the name __metadata__ to an object of texts.

// metadataName is the key of the metadata in the header.
const metadataName = "__metadata__"

// maxHeader limits the size of the header in bytes.
const maxHeader = 8 << 20

// tensorTypes maps element types to their names in files.
var tensorTypes = map[tfbind.DType]string{
	tfbind.Float64: "F64", tfbind.Float32: "F32", tfbind.Float16: "F16", tfbind.BFloat16: "BF16",
	tfbind.Int64: "I64", tfbind.Int32: "I32", tfbind.Int16: "I16", tfbind.Int8: "I8",
	tfbind.Uint64: "U64", tfbind.Uint32: "U32", tfbind.Uint16: "U16", tfbind.Uint8: "U8", tfbind.Bool: "BOOL",
}

// tensorEntry is a tensor in the header.
type tensorEntry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// encodeWeights returns the content of a file. As in files of the Python package, weights with large
// elements come first, which aligns all values.
func encodeWeights(weights map[string]Weight, metadata map[string]string) ([]byte, error) {
	names := slices.SortedFunc(maps.Keys(weights), func(a, b string) int {
		return cmp.Or(cmp.Compare(weights[b].DType.Size(), weights[a].DType.Size()), cmp.Compare(a, b))
	})
	header, values := map[string]any{metadataName: metadata}, []byte{}
	for _, name := range names {
		w := weights[name]
		kind, ok := tensorTypes[w.DType]
		if !ok {
			return nil, fmt.Errorf("weight %s is %s, which a file of safetensors cannot hold", name, w.DType)
		}
		from := int64(len(values))
		values = append(values, w.Data...)
		header[name] = tensorEntry{kind, append([]int64{}, w.Shape...), [2]int64{from, int64(len(values))}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	for len(text)%8 != 0 {
		text = append(text, ' ') // aligns the values
	}
	if len(text) > maxHeader {
		return nil, fmt.Errorf("%d weights need a header of %d bytes; expected at most %d", len(names), len(text), maxHeader)
	}
	length := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return slices.Concat(length, text, values), nil
}

// decodeWeights returns the weights and the metadata of a file. The weights share the memory of raw.
func decodeWeights(raw []byte) (map[string]Weight, map[string]string, error) {
	if len(raw) < 8 {
		return nil, nil, errors.New("it has no header")
	}
	n := binary.LittleEndian.Uint64(raw)
	if n > uint64(len(raw)-8) {
		return nil, nil, fmt.Errorf("its header should have %d bytes, more than the file has", n)
	}
	text, values := raw[8:8+n], raw[8+n:]
	var header map[string]json.RawMessage
	if err := json.Unmarshal(text, &header); err != nil {
		return nil, nil, fmt.Errorf("its header: %w", err)
	}
	var metadata map[string]string
	if err := json.Unmarshal(header[metadataName], &metadata); err != nil || metadata[formatKey] != adapterFormat {
		return nil, nil, fmt.Errorf("its metadata have the format %q, expected %q", metadata[formatKey], adapterFormat)
	}
	delete(header, metadataName)
	weights, used := map[string]Weight{}, int64(0)
	for name, text := range header {
		w, err := weightAt(text, values)
		if err != nil {
			return nil, nil, fmt.Errorf("weight %q: %w", name, err)
		}
		weights[name] = w
		used += int64(len(w.Data))
	}
	if used != int64(len(values)) {
		return nil, nil, fmt.Errorf("it has %d bytes of values, and its header describes %d", len(values), used)
	}
	return weights, metadata, nil
}

// weightAt returns the weight that an entry of the header describes.
func weightAt(entry json.RawMessage, values []byte) (w Weight, err error) {
	var e tensorEntry
	if err := json.Unmarshal(entry, &e); err != nil {
		return w, err
	}
	from, to := e.Offsets[0], e.Offsets[1]
	if from < 0 || to < from || to > int64(len(values)) {
		return w, fmt.Errorf("its values are from %d to %d of %d bytes", from, to, len(values))
	}
	w = Weight{Shape: e.Shape, Data: values[from:to:to]}
	for d, kind := range tensorTypes {
		if kind == e.DType {
			w.DType = d
		}
	}
	if w.DType == 0 {
		return w, fmt.Errorf("its type %q is unknown", e.DType)
	}
	return w, w.check()
}
