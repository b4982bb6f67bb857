// Package claims is the table of what people say of TensorFlow's memory, with the
// measurements of a matrix that decide each claim. Package matrix evaluates it.
package claims

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

// Claim is an entry of the table. It holds if all of its questions are answered yes, does
// not if all are answered no, and holds in part otherwise.
type Claim struct {
	ID, Text string
	// Says is the answer of the literature.
	Says string
	// Needs is what a test takes that a machine without a GPU lacks.
	Needs string
	// GPU is a claim that is tested on a GPU only.
	GPU bool
	// Mainly is a claim that does not hold if its first question is answered no.
	Mainly bool
	// Any is a claim whose questions that were not measured are left out.
	Any       bool
	Questions []Question
}

// Question is one of the questions that a claim consists of: whether its probes say yes.
type Question struct {
	Name     string // empty for the only question of a claim
	Runtimes []string
	Probes   []Probe
	// AtMostInPart is a question whose answer is at most "in part".
	AtMostInPart bool `yaml:"at_most_in_part"`
	// Silent is a question whose figures another one has.
	Silent bool
	// Notes are sentences added for an answer, "unclear", "no", "in part" or "yes", or for
	// "any" that was measured.
	Notes map[string]string
}

// Probe is a test of cells.
type Probe struct {
	// Test names a test of package matrix, Of the amount that it compares.
	Test, Of string
	// Cells are workloads or cells ("S0/stream"): "own growth" is all workloads that grow
	// by themselves, "fixed batch" all with one batch size. With Remedies, each of them
	// with each remedy.
	Cells, Remedies []string
	// Against is the cell compared with, "/remedy" for a remedy of the same workload;
	// empty is the workload as it is.
	Against   string
	Runtimes  []string
	Otherwise string // added where a cure makes no difference
}

// GPUCommand measures the claims that take a GPU. "$GPU" in the table stands for it.
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
