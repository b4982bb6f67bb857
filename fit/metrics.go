package fit

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/contract"
	"steadyfit/internal/texts"
	"steadyfit/option"
)

const validationPrefix = "val_"

// Metric is a named number, such as a mean loss.
type Metric struct {
	Name  string
	Value float64
}

// String returns the name and the value, as in "loss 0.1234". Counts have no decimals.
func (m Metric) String() string { return texts.Printable(m.Name) + " " + m.text() }

func (m Metric) text() string {
	if m.Name == contract.MetricSkippedSteps && m.Value == math.Trunc(m.Value) {
		return strconv.FormatFloat(m.Value, 'f', 0, 64)
	}
	return formatValue(m.Value)
}

// Metrics are in the order of the outputs of a signature, "loss" first.
type Metrics []Metric

// Get returns the value of the named metric.
func (m Metrics) Get(name string) (value float64, ok bool) {
	for _, metric := range m {
		if metric.Name == name {
			return metric.Value, true
		}
	}
	return 0, false
}

// String returns all metrics, as in "loss 0.1234  accuracy 0.9500".
func (m Metrics) String() string {
	parts := make([]string, len(m))
	for i, metric := range m {
		parts[i] = metric.String()
	}
	return strings.Join(parts, "  ")
}

// formatValue prints values from 0.001 to 100000 with four decimals, so that columns align, and
// others with an exponent.
func formatValue(v float64) string {
	if a := math.Abs(v); v == 0 || (a >= 1e-3 && a < 1e5) {
		return strconv.FormatFloat(v, 'f', 4, 64)
	}
	return strconv.FormatFloat(v, 'e', 3, 64)
}

// metricNames checks the metric names of a session, and returns them as they appear in records.
func metricNames(names []string, prefix, signature string) ([]string, error) {
	if len(names) == 0 || names[0] != "loss" {
		return nil, &option.Error{Option: "Loop.Session",
			Reason: fmt.Sprintf("the metrics of its %s signature are %q, expected loss as the first", signature, names),
			Fix:    "export the model with an output named loss"}
	}
	in := make([]string, len(names))
	for i, name := range names {
		in[i] = prefix + name
		if slices.Contains(recordFields, in[i]) {
			in[i] = "train_" + name
		}
		if slices.Contains(in[:i], in[i]) {
			return nil, &option.Error{Option: "Loop.Session",
				Reason: fmt.Sprintf("its %s signature has two metrics named %s", signature, name),
				Fix:    "give the outputs of the model different names"}
		}
	}
	return in, nil
}

// number is a float64 in JSON.
type number = texts.Float
