package fit

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"steadyfit/data"
)

const (
	batchKey     = "batch"
	stepsKey     = "steps_per_epoch"
	remainderKey = "drop_remainder"
	fieldsKey    = "data.fields"
	// The values of dataKey and validationKey are hashes of the datasets.
	dataKey       = "data"
	validationKey = "validation"
	// sessionPrefix precedes the keys of Session.Identity.
	sessionPrefix = "session."
	modelKey      = sessionPrefix + "model"
	weightsKey    = sessionPrefix + "weights"
	rateKey       = "learning_rate"
	// metricsKey occurs only in a difference.
	metricsKey = "metrics"
)

// positionKeys determine the batches, and therefore the meaning of a position in the data.
var positionKeys = []string{batchKey, remainderKey, dataKey, fieldsKey}

// identityHints explain differences, by key.
var identityHints = map[string]string{
	dataKey:       "the samples, the data order (seed, shuffle) or the split into training and validation data differ",
	validationKey: "the samples, their order or the split into training and validation data differ",

	sessionPrefix + "tensorflow": "another version of TensorFlow rounds differently",
	sessionPrefix + "onednn": "oneDNN rounds differently; TF_ENABLE_ONEDNN_OPTS=1 turns it on and 0 off, and " +
		"without it the processor decides",
	sessionPrefix + "xla":      "compiled operations round differently",
	sessionPrefix + "compiled": "compiled steps round differently",
	sessionPrefix + "parts": "the update of this model depends on the number of micro-batches or ranks, as with " +
		"BatchNormalization and Dropout",
	sessionPrefix + "stacked": "in that executor, executions of several steps round differently",
}

// identify returns the values that a checkpoint must match for this run to resume from it. The
// first call reads the datasets. Names and paths are not included, so files may move.
func (r *run) identify(ctx context.Context) (map[string]string, error) {
	if r.identity != nil {
		return r.identity, nil
	}
	identity := map[string]string{
		batchKey:     strconv.Itoa(r.loop.Batch),
		stepsKey:     strconv.Itoa(r.state.StepsPerEpoch),
		remainderKey: strconv.FormatBool(r.loop.DropRemainder),
		fieldsKey:    describeFields(original(r.ds).Fields()),
	}
	if rate := r.loop.rateText(); rate != "" {
		identity[rateKey] = rate
	}
	var err error
	if identity[dataKey], err = fingerprint(ctx, r.ds, r.loop.Batch, r.alive); err != nil {
		return nil, fmt.Errorf("identifying the data: %w", err)
	}
	if v := r.loop.Validation; v != nil {
		if identity[validationKey], err = fingerprint(ctx, v, r.loop.Batch, r.alive); err != nil {
			return nil, fmt.Errorf("identifying the validation data: %w", err)
		}
	}
	for key, value := range r.state.Session.Identity() {
		identity[sessionPrefix+key] = value
	}
	r.identity = identity
	return identity, nil
}

// rateText returns a description of the schedule; empty if it is unknown. It normalizes
// numbers, so that 1e-3 equals 0.001.
func (l *Loop) rateText() string {
	if l.LearningRate == nil {
		return "that of the model"
	}
	parts := strings.Split(strings.TrimSpace(l.LearningRateText), ":")
	for i, part := range parts {
		if v, err := strconv.ParseFloat(part, 64); err == nil {
			parts[i] = strconv.FormatFloat(v, 'g', -1, 64)
		}
	}
	return strings.Join(parts, ":")
}

func describeFields(fields []data.FieldSpec) string {
	parts := make([]string, len(fields))
	for i, f := range fields {
		parts[i] = fmt.Sprintf("%s %s %v", f.Name, f.Type, f.Shape)
	}
	return strings.Join(parts, ", ")
}

// fingerprinter is a dataset that may identify its samples without reading them, such as an
// InMemory of images.
type fingerprinter interface {
	Fingerprint() (text string, ok bool, err error)
}

// derived is a dataset that is computed from the samples of another one, such as cached features. Training on it
// equals training on TrainsLike.
type derived interface{ TrainsLike() data.Dataset }

// unread returns a dataset without reading ahead.
func unread(ds data.Dataset) data.Dataset {
	if p, ok := ds.(*data.Prefetched); ok {
		return p.Dataset
	}
	return ds
}

// original returns the dataset that identifies ds.
func original(ds data.Dataset) data.Dataset {
	if d, ok := unread(ds).(derived); ok {
		return d.TrainsLike()
	}
	return ds
}

// fingerprint hashes the names, types, shapes and values of all fields, in the order of the
// first pass. It therefore depends on the shuffle seed, but not on the batch size. Passing the
// run's batch size reuses the dataset's buffers. Hashing takes about a second per GiB, in
// addition to reading. alive is called after each batch.
func fingerprint(ctx context.Context, ds data.Dataset, batch int, alive func()) (string, error) {
	ds = original(ds)
	if f, ok := unread(ds).(fingerprinter); ok {
		if text, ok, err := f.Fingerprint(); err != nil || ok {
			return text, err
		}
	}
	samples := 0
	var sums []*fieldSummer
	for b, err := range ds.Batches(data.Pass{Batch: batch}) {
		if err != nil {
			return "", err
		}
		if err := contextError(ctx); err != nil {
			return "", err
		}
		for len(sums) < len(b.Fields) {
			sums = append(sums, &fieldSummer{hash: sha256.New()})
		}
		for i, f := range b.Fields {
			if err := sums[i].add(f); err != nil {
				return "", fmt.Errorf("%s: batch %d: field %s: %w", ds.Name(), b.Index, f.Name, err)
			}
		}
		samples += b.Size
		alive()
	}
	if samples != ds.Len() {
		return "", fmt.Errorf("%s gave %d samples in a pass, but should have %d", ds.Name(), samples, ds.Len())
	}
	whole := sha256.New()
	for _, s := range sums {
		whole.Write(s.hash.Sum(nil)) // Write of a hash never fails
	}
	return fmt.Sprintf("%d samples (sha256 %x)", samples, whole.Sum(nil)[:8]), nil
}

type fieldSummer struct {
	hash  hash.Hash
	kind  string
	shape []int // shape of one sample
	raw   []byte
}

func (s *fieldSummer) add(f data.Field) error {
	if len(f.Shape) == 0 {
		return errors.New("it has no dimension of samples")
	}
	if kind := fmt.Sprintf("%q %T", f.Name, f.Values); kind != s.kind || !slices.Equal(f.Shape[1:], s.shape) {
		s.kind, s.shape = kind, slices.Clone(f.Shape[1:])
		fmt.Fprintf(s.hash, "%s %v\n", s.kind, s.shape)
	}
	if texts, ok := f.Values.([]string); ok {
		for _, text := range texts {
			fmt.Fprintf(s.hash, "%d:", len(text))
			if _, err := io.WriteString(s.hash, text); err != nil {
				return err
			}
		}
		return nil
	}
	// Hashing in parts avoids a copy of the whole batch.
	const part = 16 << 10
	values := reflect.ValueOf(f.Values)
	if values.Kind() != reflect.Slice {
		return fmt.Errorf("its values are %T, expected a slice", f.Values)
	}
	for from := 0; from < values.Len(); from += part {
		var err error
		s.raw, err = binary.Append(s.raw[:0], binary.LittleEndian,
			values.Slice(from, min(from+part, values.Len())).Interface())
		if err != nil {
			return err
		}
		s.hash.Write(s.raw)
	}
	return nil
}
