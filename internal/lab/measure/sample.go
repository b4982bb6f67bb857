package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"runtime"

	"steadyfit/data"
)

// A Sample is the result of one run of a variant: the JSON object that variants in all languages
// print on a line. An epoch is a chunk of Plan.
type Sample struct {
	// Steps is the number of measured steps in all epochs after the first.
	Steps int `json:"steps"`
	// StepNS is the mean time of a step in each epoch, in nanoseconds.
	StepNS []float64 `json:"step_ns"`
	// Anon is the anonymous memory after each epoch. RSS is the resident memory after the last
	// epoch, and Peak the largest RSS since the process started. All are in bytes.
	Anon []int64 `json:"anon_bytes"`
	RSS  int64   `json:"rss_bytes"`
	Peak int64   `json:"peak_bytes"`
	// CPU is the processor time of all threads during the measured steps, in nanoseconds.
	CPU int64 `json:"cpu_ns"`
	// FirstStep is the Unix time at the end of the first step, in nanoseconds; 0 if it is not
	// known.
	FirstStep int64 `json:"first_step_unix_ns,omitempty"`
	// WarmupLoss and LastLoss are the mean losses of the first and the last epoch.
	WarmupLoss float64 `json:"warmup_loss"`
	LastLoss   float64 `json:"last_loss"`
	// Versions by name: "tensorflow", "keras", "python".
	Versions map[string]string `json:"versions,omitempty"`
}

// Sample returns the result of a loop with that many steps per call, where the warm-up and each
// chunk were one epoch.
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

// Write writes the line that the command bench reads.
func (s Sample) Write(w io.Writer) error { return json.NewEncoder(w).Encode(s) }

// WithData passes the samples of the files x.npy and y.npy in a folder to use, as one batch that
// is valid until use returns. Each file is mapped only while it is copied.
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
