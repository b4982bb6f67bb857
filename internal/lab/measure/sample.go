package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"steadyfit/data"
	"steadyfit/internal/files"
)

// A Sample is the result of a run as a JSON line, which variants in all languages print. An
// epoch is a chunk of Plan.
type Sample struct {
	// Steps is the number of measured steps.
	Steps int `json:"steps"`
	// StepNS has the mean step time of each epoch in nanoseconds.
	StepNS []float64 `json:"step_ns"`
	// Anon is the anonymous memory after each epoch, Peak the highest resident memory since the start, both in bytes.
	Anon []int64 `json:"anon_bytes"`
	Peak int64   `json:"peak_bytes"`
	// FirstStep is the Unix time at the end of the first step in nanoseconds.
	FirstStep int64 `json:"first_step_unix_ns,omitempty"`
	// WarmupLoss and LastLoss are the mean losses of the first and the last epoch.
	WarmupLoss float64 `json:"warmup_loss"`
	LastLoss   float64 `json:"last_loss"`
	// Versions are those of "tensorflow", "keras" and "python".
	Versions map[string]string `json:"versions,omitempty"`
}

// Sample returns the result for a loop whose warm-up and chunks are epochs.
func (r Result) Sample(tensorflow string) Sample {
	s := Sample{Steps: r.Steps, Anon: r.Anons, Peak: int64(r.Memory.Peak.Bytes),
		FirstStep: r.FirstStep.UnixNano(), WarmupLoss: r.WarmupLoss, LastLoss: r.ChunkLoss,
		Versions: map[string]string{"tensorflow": tensorflow}}
	for _, t := range r.Times {
		s.StepNS = append(s.StepNS, float64(t.Nanoseconds()))
	}
	return s
}

func (s Sample) Write(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// WriteArray writes an array to a .npy file.
func WriteArray(path string, a data.Array) error {
	return files.Stream(path, func(out io.Writer) error {
		w, err := data.NewWriter(out, ".npy", a.Shape[0])
		if err == nil {
			err = w.Write(data.Field{Array: a})
		}
		if err == nil {
			err = w.Flush()
		}
		return err
	})
}

// WithData calls use with the samples of x.npy and y.npy in a folder, as one batch that is
// valid until use returns. The samples are read from the files into that batch.
func WithData(dir string, use func(data.Batch) error) error {
	ds, err := data.Open(filepath.Join(dir, "x.npy"), data.Options{OnDisk: true})
	if err != nil {
		return err
	}
	defer ds.Close()
	for b, err := range ds.Batches(data.Pass{Batch: ds.Len()}) {
		if err == nil {
			err = ds.Close()
		}
		if err != nil {
			return err
		}
		return use(b)
	}
	return fmt.Errorf("%s has no samples", dir)
}
