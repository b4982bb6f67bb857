package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"steadyfit/internal/lab/measure"
	"steadyfit/internal/lab/runner"
	"steadyfit/savedmodels"
)

// stepsPerExecution is the setting of the variants with several steps per execution.
const stepsPerExecution = 50

type variant struct {
	name string
	// role returns the signature that a model needs for the variant.
	role func(savedmodels.Roles) string
	// command returns the command of the child; nil means `steadyfit fit`. With auto, fit
	// chooses the configuration itself.
	command func(b *benchmark, p *prepared) []string
	auto    bool
}

func train(r savedmodels.Roles) string     { return r.Train }
func trainN(r savedmodels.Roles) string    { return r.TrainN }
func trainXLA(r savedmodels.Roles) string  { return r.TrainXLA }
func trainNXLA(r savedmodels.Roles) string { return r.TrainNXLA }

// Ratios are relative to the first variant and to keras-fit.
var variants = []variant{
	{name: "c", role: train, command: graphCommand("cloop")},
	{name: "galeone", role: train, command: graphCommand("galeone", "-impl", "galeone")},
	{name: "galeone-flat", role: train, command: graphCommand("galeone", "-impl", "galeone", "-input", "flat")},
	{name: "tfgo", role: train, command: graphCommand("galeone", "-impl", "tfgo")},
	{name: "steadyfit", role: train, command: sessionCommand(train)},
	{name: "steadyfit-fused", role: trainN, command: sessionCommand(trainN)},
	{name: "steadyfit-xla", role: trainXLA, command: sessionCommand(trainXLA)},
	{name: "steadyfit-fused-xla", role: trainNXLA, command: sessionCommand(trainNXLA)},
	{name: "steadyfit-fit", role: train},
	{name: "steadyfit-auto", role: train, auto: true},
	{name: "keras-fit", role: train, command: pythonCommand("keras-fit")},
	{name: "keras-fit-spe", role: trainN, command: pythonCommand("keras-fit-spe")},
	{name: "keras-fit-jit", role: trainXLA, command: pythonCommand("keras-fit-jit")},
	{name: "keras-fit-spe-jit", role: trainNXLA, command: pythonCommand("keras-fit-spe-jit")},
	{name: "keras-train-on-batch", role: train, command: pythonCommand("keras-train-on-batch")},
	{name: "tf-function", role: train, command: pythonCommand("tf-function")},
	{name: "tf-data", role: train, command: pythonCommand("tf-data")},
}

const (
	baseVariant  = "c"
	kerasVariant = "keras-fit"
)

// defaultVariants leaves out two variants that hardly differ from galeone.
var defaultVariants = func() []string {
	var names []string
	for _, a := range variants {
		if a.name != "galeone-flat" && a.name != "tfgo" {
			names = append(names, a.name)
		}
	}
	return names
}()

func variantNames() []string {
	var names []string
	for _, a := range variants {
		names = append(names, a.name)
	}
	return names
}

// unable returns the reason why a variant cannot run a workload, or "".
func (b *benchmark) unable(a variant, p *prepared) string {
	name := a.role(p.model.Roles)
	if name == "" {
		role := a.role(savedmodels.Roles{Train: "train", TrainN: "train_n", TrainXLA: "train_xla", TrainNXLA: "train_n_xla"})
		return "the model has no " + role
	}
	sig, err := p.model.Signature(name)
	if err != nil {
		return err.Error()
	}
	want := []int64{int64(p.Batch)}
	if name == p.model.Roles.TrainN || name == p.model.Roles.TrainNXLA {
		if p.Steps%stepsPerExecution > 0 {
			return fmt.Sprintf("an epoch of %d steps is no multiple of %d steps per execution", p.Steps, stepsPerExecution)
		}
		want = []int64{stepsPerExecution, int64(p.Batch)}
	}
	for _, in := range sig.DataInputs() {
		for i, n := range want {
			if i < len(in.Shape) && in.Shape[i] > 0 && in.Shape[i] != n {
				return fmt.Sprintf("%s is compiled for another shape: %v", name, in.Shape)
			}
		}
	}
	return ""
}

// choose runs a long training that measures its configurations at the start, and ends after its first
// epochs, since its loss falls. The measured trainings are too short for that.
func (b *benchmark) choose(ctx context.Context, p *prepared) error {
	_, _, err := b.child(ctx, []string{b.steadyfit, "fit", "--model", p.model.Dir, "--data", p.data, "--batch",
		strconv.Itoa(p.Batch), "--shuffle=false", "--auto", "on", "--epochs", "1000000", "--early-stop", "loss:1:max"})
	return err
}

// graphCommand returns the command of variants that need names of tensors instead of
// signatures.
func graphCommand(program string, words ...string) func(*benchmark, *prepared) []string {
	return func(b *benchmark, p *prepared) []string {
		args := append([]string{filepath.Join(b.programs, program)}, words...)
		args = append(args, "-model", p.model.Dir, "-data", p.data)
		sig, err := p.model.Signature(p.model.Roles.Train)
		if err != nil {
			return args // the variant refuses the workload
		}
		for _, in := range sig.DataInputs() {
			args = append(args, "-feed", in.Op+"="+in.Name)
		}
		for _, out := range sig.Metrics() { // the loss comes first
			args = append(args, "-fetch", out.Op)
		}
		return append(args, p.flags("-")...)
	}
}

func sessionCommand(role func(savedmodels.Roles) string) func(*benchmark, *prepared) []string {
	return func(b *benchmark, p *prepared) []string {
		args := []string{b.self, childSteadyfit, "-model", p.model.Dir, "-data", p.data, "-signature", role(p.model.Roles)}
		return append(args, p.flags("-")...)
	}
}

func pythonCommand(name string) func(*benchmark, *prepared) []string {
	return func(b *benchmark, p *prepared) []string {
		args := []string{b.python, filepath.Join("scripts", "bench_keras.py"), name, "--model", p.Model, "--data", p.data}
		return append(args, p.flags("--")...)
	}
}

func (p *prepared) flags(dash string) []string {
	return []string{dash + "batch", strconv.Itoa(p.Batch), dash + "steps", strconv.Itoa(p.Steps), dash + "epochs",
		strconv.Itoa(p.Epochs)}
}

func (b *benchmark) run(ctx context.Context, a variant, p *prepared) (Run, error) {
	if a.command == nil {
		return b.fit(ctx, a, p)
	}
	out, r, err := b.child(ctx, a.command(b, p))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(out, &r.Sample); err != nil {
		return r, fmt.Errorf("reading %q: %w", out, err)
	}
	r.began(r.Sample.FirstStep)
	return r, nil
}

// began sets FirstStepNS from the Unix time of the end of the first step.
func (r *Run) began(unix int64) {
	if unix > 0 {
		r.FirstStepNS = unix - r.Started.UnixNano()
	}
	r.Sample.FirstStep = 0
}

func (b *benchmark) child(ctx context.Context, command []string) ([]byte, Run, error) {
	cache, err := filepath.Abs(filepath.Join(b.data, "cache")) // for the choices of --auto
	if err != nil {
		return nil, Run{}, err
	}
	o, err := runner.Exec(ctx, b.timeout, command, "TF_CPP_MIN_LOG_LEVEL=2", "XDG_CACHE_HOME="+cache)
	r := Run{Started: o.Started, Seconds: o.Seconds, processCPU: o.CPU}
	for line := range strings.Lines(o.Log) {
		if why, ok := strings.CutPrefix(line, "auto: "); ok {
			r.Auto = strings.TrimSpace(why)
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(command[:min(3, len(command))], " "), err)
	}
	return o.Stdout, r, err
}

// keptChoice is the part of the message of `steadyfit fit` that reports the use of an earlier
// choice.
const keptChoice = "measured before"

// fit runs `steadyfit fit` twice, because the history has neither the time to the first step
// nor the processor time. The first run has only one epoch. Its time without the other steps is
// the time to the first step, and its processor time is subtracted from that of the long run.
// Both runs need the same steps per epoch, because the choice of --auto depends on them.
func (b *benchmark) fit(ctx context.Context, a variant, p *prepared) (Run, error) {
	dir, err := os.MkdirTemp("", "steadyfit-bench-")
	if err != nil {
		return Run{}, err
	}
	defer os.RemoveAll(dir)
	command := []string{b.steadyfit, "fit", "--model", p.model.Dir, "--data", p.data, "--batch", strconv.Itoa(p.Batch),
		"--shuffle=false"}
	if a.auto {
		command = append(command, "--auto", "on")
	} else {
		command = append(command, "--auto", "off")
	}
	_, one, err := b.child(ctx, append(command[:len(command):len(command)], "--epochs", "1"))
	if err != nil {
		return one, err
	}
	history := filepath.Join(dir, "history.jsonl")
	_, r, err := b.child(ctx, append(command, "--epochs", strconv.Itoa(1+p.Epochs), "--history", history))
	if err != nil {
		return r, err
	}
	for _, auto := range []string{one.Auto, r.Auto} {
		if a.auto && !strings.Contains(auto, keptChoice) {
			return r, fmt.Errorf("fit did not use the earlier choice: it reports %q, expected %q", auto, keptChoice)
		}
	}
	f, err := os.Open(history)
	if err != nil {
		return r, err
	}
	defer f.Close()
	epochs := 0
	for lines := bufio.NewScanner(f); lines.Scan(); epochs++ {
		var e struct {
			Loss    float64 `json:"loss"`
			Seconds float64 `json:"seconds"`
			RSS     int64   `json:"rss_bytes"`
			Anon    int64   `json:"anon_bytes"`
			Peak    int64   `json:"peak_bytes"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return r, fmt.Errorf("%s: %w", history, err)
		}
		if epochs == 0 {
			r.WarmupLoss = e.Loss
			continue
		}
		r.StepNS, r.Anon = append(r.StepNS, e.Seconds*1e9/float64(p.Steps)), append(r.Anon, e.Anon)
		r.RSS, r.Peak, r.LastLoss = e.RSS, e.Peak, e.Loss
	}
	r.Steps = max(epochs-1, 0) * p.Steps
	if r.Steps == 0 {
		return r, fmt.Errorf("%s has %d epochs, expected %d", history, epochs, 1+p.Epochs)
	}
	r.FirstStepNS = max(int64(one.Seconds*1e9-float64(p.Steps-1)*r.stepNS()), 0)
	// With few steps, the difference may be noise.
	r.CPU = max(int64(r.processCPU-one.processCPU), 0)
	r.Versions = map[string]string{"go": runtime.Version()}
	return r, nil
}

// Run is a process of a variant.
type Run struct {
	Workload string    `json:"workload"`
	Variant  string    `json:"arm"`
	Turn     int       `json:"turn"`
	Started  time.Time `json:"started"`
	Seconds  float64   `json:"seconds"`
	// FirstStepNS is the time from the start to the end of the first step; 0 is unknown.
	FirstStepNS int64 `json:"first_step_ns,omitempty"`
	// Auto is the message of `steadyfit fit` about --auto.
	Auto string `json:"auto,omitempty"`
	measure.Sample
	processCPU time.Duration
}

func (r *Run) stepNS() float64 { return measure.Median(r.StepNS) }
