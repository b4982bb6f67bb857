// Command bench measures the cost of training a model in steadyfit and in other programs: `make bench`.
//
//	go run ./internal/lab/bench [-workloads NAMES] [-variants NAMES] [-turns N] [-epochs N] [-out DIR]
//
// A variant is a program that trains a model. A workload is a model and the batches of an epoch
// in .npy files. In a turn, every variant trains every workload in a new process: a warm-up
// epoch, then the measured epochs. The order of the variants changes from turn to turn, and
// ratios are taken within turns, so that a machine that becomes slower favours no variant. All
// variants train the same weights with the same optimizer on the same batches. A variant with
// another loss in the first epoch is refused.
//
// Figures go to DIR/bench.json, and a table to the terminal. docs/explanation/speed.md explains them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	b := &benchmark{log: stderr, python: filepath.Join(".runtime", "venv", "bin", "python"),
		steadyfit: filepath.Join("bin", "steadyfit"), folder: filepath.Join("out", "bench")}
	out, err := b.parse(args)
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(stderr, "bench: %v\n", err)
		}
		return 2
	}
	r := newReport(ctx)
	if load := r.Environment.LoadBefore; load > 0.5*float64(r.Environment.Cores) {
		fmt.Fprintf(stderr, "bench: warning: the load average is %.1f on %d cores before the first run; step times will be "+
			"too long and scatter\n", load, r.Environment.Cores)
	}
	err = b.measure(ctx, r, func() error { return r.write(out) })
	if len(r.Runs) > 0 {
		r.table(stdout)
		fmt.Fprintf(stdout, "\nFigures of each run: %s\n", filepath.Join(out, "bench.json"))
	}
	if err := errors.Join(err, r.failed()); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}

type benchmark struct {
	variants  []variant
	workloads []Workload
	turns     int
	python    string // with Keras
	steadyfit string // the command
	folder    string // of the programs from build.sh, the exported models and the batches
	log       io.Writer
}

// parse reads the flags and returns the folder for the results.
func (b *benchmark) parse(args []string) (string, error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(b.log)
	chosenWorkloads := f.String("workloads", "", "workloads to run, separated by commas (default all)")
	chosenVariants := f.String("variants", "", "variants to run, separated by commas (default all)")
	f.IntVar(&b.turns, "turns", 5, "number of turns; each runs every variant once")
	epochs := f.Int("epochs", 0, "measured epochs; 0 means the number of each workload")
	out := f.String("out", filepath.Join("docs", "results"), "folder for the results")
	if err := f.Parse(args); err != nil {
		return "", err
	}
	if f.NArg() > 0 || b.turns < 1 || *epochs < 0 {
		return "", fmt.Errorf("expected flags only, at least 1 turn and no negative number of epochs, not %s",
			strings.Join(args, " "))
	}
	var err error
	if b.workloads, err = choose(workloads, Workload.name, *chosenWorkloads); err != nil {
		return "", fmt.Errorf("-workloads: %w", err)
	}
	if b.variants, err = choose(variants, variant.title, *chosenVariants); err != nil {
		return "", fmt.Errorf("-variants: %w", err)
	}
	for i := range b.workloads {
		if *epochs > 0 {
			b.workloads[i].Epochs = *epochs
		}
	}
	return *out, os.MkdirAll(*out, 0o777)
}

// choose returns the values with these names, separated by commas, or all.
func choose[T any](all []T, name func(T) string, chosen string) ([]T, error) {
	if chosen == "" {
		return slices.Clone(all), nil
	}
	var names []string
	for _, v := range all {
		names = append(names, name(v))
	}
	var list []T
	for word := range strings.SplitSeq(chosen, ",") {
		i := slices.Index(names, word)
		if i < 0 {
			return nil, fmt.Errorf("unknown name %q; use some of %s", word, strings.Join(names, ", "))
		}
		list = append(list, all[i])
	}
	return list, nil
}
