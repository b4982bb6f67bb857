package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadCountsAndFilters(t *testing.T) {
	// What `go test -json` writes for a package with a pass, a skip, a skipped
	// subtest and a failure.
	in := strings.Join([]string{
		`{"Action":"start","Package":"m/p"}`,
		`{"Action":"output","Package":"m/p","Test":"TestPass","Output":"noise\n"}`,
		`{"Action":"pass","Package":"m/p","Test":"TestPass","Elapsed":61.2}`,
		`{"Action":"output","Package":"m/p","Test":"TestSkip","Output":"=== RUN   TestSkip\n"}`,
		`{"Action":"output","Package":"m/p","Test":"TestSkip","Output":"    p_test.go:9: no GPU; set STEADYFIT_GPU=1\n"}`,
		`{"Action":"output","Package":"m/p","Test":"TestSkip","Output":"--- SKIP: TestSkip (0.00s)\n"}`,
		`{"Action":"skip","Package":"m/p","Test":"TestSkip"}`,
		`{"Action":"skip","Package":"m/p","Test":"TestSub/one"}`,
		`{"Action":"pass","Package":"m/p","Test":"TestSub"}`,
		`{"Action":"output","Package":"m/p","Test":"TestFail","Output":"    p_test.go:3: want 1, got 2\n"}`,
		`{"Action":"fail","Package":"m/p","Test":"TestFail"}`,
		`{"Action":"output","Package":"m/p","Output":"FAIL\tm/p\t0.1s\n"}`,
		`{"Action":"fail","Package":"m/p"}`,
	}, "\n")
	var out bytes.Buffer
	var c counts
	if err := c.read(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if c.passed != 2 || c.failed != 1 || c.skipped != 2 {
		t.Errorf("counts = %+v, want 2 passed, 1 failed, 2 skipped", c)
	}
	c.writeSlowest(&out)
	got := out.String()
	if slow := "slow:   61 s  TestPass in m/p\n"; !strings.HasSuffix(got, slow) {
		t.Errorf("output does not end with %q:\n%s", slow, got)
	}
	for _, want := range []string{"want 1, got 2", "FAIL\tm/p\t0.1s", "skipped TestSkip in m/p: p_test.go:9: no GPU; set STEADYFIT_GPU=1", "skipped TestSub/one in m/p: no reason given"} {
		if !strings.Contains(got, want) {
			t.Errorf("output lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "noise") {
		t.Errorf("output of a passing test was printed:\n%s", got)
	}
}

func TestReadCountsPackageThatDies(t *testing.T) {
	in := strings.Join([]string{
		`{"Action":"output","Package":"m/p","Test":"TestX","Output":"SIGSEGV in C\n"}`,
		`{"Action":"output","Package":"m/p","Output":"FAIL\tm/p\t0.1s\n"}`,
		`{"Action":"fail","Package":"m/p"}`,
		`{"Action":"build-output","ImportPath":"m/q","Output":"q.go:1: undefined: x\n"}`,
		`{"Action":"fail","Package":"m/q"}`,
	}, "\n")
	var out bytes.Buffer
	var c counts
	if err := c.read(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if c.failed != 2 {
		t.Errorf("failed = %d, want 2", c.failed)
	}
	for _, want := range []string{"SIGSEGV in C", "undefined: x"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}

func TestTotal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "summary.txt")
	for _, line := range []string{"unit: 3 passed, 0 failed, 1 skipped", "race: 2 passed, 0 failed, 0 skipped"} {
		if err := appendLine(path, line); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	if code := run([]string{"-total", path}, &out, &errs); code != 0 {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	if !strings.HasSuffix(out.String(), "total: 5 passed, 0 failed, 1 skipped\n") {
		t.Errorf("output = %q", out.String())
	}
	if err := os.WriteFile(path, []byte("unit: 1 passed, 1 failed, 0 skipped\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := run([]string{"-total", path}, &out, &errs); code != 1 {
		t.Errorf("exit code with a failure = %d, want 1", code)
	}
	if err := os.WriteFile(path, []byte("nonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code := run([]string{"-total", path}, &out, &errs); code != 1 {
		t.Errorf("exit code with a damaged file = %d, want 1", code)
	}
}
