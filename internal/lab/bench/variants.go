package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/lab/measure"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/stats"
)

const (
	timeout           = 10 * time.Minute // of a process
	stepsPerExecution = 50               // of the variants of Keras with several
	baseVariant       = "c"
	autoVariant       = "steadyfit-auto"
	kerasVariant      = "keras-fit"
)

type variant struct {
	name string
	run  func(context.Context, *benchmark, *prepared) (*Run, error)
	// several means that the variant runs stepsPerExecution steps per execution, and xla that XLA
	// compiles its steps.
	several, xla bool
}

func (v variant) title() string { return v.name }

var variants = []variant{
	{name: baseVariant, run: graphProgram("cloop")},
	{name: "galeone", run: graphProgram("galeone")},
	{name: "steadyfit-fit", run: fit("off")},
	{name: autoVariant, run: fit("on")},
	{name: kerasVariant, run: keras(kerasVariant)},
	{name: "keras-fit-spe", run: keras("keras-fit-spe"), several: true},
	{name: "keras-fit-jit", run: keras("keras-fit-jit"), xla: true},
	{name: "keras-fit-spe-jit", run: keras("keras-fit-spe-jit"), several: true, xla: true},
}

// unable returns the reason why a variant cannot run a workload, or "".
func (v variant) unable(p *prepared) string {
	switch {
	case v.several && p.Steps%stepsPerExecution > 0:
		return fmt.Sprintf("an epoch of %d steps is no multiple of %d steps per execution", p.Steps, stepsPerExecution)
	case v.xla && p.model.Roles.TrainXLA == "":
		return "the model has no train_xla"
	}
	return ""
}

// graphProgram runs a program that needs names of tensors instead of signatures.
func graphProgram(name string) func(context.Context, *benchmark, *prepared) (*Run, error) {
	return func(ctx context.Context, b *benchmark, p *prepared) (*Run, error) {
		args := []string{filepath.Join(b.folder, name), "-model", p.model.Dir, "-data", p.data}
		for _, in := range p.train.DataInputs() {
			args = append(args, "-feed", in.Op+"="+in.Name)
		}
		for _, out := range p.train.Metrics() { // the loss comes first
			args = append(args, "-fetch", out.Op)
		}
		return b.program(ctx, p, args)
	}
}

func keras(name string) func(context.Context, *benchmark, *prepared) (*Run, error) {
	return func(ctx context.Context, b *benchmark, p *prepared) (*Run, error) {
		return b.program(ctx, p, []string{b.python, filepath.Join("scripts", "bench_keras.py"), name, "-model", p.Name,
			"-data", p.data})
	}
}

// program runs a program that prints a measure.Sample.
func (b *benchmark) program(ctx context.Context, p *prepared, args []string) (*Run, error) {
	out, r, err := b.child(ctx, append(args, "-batch", strconv.Itoa(p.Batch), "-steps", strconv.Itoa(p.Steps), "-epochs",
		strconv.Itoa(p.Epochs)))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(out, &r.Sample); err != nil {
		return nil, fmt.Errorf("reading %q: %w", out, err)
	}
	r.FirstStepNS, r.FirstStep = r.FirstStep-r.Started.UnixNano(), 0
	return r, nil
}

func (b *benchmark) child(ctx context.Context, command []string) ([]byte, *Run, error) {
	cache, err := filepath.Abs(filepath.Join(b.folder, "cache")) // for the choices of --auto
	if err != nil {
		return nil, nil, err
	}
	o, err := runner.Exec(ctx, timeout, command, "TF_CPP_MIN_LOG_LEVEL=2", "XDG_CACHE_HOME="+cache)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", strings.Join(command[:min(3, len(command))], " "), err)
	}
	r := &Run{Started: o.Started, Seconds: o.Seconds}
	for line := range strings.Lines(o.Log) {
		if why, ok := strings.CutPrefix(line, "auto: "); ok {
			r.Auto = strings.TrimSpace(why)
		}
	}
	return o.Stdout, r, nil
}

// chooseAuto runs a long training that measures its configurations at the start, and ends after its first
// epochs, since its loss falls. The measured trainings are too short for that.
func (b *benchmark) chooseAuto(ctx context.Context, p *prepared) error {
	_, _, err := b.child(ctx, b.fitCommand(p, "on", "--epochs", "1000000", "--early-stop", "loss:1:max"))
	return err
}

func (b *benchmark) fitCommand(p *prepared, auto string, more ...string) []string {
	return append([]string{b.steadyfit, "fit", "--model", p.model.Dir, "--data", p.data, "--batch",
		strconv.Itoa(p.Batch), "--shuffle=false", "--auto", auto}, more...)
}

// keptChoice is the part of the message of `steadyfit fit` that reports the use of an earlier
// choice.
const keptChoice = "measured before"

// fit runs `steadyfit fit` twice, because the history lacks the time to the first step. The first
// run has only one epoch. Its time without the other steps is the time to the first step. Both
// runs need the same steps per epoch, because the choice of --auto depends on them.
func fit(auto string) func(context.Context, *benchmark, *prepared) (*Run, error) {
	return func(ctx context.Context, b *benchmark, p *prepared) (*Run, error) {
		dir, err := os.MkdirTemp("", "steadyfit-bench-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		_, one, err := b.child(ctx, b.fitCommand(p, auto, "--epochs", "1"))
		if err != nil {
			return nil, err
		}
		history := filepath.Join(dir, "history.jsonl")
		_, r, err := b.child(ctx, b.fitCommand(p, auto, "--epochs", strconv.Itoa(1+p.Epochs), "--history", history))
		if err != nil {
			return nil, err
		}
		for _, message := range []string{one.Auto, r.Auto} {
			if auto == "on" && !strings.Contains(message, keptChoice) {
				return nil, fmt.Errorf("fit did not use the earlier choice: it reports %q, expected %q", message, keptChoice)
			}
		}
		if err := r.readHistory(history, p.Steps); err != nil {
			return nil, err
		}
		r.FirstStepNS = max(int64(one.Seconds*1e9-float64(p.Steps-1)*r.stepNS()), 0)
		return r, nil
	}
}

// readHistory reads the epochs of a training. The first one is the warm-up.
func (r *Run) readHistory(file string, steps int) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for epoch := 0; lines.Scan(); epoch++ {
		var e struct {
			Loss    float64 `json:"loss"`
			Seconds float64 `json:"seconds"`
			Anon    int64   `json:"anon_bytes"`
			Peak    int64   `json:"peak_bytes"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if epoch == 0 {
			r.WarmupLoss = e.Loss
			continue
		}
		r.StepNS, r.Anon = append(r.StepNS, e.Seconds*1e9/float64(steps)), append(r.Anon, e.Anon)
		r.Steps, r.Peak, r.LastLoss = epoch*steps, e.Peak, e.Loss
	}
	if r.Steps == 0 && lines.Err() == nil {
		return fmt.Errorf("%s has too few epochs", file)
	}
	return lines.Err()
}

// Run is a process of a variant.
type Run struct {
	Workload string    `json:"workload"`
	Variant  string    `json:"arm"`
	Turn     int       `json:"turn"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	// FirstStepNS is the time from the start to the end of the first step.
	FirstStepNS int64 `json:"first_step_ns"`
	// Auto is the message of `steadyfit fit` about --auto.
	Auto string `json:"auto,omitempty"`
	measure.Sample
}

func (r *Run) stepNS() float64 { return stats.Median(r.StepNS) }
