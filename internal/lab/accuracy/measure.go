package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"steadyfit/fit"
	"steadyfit/internal/contract"
	"steadyfit/internal/files"
	measuring "steadyfit/internal/lab/measure"
	"steadyfit/internal/lab/runner"
	"steadyfit/savedmodels"
)

type result struct {
	Model     string `json:"model"`
	Precision string `json:"precision"`
	Seed      int    `json:"seed"`
	// Accuracy and Loss are the last val_accuracy and val_loss.
	Accuracy float64 `json:"val_accuracy"`
	Loss     float64 `json:"val_loss"`
	// SkippedSteps is the number of steps that the loss scale skipped; nil if unknown.
	SkippedSteps *float64 `json:"skipped_steps,omitempty"`
	Seconds      float64  `json:"seconds"`
	// Ended is the end time. Commit is the commit of the source, or empty.
	Ended  time.Time `json:"ended,omitzero"`
	Commit string    `json:"commit,omitempty"`
	// ModelHash is the hex SHA-256 of the model's files.
	ModelHash string   `json:"model_sha256,omitempty"`
	Args      []string `json:"args,omitempty"`
}

// measure runs the missing runs. The report has all results so far, even after an error.
func measure(ctx context.Context, p *plan, stderr io.Writer) (*report, error) {
	if err := os.MkdirAll(p.runs(), 0o777); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(p.jobs, func(j job) bool { return j.model.Name == "image-224" }) {
		if err := makeImages(p.data()); err != nil {
			return nil, fmt.Errorf("making images: %w", err)
		}
	}
	p.commit = measuring.Commit(ctx)
	var results []result
	var failed error
	for i, j := range p.jobs {
		var r *result
		hash, err := p.hash(j.path)
		if err == nil {
			r, err = p.finished(&j, hash)
			if errors.Is(err, fs.ErrNotExist) {
				if r, err = p.do(ctx, &j, hash); err == nil {
					fmt.Fprintf(stderr, "%d/%d %s: val_accuracy %.4f, %.0f s\n", i+1, len(p.jobs), j.name(), r.Accuracy, r.Seconds)
				}
			}
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("interrupted; the same command resumes: %w", ctx.Err())
		}
		if err != nil {
			fmt.Fprintf(stderr, "%d/%d %s: %v\n", i+1, len(p.jobs), j.name(), err)
			failed = errors.Join(failed, fmt.Errorf("%s failed", j.name()))
			continue
		}
		results = append(results, *r)
	}
	version, err := runner.Exec(ctx, 0, []string{p.steadyfit, "version"})
	return newReport(p, results, string(version.Stdout)), errors.Join(failed, err)
}

func (p *plan) hash(path string) (string, error) {
	if hash, ok := p.hashes[path]; ok {
		return hash, nil
	}
	dir := path
	if name, ok := strings.CutPrefix(path, shipped); ok {
		m, err := savedmodels.Builtin(name)
		if err != nil {
			return "", err
		}
		dir = m.Dir
	}
	sum := sha256.New()
	if err := runner.Hash(sum, dir); err != nil {
		return "", fmt.Errorf("model: %w; make accuracy exports it", err)
	}
	hash := hex.EncodeToString(sum.Sum(nil))
	p.hashes[path] = hash
	return hash, nil
}

// finished returns the result of an earlier run with the same model hash and arguments, or
// fs.ErrNotExist.
func (p *plan) finished(j *job, hash string) (*result, error) {
	text, err := os.ReadFile(p.file(j))
	if err != nil {
		return nil, err
	}
	var r result
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w; remove the file to repeat the run", p.file(j), err)
	}
	if !slices.Equal(r.Args, j.args) {
		return nil, fmt.Errorf("%s was measured with other arguments: %w", p.file(j), fs.ErrNotExist)
	}
	if r.ModelHash != hash {
		return nil, fmt.Errorf("%s was measured with another model: %w", p.file(j), fs.ErrNotExist)
	}
	return &r, nil
}

func (p *plan) file(j *job) string { return filepath.Join(p.runs(), j.name()+".json") }

func (p *plan) do(ctx context.Context, j *job, hash string) (*result, error) {
	history := filepath.Join(p.runs(), j.name()+".history.jsonl")
	if err := os.Remove(history); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, err := runner.Exec(ctx, 0, append(append([]string{p.steadyfit}, j.args...), "--history", history)); err != nil {
		return nil, err
	}
	r, err := readHistory(history)
	if err != nil {
		return nil, err
	}
	r.Model, r.Precision, r.Seed, r.Args = j.model.Name, j.precision.Name, j.seed, j.args
	r.Ended, r.Commit, r.ModelHash = time.Now().UTC().Truncate(time.Second), p.commit, hash
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, err
	}
	return r, files.Replace(p.file(j), append(text, '\n'))
}

func readHistory(path string) (*result, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r result
	var last fit.Record
	for line := range bytes.Lines(text) {
		last = fit.Record{}
		if err := json.Unmarshal(line, &last); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		r.Seconds += last.Seconds
	}
	for name, to := range map[string]*float64{"val_accuracy": &r.Accuracy, "val_loss": &r.Loss} {
		value, ok := last.Metrics.Get(name)
		if !ok {
			return nil, fmt.Errorf("%s: the last epoch has no %s", path, name)
		}
		*to = value
	}
	if skipped, ok := last.Metrics.Get(contract.MetricSkippedSteps); ok {
		r.SkippedSteps = &skipped
	}
	return &r, nil
}
