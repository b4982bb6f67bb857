package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// peakMargin is the part by which peaks of the same program may differ. A peak has no interval.
const peakMargin = 0.05

// ReadReport reads a report from a file with the JSON of an earlier one, after other output or none.
func ReadReport(path string) (*Report, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	begin := max(0, bytes.LastIndex(text, []byte("\n{\n")))
	if err := json.Unmarshal(text[begin:], r); err != nil {
		return nil, fmt.Errorf("%s: expected the JSON of a report of watch at its end: %w", path, err)
	}
	if r.Unit == "" || r.Verdict == "" {
		return nil, fmt.Errorf("%s: the JSON at its end is no report of watch: it has no unit or no verdict", path)
	}
	return r, nil
}

// ErrWorse means that the memory grows faster, or that its peak is higher, than in an earlier report.
var ErrWorse = errors.New("the memory is worse than the baseline")

// Compare compares a report with an earlier one. The slope is worse if the memory leaks and the interval of the slope
// is above that of the earlier slope. It is not compared if the earlier verdict is undecided. The peak is worse if it
// is higher by more than 5%. It is not compared if the memory leaks and the run was longer. The text has both. The
// error is ErrWorse, or another one if the reports cannot be compared.
func (r *Report) Compare(earlier *Report) (text string, err error) {
	if r.Unit != earlier.Unit {
		return "", fmt.Errorf("the baseline counts by %s, and this run by %s: make a new baseline with the same command",
			earlier.Unit, r.Unit)
	}
	slope, peak := "not above", "not above"
	switch {
	case earlier.Verdict == Undecided:
		slope = "not compared, since the baseline is not decided, with"
	case r.Verdict != Leak:
		slope = "no leak, compared with"
	case r.Slope.Low > max(earlier.Slope.High, 0):
		slope, err = "above", ErrWorse
	}
	switch {
	case r.Verdict == Leak && r.extent() > 1.1*earlier.extent():
		peak = "not compared, since this run was longer, with"
	case float64(r.Peak) > (1+peakMargin)*float64(earlier.Peak):
		peak, err = "above", ErrWorse
	}
	return fmt.Sprintf("the slope of %s is %s the earlier %s; the peak of %v is %s the earlier %v", r.rate(r.Slope), slope,
		earlier.rate(earlier.Slope), r.Peak, peak, earlier.Peak), err
}

// extent is the number of steps, or the time.
func (r *Report) extent() float64 {
	if r.Unit == perMinute {
		return r.Seconds
	}
	return float64(r.Steps)
}
