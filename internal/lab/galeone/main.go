//go:build galeone

// Command galeone trains in the style of users of galeone's fork of TensorFlow's Go binding, and
// of tfgo on top of it. It makes tensors with NewTensor from nested slices. It closes nothing
// except a Session, since the binding has no other Close: finalizers free tensors, graphs and
// statuses when the Go heap has grown enough for a collection.
//
// Started by a matrix, it does one run of a workload (package worker). A parameter that the
// binding cannot support (closing or refilling a tensor) is not applicable. Started with flags,
// it is a variant of the benchmark:
//
//	galeone -impl galeone|tfgo -input nested|flat -model DIR -data DIR
//	        -feed TENSOR=FIELD ... -fetch TENSOR ... -batch N -steps N -epochs N
//
// It links libtensorflow. It is only built with the tag galeone, with the settings in
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

// binding is the module that this command measures.
const binding = "github.com/galeone/tensorflow/tensorflow/go"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	work := func() error { return baseline(args, stdout, stderr) }
	if os.Getenv(worker.Env) != "" {
		work = matrixRun
	}
	if err := work(); err != nil {
		fmt.Fprintf(stderr, "galeone: %v\n", err)
		return 1
	}
	return 0
}

// matrixRun is one run of a workload.
func matrixRun() error {
	tensors := &tensors{}
	child, err := worker.Start(tensors)
	if err != nil {
		return err
	}
	result := guarded(child, tensors)
	failure := worker.Failed
	if outOfMemory(result) {
		failure = worker.OutOfMemory
	}
	return errors.Join(child.Done(result, failure), child.Close(), result)
}

// guarded does the run and turns panics into errors: the binding panics on some values.
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
		Open: func(context.Context) (*loop.Loop, error) {
			j := &job{Child: child, tensors: tensors, random: rand.New(rand.NewPCG(uint64(child.Spec.Seed), 0))}
			if id := child.Spec.Workload; id != "W1" && id != "W8" { // these workloads hold the tensors that they release
				j.drop = j.Choice("release", "gc", "drop") == "drop"
			}
			l, err := open(j)
			if err = errors.Join(child.Err(), err); err != nil {
				return nil, err
			}
			return l, nil
		},
		Collect: collect,
	})
}

// outOfMemory searches for TensorFlow's message, since the binding hides the code of an error.
func outOfMemory(err error) bool {
	return err != nil && slices.ContainsFunc([]string{"OOM when allocating", "RESOURCE_EXHAUSTED", "Resource exhausted"},
		func(words string) bool { return strings.Contains(err.Error(), words) })
}

// version returns the version of the binding.
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

// job is the state for making a workload. The closures of the loop hold the references to native
// objects, which end with the loop.
type job struct {
	*worker.Child
	tensors *tensors
	random  *rand.Rand
	drop    bool // set references to nil, rather than let them go out of scope
}

// collect returns when everything unreachable has been freed. A finalizer may make new objects
// with finalizers (closing a session needs a status), so there are two rounds.
func collect() {
	count := []metrics.Sample{{Name: "/gc/finalizers/queued:finalizers"}, {Name: "/gc/finalizers/executed:finalizers"}}
	for range 2 {
		runtime.GC()
		for metrics.Read(count); count[1].Value.Uint64() < count[0].Value.Uint64(); metrics.Read(count) {
			runtime.Gosched()
		}
	}
}
