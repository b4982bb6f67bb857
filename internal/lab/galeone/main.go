//go:build galeone

// Command galeone trains like users of galeone's fork of TensorFlow's Go binding, or of tfgo on
// top of it. It creates tensors with NewTensor from nested slices and closes nothing except a
// Session, since the binding has no other Close. Finalizers free tensors, graphs and statuses
// after the Go heap has grown enough for a collection.
//
// A matrix starts it for one run of a workload (package worker). A parameter that the binding
// does not support, such as closing a tensor, is not applicable. With flags, it is a variant of
// the benchmark:
//
//	galeone -impl galeone|tfgo -input nested|flat -model DIR -data DIR -feed TENSOR=FIELD ... -fetch TENSOR ... -batch N -steps N -epochs N
//
// It links libtensorflow and needs the build tag galeone and the settings in
// internal/lab/bench/galeone.env.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/internal/lab/loop"
	"steadyfit/internal/lab/worker"
)

const binding = "github.com/galeone/tensorflow/tensorflow/go"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	work := func() { baseline(args, stdout, stderr) }
	if os.Getenv(worker.Env) != "" {
		work = matrixRun
	}
	if err := worker.Caught(work); err != nil {
		fmt.Fprintf(stderr, "galeone: %v\n", err)
		return 1
	}
	return 0
}

func matrixRun() {
	tensors := &tensors{}
	child := worker.Must(worker.Start(tensors.Sample))
	result := guarded(child, tensors)
	failure := worker.Failed
	if outOfMemory(result) {
		failure = worker.OutOfMemory
	}
	worker.Check(errors.Join(child.Done(result, failure), child.Close(), result))
}

// guarded turns panics of the binding into errors.
func guarded(child *worker.Child, tensors *tensors) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	open, ok := workloads[child.Spec.Workload]
	if !ok {
		return fmt.Errorf("no workload %q on galeone's binding", child.Spec.Workload)
	}
	return loop.Run(context.Background(), child, loop.Program{
		Linked: true,
		Load:   func() (string, error) { return tf.Version(), child.Fact("binding", binding+" "+version()) },
		Open: func(context.Context) *loop.Loop {
			j := &job{Child: child, tensors: tensors, random: rand.New(rand.NewPCG(uint64(child.Spec.Seed), 0))}
			if id := child.Spec.Workload; id != "W1" && id != "W8" { // the other workloads do not release tensors that they hold
				j.drop = j.Choice("release", "gc", "drop") == "drop"
			}
			return open(j)
		},
		Collect: collect,
	})
}

// outOfMemory searches the message, because the binding hides the code of an error.
func outOfMemory(err error) bool {
	return err != nil && slices.ContainsFunc([]string{"OOM when allocating", "RESOURCE_EXHAUSTED", "Resource exhausted"},
		func(words string) bool { return strings.Contains(err.Error(), words) })
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == binding {
				return m.Version
			}
		}
	}
	return "unknown"
}

// job is the state of a workload. The closures of the loop have the only references to native
// objects.
type job struct {
	*worker.Child
	tensors *tensors
	random  *rand.Rand
	drop    bool // set references to nil
}

// collect frees everything unreachable. It collects twice, because a finalizer may create
// objects with finalizers: closing a session needs a status.
func collect() {
	count := []metrics.Sample{{Name: "/gc/finalizers/queued:finalizers"}, {Name: "/gc/finalizers/executed:finalizers"}}
	for range 2 {
		runtime.GC()
		for metrics.Read(count); count[1].Value.Uint64() < count[0].Value.Uint64(); metrics.Read(count) {
			runtime.Gosched()
		}
	}
}
