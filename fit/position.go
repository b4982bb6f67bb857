package fit

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"steadyfit/data"
)

// Position is the progress of a training, and the sums of the epoch in progress. The loop
// advances it, a checkpoint stores it, and a Recovery returns to an earlier one. The tags are
// the format of state.json.
type Position struct {
	// Step is the number of train steps done since the beginning of training,
	// those before a resume included.
	Step int64 `json:"step"`
	// EpochsDone is the number of complete epochs.
	EpochsDone int `json:"epoch"`
	// EpochStep is the number of train steps done in the epoch in progress; 0
	// once the epoch is over.
	EpochStep int `json:"epoch_step"`
	// Pass is the number of complete passes over the data, and PassBatch the number
	// of batches done in the pass in progress.
	Pass      int `json:"pass"`
	PassBatch int `json:"pass_batch"`
	// EpochSamples is the number of samples in the means of the epoch in progress.
	// UncountedSamples is the number of samples of skipped steps, whose loss was not
	// finite; the means leave them out.
	EpochSamples     int64 `json:"epoch_samples"`
	UncountedSamples int64 `json:"epoch_samples_uncounted,omitempty"`
	// SkippedSteps is the number of consecutive skipped steps up to the last step.
	SkippedSteps int64 `json:"steps_unapplied,omitempty"`
	// RateScale is the product of the factors of State.ScaleLearningRate.
	RateScale float64 `json:"learning_rate_scale"`
	// FiniteLoss is true once the present weights have given a finite loss.
	FiniteLoss bool `json:"finite_loss_seen"`

	// sums has a place per metric of the train signature; see scalars.add.
	sums []float64
}

// clone is a copy that later steps do not change.
func (p Position) clone() Position {
	p.sums = slices.Clone(p.sums)
	return p
}

// advance counts n steps, the last of them on batch b. finite is false if they were skipped
// because their loss is not finite.
func (p *Position) advance(b data.Batch, n, batchesPerPass int, finite bool) {
	if finite {
		p.EpochSamples += int64(n * b.Size)
	} else {
		p.UncountedSamples += int64(n * b.Size)
	}
	p.FiniteLoss = false
	p.Step += int64(n)
	p.EpochStep += n
	if p.PassBatch += n; p.PassBatch == batchesPerPass {
		p.Pass, p.PassBatch = p.Pass+1, 0
	}
}

// endEpoch begins the next epoch.
func (p *Position) endEpoch() {
	p.EpochsDone++
	p.EpochStep, p.EpochSamples, p.UncountedSamples = 0, 0, 0
	clear(p.sums)
}

// tally is the part of the next record that is not metrics. Returning to an earlier position
// does not undo it: the time has passed.
type tally struct {
	Events []string `json:"epoch_events,omitempty"`
	Resets Resets   `json:"epoch_resets,omitzero"`
	// TrainTime is the time spent on training, without the part since run.since; see
	// run.trainTime.
	TrainTime seconds `json:"epoch_train_seconds"`
	// WaitTime is the part of it in which steps waited for data.
	WaitTime seconds `json:"epoch_wait_seconds,omitempty"`
}

// seconds is a duration that is a number of seconds in JSON.
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

// scalars are the results of a signature's steps.
type scalars struct {
	// names are as in records.
	names []string
	// latest marks those of which a record has the last value rather than the mean.
	latest []bool
	// values are those of the last step.
	values []float64
}

func newScalars(s Session, outputs, names []string) scalars {
	return scalars{names: names, latest: lastValues(s, outputs), values: make([]float64, len(names))}
}

// add adds the last values to sums, weighted with the samples that they are means of.
// With 0 samples, only the latest values count.
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

// means are the metrics of a record.
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
