package tfbind_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"

	"go.uber.org/goleak"

	"steadyfit/tfbind"
)

// mapsAfterLoad are the mappings of this process before the tests use pages of TensorFlow.
var mapsAfterLoad string

// TestMain checks that the tests left no native object and no goroutine.
func TestMain(m *testing.M) {
	if os.Getenv(envThresholdChild) != "" {
		if err := thresholdChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if file := os.Getenv(envMallocChild); file != "" {
		if err := mallocChild(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, err := tfbind.Load(""); err != nil {
		fmt.Fprintf(os.Stderr, "these tests need TensorFlow: %v\n", err)
		os.Exit(1)
	}
	maps, _ := os.ReadFile("/proc/self/smaps") // exists on Linux
	mapsAfterLoad = string(maps)
	code := m.Run()
	if code == 0 {
		code = checkNothingLeft()
	}
	os.Exit(code)
}

func checkNothingLeft() int {
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	want := tfbind.Counts{Leaked: deliberateLeaks, LeakedBytes: deliberateLeakedBytes, Tensors: deliberateLeaks,
		TensorBytes: deliberateLeakedBytes}
	for range 3 {
		runtime.GC()
	}
	if got := tfbind.Live(); got != want {
		fmt.Fprintf(os.Stderr, "left behind: %+v, want %+v\n", got, want)
		_ = pprof.Lookup("tfbind").WriteTo(os.Stderr, 1)
		return 1
	}
	return 0
}
