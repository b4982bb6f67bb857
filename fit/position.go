package fit

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"steadyfit/data"
	"steadyfit/internal/contract"
)

// Position is the progress of a training, with the sums of the current epoch. The JSON names
// belong to the format of state.json.
type Position struct {
	// Step is the number of train steps done since the beginning of training, including those
	// before a resume.
	Step int64 `json:"step"`
	// EpochsDone is the number of complete epochs.
	EpochsDone int `json:"epoch"`
	// EpochStep is the number of train steps done in the current epoch; 0 between epochs.
	EpochStep int `json:"epoch_step"`
	// Pass is the number of complete passes over the data. PassBatch is the number of batches
	// done in the current pass.
	Pass      int `json:"pass"`
	PassBatch int `json:"pass_batch"`
	// EpochSamples is the number of samples in the means of the current epoch. UncountedSamples
	// is the number of samples that the means omit, because the loss of their step was not
	// finite.
	EpochSamples     int64 `json:"epoch_samples"`
	UncountedSamples int64 `json:"epoch_samples_uncounted,omitempty"`
	// SkippedSteps is the number of consecutive skipped steps, up to the last step.
	SkippedSteps int64 `json:"steps_unapplied,omitempty"`
	// RateScale is the product of the factors of ReduceOnPlateau.
	RateScale float64 `json:"learning_rate_scale"`

	// sums has an entry per metric of the train signature; see scalars.add.
	sums []float64
}

func (p Position) clone() Position {
	p.sums = slices.Clone(p.sums)
	return p
}

// advance counts n steps that ended with batch b. finite is false if their loss was not finite,
// so that they were skipped.
func (p *Position) advance(b data.Batch, n, batchesPerPass int, finite bool) {
	if finite {
		p.EpochSamples += int64(n * b.Size)
	} else {
		p.UncountedSamples += int64(n * b.Size)
	}
	p.Step += int64(n)
	p.EpochStep += n
	if p.PassBatch += n; p.PassBatch == batchesPerPass {
		p.Pass, p.PassBatch = p.Pass+1, 0
	}
}

func (p *Position) endEpoch() {
	p.EpochsDone++
	p.EpochStep, p.EpochSamples, p.UncountedSamples = 0, 0, 0
	clear(p.sums)
}

// tally has the fields of the next Record except its metrics. A return to a snapshot does not
// change it.
type tally struct {
	Events []string `json:"epoch_events,omitempty"`
	Resets Resets   `json:"epoch_resets,omitzero"`
	// TrainTime is the training time of the epoch up to run.since.
	TrainTime seconds `json:"epoch_train_seconds"`
	// WaitTime is the part of the training time during which steps waited for data.
	WaitTime seconds `json:"epoch_wait_seconds,omitempty"`
	// Pause is the time for which training waited for checkpoints.
	Pause seconds `json:"epoch_checkpoint_pause_seconds,omitempty"`
}

// seconds is a duration whose JSON form is a number of seconds.
type seconds time.Duration

func (s seconds) float() float64 { return time.Duration(s).Seconds() }

func (s seconds) MarshalJSON() ([]byte, error) { return json.Marshal(s.float()) }

func (s *seconds) UnmarshalJSON(text []byte) error {
	var number float64
	if err := json.Unmarshal(text, &number); err != nil {
		return fmt.Errorf("seconds: %w", err)
	}
	*s = seconds(number * float64(time.Second))
	return nil
}

// scalars are the results of the steps of a signature.
type scalars struct {
	// names are the metric names in a Record.
	names []string
	// latest is true for a metric whose last value is recorded instead of its mean.
	latest []bool
	// values are the results of the last step.
	values []float64
}

func newScalars(s Session, outputs, names []string) scalars {
	last := append(s.RunningMetrics(), contract.MetricLossScale, contract.MetricSkippedSteps)
	m := scalars{names: names, latest: make([]bool, len(names)), values: make([]float64, len(names))}
	for i, name := range outputs {
		m.latest[i] = slices.Contains(last, name)
	}
	return m
}

// add adds values to sums, weighted by samples. If samples is 0, it only sets the metrics in
// latest.
func (m *scalars) add(sums []float64, samples int) {
	for i, v := range m.values {
		switch {
		case m.latest[i]:
			sums[i] = v
		case samples > 0:
			sums[i] += v * float64(samples)
		}
	}
}

func (m *scalars) means(sums []float64, samples int64) Metrics {
	means := make(Metrics, len(m.names))
	for i, name := range m.names {
		means[i] = Metric{Name: name, Value: sums[i]}
		if !m.latest[i] {
			means[i].Value /= float64(samples)
		}
	}
	return means
}
