// Command accuracy measures the cost of lower precisions in accuracy. It trains each model in
// fp32 and in each precision, with the same data, seeds and epochs, and compares the last
// validation accuracy with that of fp32 for each seed.
//
//	go run ./internal/lab/accuracy -plan
//	go run ./internal/lab/accuracy -seeds 5
//
// bf16 and fp16 are measured as a rewrite of the fp32 SavedModel (--precision), and as a
// SavedModel exported under the Keras policy mixed_bfloat16 or mixed_float16; the latter also
// with the loss scale of fit.
//
// A seed sets the order of the data and the random numbers of a run. All runs of a model have
// the initial weights of its export, so the interval does not show the scatter over initial
// weights.
//
// Each run is a process of `steadyfit fit`. A later measurement reuses the run if its command
// line and the hash of its model are the same, so an interrupted measurement resumes. Results
// go to stdout as a table and to a JSON file.
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
	show := flags.Bool("plan", false, "print the command lines and run nothing")
	o := options{}
	flags.StringVar(&o.steadyfit, "steadyfit", "bin/steadyfit", "the program")
	flags.StringVar(&o.work, "work", "out/accuracy", "folder for generated data and finished runs")
	flags.StringVar(&o.exported, "exported", "out/models", "folder of the models that make accuracy exports")
	flags.StringVar(&o.fashion, "fashion", "/usr/share/datasets/fashion-mnist", "folder of Fashion-MNIST")
	flags.IntVar(&o.seeds, "seeds", 5, "runs of each model in each precision, with seeds 1, 2, ...")
	result := flags.String("json", "", "file for the results")
	models := flags.String("models", "", "only these models, such as digits,image-224")
	precisions := flags.String("precisions", "", "only these precisions and fp32, such as bf16-rewritten,bf16-exported")
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

type options struct {
	steadyfit, work, exported, fashion string
	seeds                              int
}

func (o *options) runs() string { return filepath.Join(o.work, "runs") }
func (o *options) data() string { return filepath.Join(o.work, "data", "image-224") }
