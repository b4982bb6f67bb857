package savedmodels

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// metadataFormat is the newest format of the exporter's notes that this version supports.
const metadataFormat = 1

// Metadata is the content of the exporter's notes, assets.extra/steadyfit.json. Every part may
// be missing.
type Metadata struct {
	// Format is the version of the file format.
	Format int `json:"format,omitempty"`
	// Exporter, TensorFlow and Keras are the versions that wrote the model.
	Exporter   string `json:"exporter,omitempty"`
	TensorFlow string `json:"tensorflow,omitempty"`
	Keras      string `json:"keras,omitempty"`
	// SavedModelSHA256 is the hex SHA-256 of the exported saved_model.pb.
	SavedModelSHA256 string `json:"saved_model_sha256,omitempty"`
	// Inputs and Labels describe the data inputs by name.
	Inputs map[string]InputMetadata `json:"inputs,omitempty"`
	Labels map[string]InputMetadata `json:"labels,omitempty"`
	// Outputs describes the outputs of predict by name.
	Outputs map[string]InputMetadata `json:"outputs,omitempty"`
	// ClassNames are the class names in the order of the class numbers.
	ClassNames []string `json:"class_names,omitempty"`
	// Metrics are the names of the metrics without the loss.
	Metrics []string `json:"metrics,omitempty"`
	// Loss names the loss function of each of the model's outputs.
	Loss      map[string]string `json:"loss,omitempty"`
	Optimizer string            `json:"optimizer,omitempty"`
	// Precision is the dtype policy: "float32", "mixed_bfloat16", ...
	Precision string `json:"precision,omitempty"`
	// MicroBatchesExact states whether micro-batches give the same update as the whole batch;
	// nil if not stated. BatchNormalization, Dropout, and an Embedding with an optimizer other
	// than SGD without clipping make it false.
	MicroBatchesExact *bool `json:"micro_batches_exact,omitempty"`
	// LossReduction states how the loss of a batch combines the losses of its samples:
	// "sum_over_batch_size" or "mean" (also if empty), ReductionWeighted or ReductionSum.
	LossReduction string `json:"loss_reduction,omitempty"`
	// Compiled has the sizes of each XLA-compiled signature: "batch", and "steps" with
	// several steps per execution.
	Compiled map[string]map[string]int64 `json:"compiled,omitempty"`
}

// The values of Metadata.LossReduction that micro-batches distinguish.
const (
	ReductionWeighted = "mean_with_sample_weight" // divided by the sum of the weights
	ReductionSum      = "sum"
)

// InputMetadata describes a tensor for users and data readers.
type InputMetadata struct {
	DType string  `json:"dtype,omitempty"`
	Shape []int64 `json:"shape,omitempty"`
	// Range is the lowest and highest expected value; nil if not stated.
	Range *[2]float64 `json:"range,omitempty"`
	// Rows is the number of rows of the table that the values index (an Embedding's
	// input_dim); 0 if they are not indices.
	Rows int64 `json:"rows,omitempty"`
	// Classes is the number of classes of the labels; 0 if not stated.
	Classes int `json:"classes,omitempty"`
}

// readMetadata reads the exporter's notes. It returns nil if there are none.
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
		return nil, errors.New("its content is null")
	}
	if m.Format > metadataFormat {
		return nil, fmt.Errorf("it has format %d, but this version supports formats up to %d", m.Format, metadataFormat)
	}
	return m, nil
}
