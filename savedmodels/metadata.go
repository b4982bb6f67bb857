package savedmodels

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"steadyfit/internal/manifest"
)

// metadataFormat is the newest supported format of the exporter's notes.
const metadataFormat = 1

// Metadata is the content of the exporter's notes in assets.extra/steadyfit.json. Every field
// is optional.
type Metadata struct {
	// Format is the version of the file format.
	Format int `json:"format,omitempty"`
	// Exporter, TensorFlow and Keras are the versions that exported the model.
	Exporter   string `json:"exporter,omitempty"`
	TensorFlow string `json:"tensorflow,omitempty"`
	Keras      string `json:"keras,omitempty"`
	// SavedModelSHA256 is the hex SHA-256 of the exported saved_model.pb.
	SavedModelSHA256 string `json:"saved_model_sha256,omitempty"`
	// Names has the names of inputs, outputs, labels and metrics that differ from their keys in
	// signatures, by key. The other fields use the names.
	Names map[string]string `json:"names,omitempty"`
	// Inputs and Labels describe the data inputs by name.
	Inputs map[string]InputMetadata `json:"inputs,omitempty"`
	Labels map[string]InputMetadata `json:"labels,omitempty"`
	// Outputs describes the outputs of signature predict by name.
	Outputs map[string]InputMetadata `json:"outputs,omitempty"`
	DataRecord
	// Metrics are the names of the metrics, without the loss.
	Metrics []string `json:"metrics,omitempty"`
	// Loss has the name of the loss function for each output of the model.
	Loss      map[string]string `json:"loss,omitempty"`
	Optimizer string            `json:"optimizer,omitempty"`
	// Precision is the Keras dtype policy, such as "float32" or "mixed_bfloat16".
	Precision string `json:"precision,omitempty"`
	// MicroBatchesExact states whether micro-batches give the same update as the whole batch;
	// nil means unknown. The exporter sets it to false for BatchNormalization, Dropout, an
	// Embedding with an optimizer other than SGD without clipping, and other models whose
	// gradients differ in parts.
	MicroBatchesExact *bool `json:"micro_batches_exact,omitempty"`
	// MicroBatchesInexact is the reason why MicroBatchesExact is false; empty if unknown.
	MicroBatchesInexact string `json:"micro_batches_inexact,omitempty"`
	// LossReduction states how to combine the losses of micro-batches to the loss of the batch:
	// "sum_over_batch_size" or "mean" (also if empty), "mean_with_sample_weight", "sum",
	// "sum_in_training" or "unknown" (docs/reference/contract.md).
	LossReduction string `json:"loss_reduction,omitempty"`
	// Compiled has the fixed sizes of each XLA-compiled signature: "batch", and "steps" for
	// several steps per execution.
	Compiled map[string]map[string]int64 `json:"compiled,omitempty"`
}

// rename gives tensors of a signature their names in m.Names, and sorts them by name.
func (m *Metadata) rename(tensors []Tensor) {
	if m == nil {
		return
	}
	for i, t := range tensors {
		if name := m.Names[t.Name]; name != "" {
			tensors[i].Name, tensors[i].Key = name, t.Name
		}
	}
	slices.SortFunc(tensors, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
}

// InputMetadata describes an input, label or output.
type InputMetadata struct {
	DType string  `json:"dtype,omitempty"`
	Shape []int64 `json:"shape,omitempty"`
	// Range is the lowest and highest expected value; nil if unknown.
	Range *[2]float64 `json:"range,omitempty"`
	// Rows is the number of rows in the table that the values index (input_dim of an
	// Embedding); 0 if the values are not indices.
	Rows int64 `json:"rows,omitempty"`
	// FixedRank is set for a label if a dimension of size 1 more or less would change results.
	FixedRank bool `json:"fixed_rank,omitempty"`
	// Classes is the number of classes of a label; 0 if unknown.
	Classes int `json:"classes,omitempty"`
}

// DataRecord states how raw data becomes the inputs and labels of a model, according to the exporter
// or to a training. An adapter has the record of its own training.
type DataRecord struct {
	// ClassNames are the names of the classes, indexed by class number.
	ClassNames []string `json:"class_names,omitempty"`
	// NumericLabels is true if the labels of the training were numbers, so that class names have no numbers.
	// NamedLabels is true if they were names that the training has numbered, so that other numbers may mean other classes.
	NumericLabels bool `json:"numeric_labels,omitempty"`
	NamedLabels   bool `json:"named_labels,omitempty"`
	// Tags are those of the metagraph of the training, and Constants the values of inputs (Model.WithConstants);
	// nil if the training was given none.
	Tags      []string           `json:"tags,omitempty"`
	Constants map[string]float64 `json:"constants,omitempty"`
	// Columns are the table columns that an input was trained with, in order, if they have other names, or the only
	// input is text. Unnamed is true if an input was trained with several values without names, such as those of arrays.
	Columns map[string][]string `json:"columns,omitempty"`
	Unnamed bool                `json:"unnamed,omitempty"`
	// Ignored lists the fields that the training left out. It is empty, but not nil, if this training left out
	// no fields and the one before it did.
	Ignored []string `json:"ignored,omitzero"`
	// Scale is the range to which bytes from 0 to 255 were scaled; nil if unknown.
	Scale *[2]float64 `json:"scale,omitempty"`
	// Schema has the rules for the columns of tables, a data.Schema as JSON.
	Schema json.RawMessage `json:"schema,omitempty"`
}

// WithRecord returns a copy of the model with another record, such as that of an adapter. If r is
// nil, it returns the model unchanged.
func (m *Model) WithRecord(r *DataRecord) *Model {
	if r == nil {
		return m
	}
	changed, noted := *m, *cmp.Or(m.Metadata, &Metadata{})
	noted.DataRecord = *r
	changed.Metadata = &noted
	return &changed
}

func (m *Model) record() DataRecord { return cmp.Or(m.Metadata, &Metadata{}).DataRecord }

// Constants returns the values of WithConstants.
func (m *Model) Constants() map[string]float64 { return m.record().Constants }

// readMetadata reads the exporter's notes; nil if the file does not exist.
func readMetadata(dir string) (*Metadata, error) {
	data, err := manifest.ReadNotes(dir)
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
