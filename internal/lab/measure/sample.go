package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"runtime"

	"steadyfit/data"
)

// A Sample is the result of one run of a variant: the JSON object that variants in all
// languages print on a line. An epoch is a chunk of Plan.
type Sample struct {
	// Steps is the number of measured steps: those of all epochs after the first.
	Steps int `json:"steps"`
	// StepNS is the mean time of a step in each epoch, in nanoseconds.
	StepNS []float64 `json:"step_ns"`
	// Anon is the anonymous memory after each epoch, RSS the resident memory after the
	// last, and Peak the most of that since the process started, in bytes.
	Anon []int64 `json:"anon_bytes"`
	RSS  int64   `json:"rss_bytes"`
	Peak int64   `json:"peak_bytes"`
	// CPU is the time in nanoseconds that all threads ran during the measured steps.
	CPU int64 `json:"cpu_ns"`
	// FirstStep is the Unix time, in nanoseconds, at which the first step had ended; 0
	// if that could not be seen.
	FirstStep int64 `json:"first_step_unix_ns,omitempty"`
	// WarmupLoss and LastLoss are the mean losses over the first epoch and the last.
	WarmupLoss float64 `json:"warmup_loss"`
	LastLoss   float64 `json:"last_loss"`
	// Versions by name: "tensorflow", "keras", "python".
	Versions map[string]string `json:"versions,omitempty"`
}

// Sample is the result of a loop with that many steps in a call, whose warm-up and chunks
// were epochs.
func (r Result) Sample(stepsPerCall int, tensorflow string) Sample {
	s := Sample{Steps: r.Steps * stepsPerCall, Anon: r.Anons, RSS: r.Memory.RSS, Peak: r.Memory.Peak, CPU: r.CPU.Nanoseconds(),
		FirstStep: r.FirstStep.UnixNano(), WarmupLoss: r.WarmupLoss, LastLoss: r.ChunkLoss,
		Versions: map[string]string{"go": runtime.Version()}}
	for _, t := range r.Times {
		s.StepNS = append(s.StepNS, float64(t.Nanoseconds())/float64(stepsPerCall))
	}
	if tensorflow != "" {
		s.Versions["tensorflow"] = tensorflow
	}
	return s
}

// Write writes the line that the program in bench reads.
func (s Sample) Write(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// WithData hands to use the samples of the files x.npy and y.npy in a folder, as one batch
// that is valid until use returns. The file is mapped only while it is copied.
func WithData(dir string, use func(data.Batch) error) error {
	ds, err := data.Open(filepath.Join(dir, "x.npy"), data.Options{Map: true})
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
