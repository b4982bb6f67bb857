package measure

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"steadyfit/memory"
)

func TestRun(t *testing.T) {
	n := 0
	r, err := Run(Plan{Warmup: 3, Steps: 10, Chunks: 5}, func() (float32, error) {
		n++
		return float32(n), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.WarmupLoss != 2 || len(r.Times) != 5 || len(r.Anons) != 5 {
		t.Errorf("result %+v, want a mean loss of 2, and 5 chunks", r)
	}
	if n != 13 || r.Steps != 10 || !r.Memory.RSS.OK {
		t.Errorf("%d calls, result %+v", n, r)
	}
	broken := errors.New("broken")
	if _, err := Run(Plan{Warmup: 1, Steps: 1, Chunks: 1}, func() (float32, error) { return 0, broken }); !errors.Is(err,
		broken) {
		t.Errorf("error = %v, want the step's", err)
	}
	if _, err := Run(Plan{Warmup: 1, Steps: 1, Chunks: 2}, func() (float32, error) { return 0, nil }); err == nil {
		t.Error("a plan with more chunks than steps was accepted")
	}
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	r := Result{Steps: 5, Median: time.Microsecond, Anons: []int64{5, 1, 9}}
	r.Memory = memory.Usage{RSS: memory.Known(3), Anon: memory.Known(2), Peak: memory.Known(4)}
	if err := r.Print(&out, "m", 32); err != nil {
		t.Fatal(err)
	}
	want := "BenchmarkStep/impl=steadyfit/model=m/batch=32\t5\t1000 ns/op\t1000000.0 steps/s\t3 rss-bytes\t2 anon-bytes\t" +
		"4 peak-bytes\t8 anon-range-bytes\n"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}
