// Command accuracy measures the cost of a precision in accuracy. It trains each model in fp32
// and in the lower precisions, on the same data, with the same seeds and number of epochs, and
// compares the last validation accuracy with that of fp32, seed by seed.
//
//	go run ./internal/lab/accuracy -plan
//	go run ./internal/lab/accuracy -seeds 5
//
// The precisions are: fp32, the reference; bf16 and fp16 by rewriting the graph of the same
// SavedModel when it is loaded (--precision); bf16 and fp16 as exported, a SavedModel made under
// the Keras policy mixed_bfloat16 or mixed_float16; and fp16 as exported with its loss scaled by
// fit (--loss-scale dynamic).
//
// A seed decides the order of the data and all random numbers of a run. The initial weights of a
// model are those of its export, the same for all precisions and seeds. So the interval shows
// how the difference scatters over orders of the data, not over initial weights.
//
// Each run is a process of `steadyfit fit`; the result is in its history. Finished runs are kept
// in the folder -work with their command line and a hash of the model, and are reused if these
// are the same, so an interrupted measurement resumes. The results go to stdout as a table, and
// to a JSON file.
//
// Package matrix and the benchmark measure speed.
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
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("accuracy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	show := flags.Bool("plan", false, "print what would run, and run nothing")
	o := options{}
	flags.StringVar(&o.steadyfit, "steadyfit", "bin/steadyfit", "the program")
	flags.StringVar(&o.work, "work", "out/accuracy", "folder for the made data and for finished runs")
	flags.StringVar(&o.exported, "exported", "out/models", "folder of the models that do not ship, as make accuracy writes them")
	flags.StringVar(&o.fashion, "fashion", "/usr/share/datasets/fashion-mnist", "folder of Fashion-MNIST")
	flags.IntVar(&o.seeds, "seeds", 5, "runs of each model in each precision, with the seeds 1, 2, ...")
	result := flags.String("json", "", "file for the results")
	models := flags.String("models", "", "only these models, as in digits,image-224")
	precisions := flags.String("precisions", "", "only these precisions beside fp32, as in bf16-rewritten,bf16-exported")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	plan, err := newPlan(o, split(*models), split(*precisions))
	if err != nil {
		fmt.Fprintf(stderr, "accuracy: %v\n", err)
		return 2
	}
	if *show {
		plan.print(stdout)
		return 0
	}
	report, err := measure(ctx, plan, stderr)
	if report != nil {
		report.table(stdout)
		if *result != "" {
			err = errors.Join(err, report.write(*result))
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "accuracy: %v\n", err)
		return 1
	}
	return 0
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// options are the folders and files of the flags.
type options struct {
	steadyfit, work, exported, fashion string
	seeds                              int
}

func (o *options) runs() string { return filepath.Join(o.work, "runs") }
func (o *options) data() string { return filepath.Join(o.work, "data", "image-224") }
