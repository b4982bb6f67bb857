package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/lab/report"
	"steadyfit/internal/tflibrary"
	"steadyfit/matrix"
)

// matrixOf runs the matrix once for each version of TensorFlow, each in a folder of its own, and
// prints what changes between them.
func (s *settings) matrixOf(ctx context.Context, names []string, stdout, stderr io.Writer) error {
	if s.baseline != "" {
		return usagef("--baseline is for one --tensorflow, not for %d", len(names))
	}
	if !slices.Equal(s.plan.Runtimes, []string{matrix.Go}) {
		return usagef("--runtime: several --tensorflow are for the runtime %s alone; the others have their own", matrix.Go)
	}
	if w := s.plan.Within; w != 0 && w < leastWithin*time.Duration(len(names)) {
		return usagef("--within %v: expected at least %v for each of %d versions", w, leastWithin, len(names))
	}
	var versions []report.Version
	var locations []string
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
		location, err := locateVersion(names[i])
		if err != nil {
			return err
		}
		if slices.Contains(locations, location) {
			return usagef("--tensorflow %s: each version once", strings.Join(names, ","))
		}
		locations = append(locations, location)
	}
	var failed error
	for i, location := range locations {
		one := *s
		one.TensorFlow = location
		one.plan.Out = filepath.Join(s.plan.Out, names[i])
		if !versionNumber.MatchString(names[i]) {
			one.plan.Out = filepath.Join(s.plan.Out, strconv.Itoa(i+1))
		}
		one.plan.Within /= time.Duration(len(names))
		fmt.Fprintf(stderr, "TensorFlow %s\n", names[i])
		result, err := one.runPlan(ctx, stderr)
		if err != nil {
			return err
		}
		version := cmp.Or(result.Environment.TensorFlow[matrix.Go], names[i])
		versions = append(versions, report.Version{TensorFlow: version, Result: result, File: filepath.Join(one.plan.Out, resultFile)})
		var broken []string
		if s.rule != nil {
			broken, _ = s.rule.Check(result, nil)
		}
		if err := verdict(result, broken); err != nil {
			failed = errors.Join(failed, fmt.Errorf("TensorFlow %s: %w", version, err))
		}
	}
	slices.SortStableFunc(versions, func(a, b report.Version) int {
		return slices.Compare(versionParts(a.TensorFlow), versionParts(b.TensorFlow))
	})
	if !s.json {
		return errors.Join(report.Versions(stdout, versions, textOptions(stdout)), failed)
	}
	changes, explained, missing := report.Changes(versions)
	return errors.Join(printJSON(stdout, map[string]any{"versions": versions, "changes": changes, "by_chance": explained, "not_compared": missing}), failed)
}

var versionNumber = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// locateVersion returns the path of a TensorFlow library. name is the path, or a version that
// scripts/runtime.py has fetched.
func locateVersion(name string) (string, error) {
	if !versionNumber.MatchString(name) {
		location, err := tflibrary.Locate(name)
		return location.Library, err
	}
	for _, folder := range []string{".runtime", ".runtime-" + name} {
		stamp, err := project(filepath.Join(folder, "tensorflow", "steadyfit-runtime.json"), "make runtime")
		if err != nil {
			continue
		}
		text, err := os.ReadFile(stamp)
		if err != nil {
			return "", err
		}
		var fetched struct{ Version string }
		if json.Unmarshal(text, &fetched) == nil && fetched.Version == name {
			return filepath.Join(filepath.Dir(stamp), "libtensorflow_cc.so.2"), nil
		}
	}
	return "", &coded{exitEnvironment, fmt.Errorf("--tensorflow %s: not fetched; run scripts/runtime.py --version %s in the checkout", name, name)}
}

func versionParts(version string) (all []int) {
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part)
		all = append(all, n)
	}
	return all
}
