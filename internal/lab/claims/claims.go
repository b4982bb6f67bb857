// Package claims is the table of claims about TensorFlow's memory, with the measurements of a
// matrix that decide each claim. Package matrix evaluates it.
package claims

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// Claim is an entry of the table. It holds if all of its questions are answered yes, does not
// hold if all are answered no, and holds in part otherwise.
type Claim struct {
	ID, Text string
	// Says is the answer of the literature.
	Says string
	// Needs says what a test needs that a machine without a GPU lacks.
	Needs string
	// GPU means that the claim is only tested on a GPU.
	GPU bool
	// Mainly means that the claim does not hold if the answer to its first question is no.
	Mainly bool
	// Any means that questions without a measurement are left out.
	Any       bool
	Questions []Question
}

// Question is one of the questions of a claim. Its probes answer it.
type Question struct {
	Name     string // empty for the only question of a claim
	Runtimes []string
	Probes   []Probe
	// AtMostInPart limits the answer to "in part".
	AtMostInPart bool `yaml:"at_most_in_part"`
	// Silent leaves out the figures of the question, since another one has them.
	Silent bool
	// Notes are sentences to add for an answer ("unclear", "no", "in part" or "yes"), or under
	// "any" for all measured answers.
	Notes map[string]string
}

// Probe is a test of cells.
type Probe struct {
	// Test names a test of package matrix, and Of the amount that it compares.
	Test, Of string
	// Runs are workloads or cells such as "S0/stream". "own growth" stands for all workloads
	// without intended growth, "fixed batch" for all with one batch size. With Remedies, each
	// workload is combined with each remedy.
	Runs, Remedies []string
	// Against is the cell to compare with; "/remedy" names a remedy of the same workload. If it
	// is empty, that is the baseline of the workload.
	Against   string
	Runtimes  []string
	Otherwise string // added to the text where a cure makes no difference
}

// GPUCommand measures the claims that need a GPU. It replaces "$GPU" in the table.
const GPUCommand = "steadyfit matrix --runtime go,keras --workloads W0,S1d,S3,S3v --remedies memory-growth,mixed-bf16,mixed-fp16 on a machine with a GPU"

//go:embed claims.yaml
var table string

// Table reads the table.
func Table() ([]Claim, error) {
	d := yaml.NewDecoder(bytes.NewBufferString(strings.ReplaceAll(table, "$GPU", GPUCommand)))
	d.KnownFields(true)
	var list []Claim
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	return list, nil
}
