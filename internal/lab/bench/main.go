// Command bench measures the cost of training a model in steadyfit and in other programs: `make
// bench`.
//
//	go run ./internal/lab/bench [-workloads NAMES] [-variants NAMES] [-turns N] [-out DIR]
//
// A variant is a program that trains a model. A workload is a model and the batches of an epoch
// in .npy files. In a turn, every variant trains every workload in a new process: a warm-up
// epoch, then the measured epochs. The order of the variants changes from turn to turn, and
// ratios are taken within turns, so that a machine that becomes slower favours no variant. All
// variants train the same weights with the same optimizer on the same batches. A variant with
// another loss in the first epoch is refused.
//
// Figures go to DIR/bench.json and DIR/bench.txt (Go benchmark format, for benchstat), and a table
// to the terminal. docs/explanation/speed.md explains them.
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
	"runtime"
	"slices"
	"strings"
	"time"

	"steadyfit/internal/lab/machine"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	mode := "bench"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		mode, args = args[0], args[1:]
	}
	var err error
	switch mode {
	case "bench":
		err = bench(ctx, args, stdout, stderr)
	case childSteadyfit:
		err = steadyfitChild(ctx, args, stdout, stderr)
	default:
		err = usage("%q: expected flags only", mode)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 2
	}
	fmt.Fprintf(stderr, "bench: %v\n", err)
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

type options struct {
	variants, out string
	turns         int
	steps, epochs int
	timeout       time.Duration
	python        string
	steadyfit     string
	programs      string
	models, data  string
}

func (o *options) register(f *flag.FlagSet, variants []string, turns int) {
	f.StringVar(&o.variants, "variants", strings.Join(variants, ","),
		"variants to run, of: "+strings.Join(variantNames(), ", "))
	f.IntVar(&o.turns, "turns", turns, "number of turns; each runs every variant once")
	f.IntVar(&o.steps, "steps", 0, "steps per epoch; 0 means the number of each workload")
	f.IntVar(&o.epochs, "epochs", 0, "measured epochs; 0 means the number of each workload")
	f.StringVar(&o.out, "out", filepath.Join("docs", "results"), "folder for the results")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "time limit of a process")
	f.StringVar(&o.python, "python", filepath.Join(".runtime", "venv", "bin", "python"), "Python with Keras")
	f.StringVar(&o.steadyfit, "steadyfit", filepath.Join("bin", "steadyfit"), "the command steadyfit")
	f.StringVar(&o.programs, "programs", filepath.Join("out", "bench"),
		"folder of the programs that internal/lab/bench/build.sh built")
	f.StringVar(&o.models, "models", filepath.Join("out", "bench", "models"),
		"folder for the models, exported with XLA-compiled signatures")
	f.StringVar(&o.data, "data", filepath.Join("out", "bench", "data"), "folder for the batches")
}

// parse reads the flags into a benchmark.
func (o *options) parse(f *flag.FlagSet, args []string, stderr io.Writer) (*benchmark, error) {
	f.SetOutput(stderr)
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, usage("%w", err)
	}
	if f.NArg() > 0 {
		return nil, usage("%q: expected flags only", f.Arg(0))
	}
	b := &benchmark{options: *o, log: stderr}
	if o.turns < 1 || o.steps < 0 || o.epochs < 0 {
		return nil, usage("-turns %d -steps %d -epochs %d: expected at least 1 turn, and no negative number", o.turns,
			o.steps, o.epochs)
	}
	for name := range strings.SplitSeq(o.variants, ",") {
		i := slices.IndexFunc(variants, func(a variant) bool { return a.name == name })
		if i < 0 {
			return nil, usage("-variants %s: unknown variant %q; use some of %s", o.variants, name,
				strings.Join(variantNames(), ", "))
		}
		b.variants = append(b.variants, variants[i])
	}
	return b, nil
}

func (o *options) sized(w Workload) Workload {
	if o.steps > 0 {
		w.Steps = o.steps
	}
	if o.epochs > 0 {
		w.Epochs = o.epochs
	}
	return w
}

func bench(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	names := flags.String("workloads", strings.Join(workloadNames(), ","), "workloads to run")
	o.register(flags, defaultVariants, 5)
	b, err := o.parse(flags, args, stderr)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(*names, ",") {
		i := slices.IndexFunc(workloads, func(w Workload) bool { return w.Name == name })
		if i < 0 {
			return usage("-workloads %s: unknown workload %q; use some of %s", *names, name, strings.Join(workloadNames(), ", "))
		}
		b.workloads = append(b.workloads, o.sized(workloads[i]))
	}
	if err := os.MkdirAll(o.out, 0o777); err != nil {
		return err
	}
	r := newReport(ctx)
	warnOfLoad(r.Environment, stderr)
	err = b.measure(ctx, r, func() error { return r.write(o.out) })
	if len(r.Runs) > 0 {
		r.table(stdout)
		fmt.Fprintf(stdout, "\nFigures of each run: %s, and bench.txt in the same folder.\n",
			filepath.Join(o.out, "bench.json"))
	}
	return errors.Join(err, r.failed())
}

func warnOfLoad(e machine.Environment, stderr io.Writer) {
	if cores := runtime.NumCPU(); e.LoadBefore > 0.5*float64(cores) {
		fmt.Fprintf(stderr, "bench: warning: the load average is %.1f on %d cores before the first run; step times will "+
			"be too long and scatter\n", e.LoadBefore, cores)
	}
}
