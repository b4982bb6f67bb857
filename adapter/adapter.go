// Package adapter reads and writes the weights that a training changed, without those of the
// base model: LoRA matrices, a head, or any other part of a model whose rest is frozen.
//
// An Adapter is a value in Go's memory. It needs no Close, and remains valid after its session is
// closed. [steadyfit/session.Session.Adapter] makes one. Session.Swap gives the weights of an adapter
// to a session whose model has the same base, so that one open model serves many adapters. An adapter
// does not include the state of the optimizer; a checkpoint does.
//
// In a folder, an adapter is the file adapter.safetensors, which the Python package safetensors can
// read. The metadata of the file include the hash of the base and the hash of the values. Read checks
// the whole file, and returns ErrFormat if it is damaged, not an adapter, or has a weight that is NaN
// or infinite. The hash of the values may be missing, as in a file of another program.
package adapter

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"steadyfit/internal/files"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// File is the name of the file in the folder of an adapter.
const File = "adapter.safetensors"

// ErrFormat means that a file is damaged, or not an adapter.
var ErrFormat = errors.New("not a valid adapter")

// Adapter is a set of trained weights.
type Adapter struct {
	// Base is the hash of the frozen weights that the adapter belongs to
	// (savedmodels.Model.Base). It is empty for a model without frozen weights. Only the names,
	// types and shapes of the weights are then compared.
	Base string
	// Record states how the data of the training became inputs; nil if unknown. Data for the adapter is
	// read as Record states (savedmodels.Model.WithRecord).
	Record *savedmodels.DataRecord
	// Weights are the trained weights by name (savedmodels.Variable.WeightName).
	Weights map[string]Weight
}

// Weight is the value of a variable.
type Weight struct {
	DType tfbind.DType
	Shape []int64
	// Data has the elements in row-major order, little-endian.
	Data []byte
}

// The metadata of the file.
const (
	formatKey = "format"
	format    = "steadyfit.adapter/1"
	baseKey   = "base"
	recordKey = "data"   // Adapter.Record, as JSON
	sumKey    = "sha256" // hash of all values, in their order
)

// maxBytes limits the size of the weights in a file.
const maxBytes = 64 << 30

// Read reads the adapter in a folder. most is the maximum size of the weights in bytes, such as the
// size of a model's weights (savedmodels.Model.WeightBytes); 0 means 64 GiB. A folder without an
// adapter is fs.ErrNotExist; a file instead of a folder, or larger weights, are ErrFormat.
func Read(dir string, most int64) (*Adapter, error) {
	path := filepath.Join(dir, File)
	f, size, err := files.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no adapter in %s: %w; give the folder of an adapter", dir, err)
	}
	if info, statErr := os.Stat(dir); statErr == nil && !info.IsDir() {
		return nil, fmt.Errorf("adapter %s: %w: it is a file; give a folder with the file %s", dir, ErrFormat, File)
	}
	if err != nil {
		return nil, fmt.Errorf("adapter: %w", err)
	}
	defer f.Close()
	weights, metadata, err := decode(f, size, cmp.Or(most, maxBytes))
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w; write it again, or give another folder", path, ErrFormat, err)
	}
	a := &Adapter{Base: metadata[baseKey], Weights: weights}
	if text := metadata[recordKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &a.Record); err != nil {
			return nil, fmt.Errorf("%s: %w: its metadata: %s: %w; write it again, or give another folder", path, ErrFormat, recordKey, err)
		}
	}
	return a, nil
}

// Write writes the adapter to a folder, which it makes. Write replaces an adapter in the folder: a
// crash leaves the old one or the new one. Record is left out if it has 1 MiB or more as JSON, such as
// that of a table with 100,000 columns.
func (a *Adapter) Write(dir string) error {
	metadata := map[string]string{formatKey: format, baseKey: a.Base}
	record, err := json.Marshal(a.Record)
	if err == nil && a.Record != nil && len(record) > len("{}") && len(record) < maxRecord {
		metadata[recordKey] = string(record)
	}
	var raw []byte
	if err == nil {
		raw, err = encode(a.Weights, metadata)
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err == nil {
		err = files.Replace(filepath.Join(dir, File), raw)
	}
	if err != nil {
		return fmt.Errorf("adapter %s: %w", dir, err)
	}
	return nil
}
