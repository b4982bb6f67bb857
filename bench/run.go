// Command bench measures one train step of a SavedModel in several programs and
// compares each with the bare C loop: `make bench-step`, `make bench-image`.
//
//	go run ./bench -model out/models/dense-100-64-1 -batch 32 -steps 10000 -repeats 6
//
// Every arm is a child process that trains the same model on the same synthetic
// batch (internal/measure) and prints one line of Go benchmark output. The arms run
// in turns, forwards and backwards (c s g g s c ...), so that a machine that
// gets slower by and by does not favour one of them; ratios are taken within a
// turn. The children's lines go to -out, for benchstat; the comparison goes to
// the terminal. It exits 1 if an arm failed, or did other work than the C loop.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	types "github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/measure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

type config struct {
	model, signature, out  string
	batch                  int64
	steps, warmup, repeats int
	chunks                 int
	limit                  uint
	arms                   []string
	steadyfit              string
	timeout                time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c config
	var arms string
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.model, "model", "", "folder of the SavedModel")
	flags.StringVar(&c.signature, "signature", "train", "signature that is run")
	flags.Int64Var(&c.batch, "batch", 32, "batch size")
	flags.IntVar(&c.steps, "steps", 1000, "measured steps in each run")
	flags.IntVar(&c.warmup, "warmup", 0, "steps before them (0: a tenth of the steps, 5 to 200)")
	flags.IntVar(&c.chunks, "chunks", 50, "groups that the steps are timed in")
	flags.IntVar(&c.repeats, "repeats", 6, "runs of each arm")
	flags.UintVar(&c.limit, "classes", measure.DefaultLimit, "integer inputs are drawn below this")
	flags.StringVar(&arms, "arms", "c,steadyfit,galeone,galeone-flat,tfgo", "arms to run, the first is what the others are compared with")
	flags.StringVar(&c.steadyfit, "steadyfit", "bin/steadyfit bench --model {model} --signature {signature} --batch {batch} --steps {steps} --synthetic",
		"command of the steadyfit arm")
	flags.StringVar(&c.out, "out", "", "file for the children's lines (default out/bench/MODEL.txt)")
	flags.DurationVar(&c.timeout, "timeout", 10*time.Minute, "time for one run of one arm")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	c.arms = strings.Split(arms, ",")
	if c.model == "" || c.repeats < 1 || c.steps < 1 || c.batch < 1 {
		fmt.Fprintln(stderr, "bench: -model is needed; -batch, -steps and -repeats must be at least 1")
		return 2
	}
	c.chunks = min(c.chunks, c.steps)
	if c.warmup == 0 {
		c.warmup = min(max(c.steps/10, 5), 200)
	}
	if c.out == "" {
		c.out = filepath.Join("out", "bench", filepath.Base(c.model)+".txt")
	}
	if err := c.measure(ctx, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}

func (c config) measure(ctx context.Context, stdout, stderr io.Writer) (err error) {
	sig, err := readSignature(c.model, c.signature, c.batch, uint32(c.limit))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.out), 0o755); err != nil {
		return err
	}
	file, err := os.Create(c.out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	fmt.Fprintf(file, "goos: %s\ngoarch: %s\ncpu: %s\n", runtime.GOOS, runtime.GOARCH, cpuName())

	results := map[string][]sample{}
	failed := map[string]error{}
	for repeat := range c.repeats {
		order := slices.Clone(c.arms)
		if repeat%2 == 1 {
			slices.Reverse(order)
		}
		if load := loadAverage(); load > 0.5*float64(runtime.NumCPU()) && repeat == 0 {
			fmt.Fprintf(stderr, "bench: warning: load average is %.1f on %d cores before the first run; times will be too long and spread\n", load, runtime.NumCPU())
		}
		for _, arm := range order {
			if failed[arm] != nil {
				continue
			}
			line, err := c.child(ctx, arm, sig)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			var s sample
			if err == nil {
				s, err = parseLine(line)
			}
			if err != nil {
				failed[arm] = err
				fmt.Fprintf(stderr, "bench: %s: %v\n", arm, err)
				continue
			}
			s.repeat = repeat
			results[arm] = append(results[arm], s)
			fmt.Fprintln(file, line)
			fmt.Fprintf(stderr, "bench: run %d of %d: %-12s %10.1f us/step\n", repeat+1, c.repeats, arm, s.values["ns/op"]/1e3)
		}
	}
	fmt.Fprintf(stdout, "%s, batch %d, %d steps after %d, %d runs of each arm\n%s, %d cores, load average %.1f at the end\n\n",
		filepath.Base(c.model), c.batch, c.steps, c.warmup, c.repeats, cpuName(), runtime.NumCPU(), loadAverage())
	if err := compare(stdout, c.arms, results, failed); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nThe lines of each run are in %s, for benchstat.\n", c.out)
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d arms failed", len(failed), len(c.arms))
	}
	return sameWork(c.arms, results)
}

// child runs one arm once and returns its result line.
func (c config) child(ctx context.Context, arm string, s signature) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var command []string
	switch arm {
	case "c":
		command = append([]string{"out/bench/cloop"}, c.flags(s)...)
	case "galeone":
		command = append([]string{"out/bench/baseline", "-impl", "galeone"}, c.flags(s)...)
	case "galeone-flat":
		command = append([]string{"out/bench/baseline", "-impl", "galeone", "-input", "flat"}, c.flags(s)...)
	case "tfgo":
		command = append([]string{"out/bench/baseline", "-impl", "tfgo"}, c.flags(s)...)
	case "steadyfit":
		for word := range strings.FieldsSeq(c.steadyfit) {
			command = append(command, strings.NewReplacer("{model}", c.model, "{signature}", c.signature,
				"{batch}", strconv.FormatInt(c.batch, 10), "{steps}", strconv.Itoa(c.steps), "{warmup}", strconv.Itoa(c.warmup)).Replace(word))
		}
	default:
		return "", fmt.Errorf("no such arm; there are c, steadyfit, galeone, galeone-flat and tfgo")
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "TF_CPP_MIN_LOG_LEVEL=2")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", command[0], err, tail(errs.String()))
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "Benchmark") {
			return strings.TrimSpace(line), nil
		}
	}
	return "", fmt.Errorf("%s printed no benchmark line", command[0])
}

func tail(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}

func (c config) flags(s signature) []string {
	args := []string{"-model", c.model, "-name", filepath.Base(c.model), "-batch", strconv.FormatInt(c.batch, 10),
		"-steps", strconv.Itoa(c.steps), "-warmup", strconv.Itoa(c.warmup), "-chunks", strconv.Itoa(c.chunks)}
	for _, f := range s.feeds {
		args = append(args, "-feed", f.String())
	}
	for _, f := range s.fetches {
		args = append(args, "-fetch", f)
	}
	return args
}

// A signature is what the arms feed and fetch, inputs by name, the loss first.
type signature struct {
	feeds   []measure.Feed
	fetches []string
}

var dtypes = map[types.DataType]string{types.DataType_DT_FLOAT: "float", types.DataType_DT_INT32: "int32", types.DataType_DT_INT64: "int64"}

func readSignature(dir, name string, batch int64, limit uint32) (signature, error) {
	text, err := os.ReadFile(filepath.Join(dir, "saved_model.pb"))
	if err != nil {
		return signature{}, err
	}
	var saved pb.SavedModel
	if err := proto.Unmarshal(text, &saved); err != nil {
		return signature{}, fmt.Errorf("%s: %w", dir, err)
	}
	for _, graph := range saved.GetMetaGraphs() {
		if s := graph.GetSignatureDef()[name]; s != nil {
			return readInputs(s, batch, limit)
		}
	}
	return signature{}, fmt.Errorf("%s has no signature %q", dir, name)
}

func readInputs(def *pb.SignatureDef, batch int64, limit uint32) (signature, error) {
	var s signature
	for _, name := range sortedKeys(def.GetInputs()) {
		info := def.GetInputs()[name]
		f := measure.Feed{Tensor: info.GetName(), DType: dtypes[info.GetDtype()], Limit: limit}
		if f.DType == "" {
			return s, fmt.Errorf("input %q has type %v; the benchmark feeds float, int32 and int64", name, info.GetDtype())
		}
		if info.GetTensorShape() == nil || info.GetTensorShape().GetUnknownRank() {
			return s, fmt.Errorf("input %q has no known rank", name)
		}
		for i, d := range info.GetTensorShape().GetDim() {
			size := d.GetSize()
			if size < 0 && i == 0 {
				size = batch
			}
			if size < 1 {
				return s, fmt.Errorf("input %q: dimension %d is unknown", name, i)
			}
			f.Shape = append(f.Shape, size)
		}
		s.feeds = append(s.feeds, f)
	}
	loss := def.GetOutputs()["loss"]
	if loss == nil {
		return s, errors.New(`the signature has no output "loss"`)
	}
	s.fetches = []string{loss.GetName()}
	for _, name := range sortedKeys(def.GetOutputs()) {
		if name != "loss" {
			s.fetches = append(s.fetches, def.GetOutputs()[name].GetName())
		}
	}
	return s, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// A sample is one result line: its values by unit.
type sample struct {
	repeat int
	values map[string]float64
}

func parseLine(line string) (sample, error) {
	fields := strings.Fields(line)
	s := sample{values: map[string]float64{}}
	if len(fields) < 4 || len(fields)%2 != 0 {
		return s, fmt.Errorf("not a benchmark line: %q", line)
	}
	for i := 2; i < len(fields); i += 2 {
		v, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return s, fmt.Errorf("benchmark line %q: %w", line, err)
		}
		s.values[fields[i+1]] = v
	}
	if s.values["ns/op"] <= 0 {
		return s, fmt.Errorf("benchmark line without ns/op: %q", line)
	}
	return s, nil
}

// compare prints a row per arm: medians, the spread of the step time, and the
// ratio to the first arm with its interval.
func compare(w io.Writer, arms []string, results map[string][]sample, failed map[string]error) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "arm\tus/step\t[min, max]\ttime to %s\t[95%%]\tsteady anon MB\tpeak MB\tanon range MB\tgrowth KB/step\t\n", arms[0])
	for _, arm := range arms {
		if failed[arm] != nil {
			fmt.Fprintf(table, "%s\tfailed\t\t\t\t\t\t\t\n", arm)
			continue
		}
		times := column(results[arm], "ns/op")
		ratio, interval := "1", ""
		if arm != arms[0] {
			ratio, interval = ratios(results[arm], results[arms[0]])
		}
		fmt.Fprintf(table, "%s\t%.1f\t[%.1f, %.1f]\t%s\t%s\t%s\t%s\t%s\t%s\t\n", arm,
			measure.Median(slices.Clone(times))/1e3, slices.Min(times)/1e3, slices.Max(times)/1e3, ratio, interval,
			scaled(results[arm], "anon-bytes", 1e6), scaled(results[arm], "peak-bytes", 1e6),
			scaled(results[arm], "anon-range-bytes", 1e6), scaled(results[arm], "anon-B/step", 1e3))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if n := len(results[arms[0]]); n < 5 && len(arms) > 1 {
		fmt.Fprintf(w, "~ intervals from %d pairs are rough; 5 or more tell more.\n", n)
	}
	return nil
}

func column(samples []sample, unit string) []float64 {
	var values []float64
	for _, s := range samples {
		if v, ok := s.values[unit]; ok {
			values = append(values, v)
		}
	}
	return values
}

func scaled(samples []sample, unit string, by float64) string {
	values := column(samples, unit)
	if len(values) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", measure.Median(values)/by)
}

// ratios pairs the runs of one turn and returns the median ratio of the step
// times, with a bootstrap interval; the interval is marked ~ where it holds 1.
func ratios(arm, base []sample) (ratio, interval string) {
	var logs []float64
	for _, s := range arm {
		for _, b := range base {
			if b.repeat == s.repeat {
				logs = append(logs, math.Log(s.values["ns/op"]/b.values["ns/op"]))
			}
		}
	}
	if len(logs) == 0 {
		return "-", ""
	}
	middle := math.Exp(measure.Median(slices.Clone(logs)))
	low, high := bootstrap(logs)
	mark := ""
	if low <= 1 && high >= 1 {
		mark = " ~"
	}
	return fmt.Sprintf("%.3f%s", middle, mark), fmt.Sprintf("[%.3f, %.3f]", low, high)
}

// bootstrap returns the 95% percentile interval of the median of log ratios,
// as ratios. It draws the same resamples at each call, so a file of results
// gives the same table again.
func bootstrap(logs []float64) (low, high float64) {
	random := rand.New(rand.NewPCG(1, 2))
	const draws = 4000
	medians := make([]float64, draws)
	resample := make([]float64, len(logs))
	for d := range medians {
		for i := range resample {
			resample[i] = logs[random.IntN(len(logs))]
		}
		medians[d] = measure.Median(resample)
	}
	slices.Sort(medians)
	return math.Exp(medians[draws*25/1000]), math.Exp(medians[draws*975/1000])
}

// sameWork compares the losses of the first step: equal data and weights give
// equal losses, up to the order of summation.
func sameWork(arms []string, results map[string][]sample) error {
	want := column(results[arms[0]], "first-loss")
	if len(want) == 0 {
		return nil
	}
	var other []string
	for _, arm := range arms[1:] {
		for _, got := range column(results[arm], "first-loss") {
			if math.Abs(got-want[0]) > 1e-4*math.Abs(want[0]) {
				other = append(other, fmt.Sprintf("%s: %g", arm, got))
				break
			}
		}
	}
	if len(other) > 0 {
		return fmt.Errorf("the first step's loss is %g in %s, but differs in %s: these arms did other work (or the model draws random numbers)",
			want[0], arms[0], strings.Join(other, ", "))
	}
	return nil
}

func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return load
}

func cpuName() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return runtime.GOARCH
}
