//go:build galeone

// Command galeone has programs of the matrix on galeone's fork of TensorFlow's Go binding, written as its users write
// them: those in which the binding decides when memory is released. They create tensors with NewTensor from nested slices, and close nothing except a
// Session, since the binding has no other Close. Finalizers free tensors, graphs and statuses after the Go heap has grown
// enough for a collection.
//
//	galeone W4 --steps=24 --model=DIR ...
//
// runs the program of a workload (package program has the options).
// It links libtensorflow, and needs the build tag galeone and the settings in internal/lab/bench/galeone.env.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/metrics"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/internal/lab/program"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	err := errors.New("expected the name of a workload and its options")
	if len(args) > 0 && workloads[args[0]] != nil {
		err = program.Caught(func() { program.Check(workload(args[0], args[1:], stdout)) })
	}
	if err != nil {
		fmt.Fprintf(stderr, "%v\n", err)
		return 1
	}
	return 0
}

func workload(name string, args []string, stdout io.Writer) error {
	p, err := program.New(args, stdout)
	if err != nil {
		return err
	}
	p.Fact("tensorflow", tf.Version())
	return p.Run(context.Background(), func(context.Context) *program.Loop {
		j := &job{Program: p}
		if name != "W1" { // the other workloads do not release tensors that they hold
			j.drop = j.Choice("release", "gc", "drop") == "drop"
		}
		return workloads[name](j)
	}, collect)
}

// job is the state of a workload. The closures of the loop have the only references to native
// objects.
type job struct {
	*program.Program
	drop bool // set references to nil
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
