package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// Benchmark writes the runs in the format of Go benchmarks, so that benchstat can summarize a
// matrix or compare two:
//
//	BenchmarkMatrix/runtime=go/workload=W0/remedy=none-2 1 131000 ns/op 12.5 slope-B/step 372244480 peak-bytes 314572800 anon-bytes 311427072 closed-bytes
//
// An op is a step, and the suffix -2 is the number of cores. slope is the growth of anonymous
// memory, peak the largest resident memory; anon and closed are the anonymous memory after the
// last step and after everything was freed. A missing amount is left out. A run without any
// amount is a comment with the reason.
func Benchmark(w io.Writer, r *matrix.Result) error {
	out := bufio.NewWriter(w)
	e := r.Environment
	for _, line := range [][2]string{
		{"goos", e.OS}, {"goarch", e.Arch}, {"pkg", "steadyfit/internal/lab/matrix"}, {"cpu", e.CPU},
		{"kernel", e.Kernel}, {"go-version", e.Go}, {"steadyfit", r.Version}, {"keras", e.Keras},
	} {
		if line[1] != "" {
			fmt.Fprintf(out, "%s: %s\n", line[0], oneLine(line[1]))
		}
	}
	v := newView(r)
	for _, name := range v.runtimes {
		if version := e.TensorFlow[name]; version != "" {
			fmt.Fprintf(out, "tensorflow-%s: %s\n", benchmarkKey(name), oneLine(version))
		}
	}
	for _, alarm := range v.Alarms() {
		fmt.Fprintf(out, "# %s\n", oneLine(alarm))
	}
	fmt.Fprint(out, "\nUnit slope-B/step better=lower\nUnit peak-bytes better=lower\nUnit anon-bytes "+
		"better=lower\nUnit closed-bytes better=lower\n\n")
	runs := slices.Clone(r.Runs)
	order := map[combinationID]int{}
	for i, c := range r.Combinations {
		order[combinationID{c.Runtime, c.Workload, c.Remedy}] = i + 1
	}
	slices.SortStableFunc(runs, func(a, b matrix.RunResult) int {
		return order[combinationID{a.Runtime, a.Workload, a.Remedy}] - order[combinationID{b.Runtime, b.Workload, b.Remedy}]
	})
	for i := range runs {
		run := &runs[i]
		name := fmt.Sprintf("BenchmarkMatrix/runtime=%s/workload=%s/remedy=%s-%d", benchmarkName(run.Runtime),
			benchmarkName(run.Workload), benchmarkName(run.Remedy), max(e.Cores, 1))
		values := benchmarkValues(run)
		if len(values) == 0 {
			why := cmp.Or(oneLine(run.Cause), oneLine(run.Outcome.Verdict.Reason))
			fmt.Fprintf(out, "# %s has no figures%s\n", name, known(why, ": %s"))
			continue
		}
		fmt.Fprintf(out, "%s 1 %s\n", name, strings.Join(values, " "))
	}
	return out.Flush()
}

func benchmarkValues(run *matrix.RunResult) []string {
	var values []string
	add := func(r memory.Reading, unit string) {
		if r.OK {
			values = append(values, fmt.Sprintf("%d %s", int64(r.Bytes), unit))
		}
	}
	o := &run.Outcome
	add(o.StepTime, "ns/op")
	if d := o.Verdict; d.Kind != memlayer.Crash && d.Kind != "" && d.Samples > 0 {
		values = append(values, strconv.FormatFloat(d.Slope.Estimate, 'g', 6, 64)+" slope-B/step")
	}
	add(o.Peak, "peak-bytes")
	for _, p := range []struct{ phase, unit string }{{"steady", "anon-bytes"}, {"closed", "closed-bytes"}} {
		if s, ok := run.Phases[p.phase]; ok {
			add(s.Get(memory.Anon), p.unit)
		}
	}
	return values
}

// benchmarkName replaces characters that would end a name or a part of it.
func benchmarkName(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsControl(r) || r == '/' || r == '=' {
			return '_'
		}
		return r
	}, text)
}

// benchmarkKey returns the name of a configuration line.
func benchmarkKey(text string) string {
	return strings.ToLower(strings.ReplaceAll(benchmarkName(text), ":", "_"))
}
