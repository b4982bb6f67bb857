package savedmodels

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// metadataFormat is the newest form of the exporter's notes known here.
const metadataFormat = 1

// Metadata is what the exporter noted about a model in
// assets.extra/steadyfit.json. Every part may be missing.
type Metadata struct {
	// Format numbers the form of the file; 1 at present.
	Format int `json:"format,omitempty"`
	// Exporter, TensorFlow and Keras are the versions that wrote the model.
	Exporter   string `json:"exporter,omitempty"`
	TensorFlow string `json:"tensorflow,omitempty"`
	Keras      string `json:"keras,omitempty"`
	// SavedModelSHA256 is the hex SHA-256 of the saved_model.pb that was exported; empty if
	// not stated.
	SavedModelSHA256 string `json:"saved_model_sha256,omitempty"`
	// Inputs and Labels describe the data inputs by name.
	Inputs map[string]InputMetadata `json:"inputs,omitempty"`
	Labels map[string]InputMetadata `json:"labels,omitempty"`
	// Outputs describes what predict gives, by name.
	Outputs map[string]InputMetadata `json:"outputs,omitempty"`
	// ClassNames are the names of the classes, in the order of their numbers.
	ClassNames []string `json:"class_names,omitempty"`
	// Metrics are the names of the metrics, less the loss.
	Metrics []string `json:"metrics,omitempty"`
	// Loss names the loss function of each of the model's outputs.
	Loss      map[string]string `json:"loss,omitempty"`
	Optimizer string            `json:"optimizer,omitempty"`
	// Precision is what the model computes in: "float32", "mixed_bfloat16", ...
	Precision string `json:"precision,omitempty"`
	// MicroBatchesExact says whether gradients and apply over parts of a batch
	// give the same update as train on the whole; nil if not stated. Layers that
	// mix the samples of a batch (BatchNormalization) or draw random numbers
	// (Dropout) make it false, and so does an Embedding under an optimizer other
	// than SGD without clipping.
	MicroBatchesExact *bool `json:"micro_batches_exact,omitempty"`
	// LossReduction says what the loss of a batch is of those of its samples:
	// "sum_over_batch_size" or "mean", which "" stands for, ReductionWeighted or
	// ReductionSum.
	LossReduction string `json:"loss_reduction,omitempty"`
	// Compiled gives the sizes that XLA twins were compiled for, by signature:
	// "batch", and "steps" for several steps per call.
	Compiled map[string]map[string]int64 `json:"compiled,omitempty"`
}

// Values of Metadata.LossReduction that make a difference to parts of a batch.
const (
	// ReductionWeighted: the mean by sample weights, divided by their sum.
	ReductionWeighted = "mean_with_sample_weight"
	// ReductionSum: the sum.
	ReductionSum = "sum"
)

// InputMetadata describes a tensor to people and data readers.
type InputMetadata struct {
	DType string  `json:"dtype,omitempty"`
	Shape []int64 `json:"shape,omitempty"`
	// Range is the lowest and highest value that is expected; nil if not stated.
	Range *[2]float64 `json:"range,omitempty"`
	// Rows is how many rows the table has that its values are indices of (an Embedding's
	// input_dim), negative ones from its end; 0 if it is no such input.
	Rows int64 `json:"rows,omitempty"`
	// Classes is how many classes the loss takes labels of, from 0 on; 0 if not stated.
	Classes int `json:"classes,omitempty"`
}

// readMetadata reads the exporter's notes; nil if there are none.
func readMetadata(path string) (*Metadata, error) {
	data, err := readFile(path, maxMetadataBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m *Metadata
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	if m == nil {
		return nil, errors.New("it says null")
	}
	if m.Format > metadataFormat {
		return nil, fmt.Errorf("it has format %d, and this version knows up to %d", m.Format, metadataFormat)
	}
	return m, nil
}
