// Package claims is the table of claims about TensorFlow's memory, with the measurements that
// decide them. Package matrix evaluates it.
package claims

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// Claim holds if all its questions are answered yes, does not hold if all are answered no, and
// otherwise holds in part.
type Claim struct {
	ID, Text string
	// Says is the answer of the literature.
	Says string
	// Needs is what a test needs that a machine without a GPU lacks.
	Needs string
	// GPU means that only a GPU can test the claim.
	GPU bool
	// Mainly means that the claim does not hold if its first question is answered no.
	Mainly bool
	// Any leaves out questions that were not measured.
	Any       bool
	Questions []Question
}

type Question struct {
	Name     string // empty for the only question of a claim
	Runtimes []string
	Probes   []Probe
	// AtMostInPart limits the answer to "in part".
	AtMostInPart bool `yaml:"at_most_in_part"`
	// Silent leaves out the figures, which another question has.
	Silent bool
	// Notes are additional sentences for an answer ("unclear", "no", "in part" or "yes"), or
	// for "any" measured answer.
	Notes map[string]string
}

// Probe is a test of some measurements.
type Probe struct {
	// Test names a test of package matrix, Of the amount that it compares.
	Test, Of string
	// Runs are workloads, as in "S0", or workloads with a remedy, as in "S0/stream". "own
	// growth" means all workloads without intended growth, "fixed batch" all with one batch
	// size. With Remedies, each workload is combined with each remedy.
	Runs, Remedies []string
	// Against is what to compare with; "/remedy" is a remedy of the same workload. The default
	// is the baseline.
	Against   string
	Runtimes  []string
	Otherwise string // added to the text if a remedy makes no difference
}

// GPUCommand measures the claims that need a GPU. It replaces "$GPU" in the table.
const GPUCommand = "steadyfit matrix --runtime go,keras --workloads W0,S1d,S3,S3v --remedies memory-growth,mixed-bf16,mixed-fp16 on a machine with a GPU"

//go:embed claims.yaml
var table string

func Table() ([]Claim, error) {
	d := yaml.NewDecoder(bytes.NewBufferString(strings.ReplaceAll(table, "$GPU", GPUCommand)))
	d.KnownFields(true)
	var list []Claim
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	return list, nil
}
