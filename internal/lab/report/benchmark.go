package report

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

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
	var out strings.Builder
	e, v := r.Environment, newView(r)
	head := [][2]string{{"goos", e.OS}, {"goarch", e.Arch}, {"pkg", "steadyfit/internal/lab/matrix"}, {"cpu", e.CPU},
		{"kernel", e.Kernel}, {"go-version", e.Go}, {"steadyfit", r.Version}, {"keras", e.Keras}}
	for _, name := range v.names {
		head = append(head, [2]string{"tensorflow-" + name, e.TensorFlow[name]})
	}
	for _, line := range head {
		out.WriteString(when(line[1] != "", line[0]+": "+oneLine(line[1])+"\n"))
	}
	for _, alarm := range v.Alarms {
		fmt.Fprintf(&out, "# %s\n", oneLine(alarm))
	}
	out.WriteString("\nUnit slope-B/step better=lower\nUnit peak-bytes better=lower\nUnit anon-bytes better=lower\n" +
		"Unit closed-bytes better=lower\n\n")
	for i := range r.Runs {
		run := &r.Runs[i]
		name := fmt.Sprintf("BenchmarkMatrix/runtime=%s/workload=%s/remedy=%s-%d", run.Runtime,
			run.Workload, run.Remedy, max(e.Cores, 1))
		if values := benchmarkValues(run); len(values) > 0 {
			fmt.Fprintf(&out, "%s 1 %s\n", name, strings.Join(values, " "))
		} else {
			fmt.Fprintf(&out, "# %s has no figures: %s\n", name, oneLine(cmp.Or(run.Cause, run.Outcome.Verdict.Reason, unknown)))
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func benchmarkValues(run *matrix.RunResult) (values []string) {
	add := func(r memory.Reading, unit string) {
		if r.OK {
			values = append(values, fmt.Sprintf("%d %s", int64(r.Bytes), unit))
		}
	}
	o := &run.Outcome
	add(o.StepTime, "ns/op")
	if o.Verdict.Kind != memlayer.Crash && o.Verdict.Samples >= slopeSamples {
		values = append(values, strconv.FormatFloat(o.Verdict.Slope.Estimate, 'g', 6, 64)+" slope-B/step")
	}
	add(o.Peak, "peak-bytes")
	for _, p := range []struct{ phase, unit string }{{"steady", "anon-bytes"}, {"closed", "closed-bytes"}} {
		s := run.Phases[p.phase]
		add(s.Get(memory.Anon), p.unit)
	}
	return values
}
