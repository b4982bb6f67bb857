package session_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"

	"go.uber.org/goleak"

	"steadyfit/tfbind"
)

// TestMain checks that no native object and no goroutine is left.
func TestMain(m *testing.M) {
	if job, rank := os.LookupEnv(rankEnv); rank {
		os.Exit(runRank(job))
	}
	if _, err := tfbind.Load(""); err != nil {
		fmt.Fprintf(os.Stderr, "these tests need TensorFlow: %v\n", err)
		os.Exit(1)
	}
	code := m.Run()
	runtime.GC()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if live := tfbind.Live(); live != (tfbind.Counts{}) && code == 0 {
		fmt.Fprintf(os.Stderr, "left behind: %+v\n", live)
		_ = pprof.Lookup("tfbind").WriteTo(os.Stderr, 1)
		code = 1
	}
	os.Exit(code)
}
