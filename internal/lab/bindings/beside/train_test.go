//go:build graft || galeone || official

package beside

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"steadyfit/data"
	"steadyfit/internal/files"
	"steadyfit/internal/lab/measure"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/synth"
	"steadyfit/internal/stats"
	"steadyfit/savedmodels"
)

// trainings are trainings of the models in scripts/bench_models.py. Each takes one to a few seconds in the C program.
var trainings = []training{
	{name: "dense-100-64-1", batch: 32, steps: 500, epochs: 20},
	{name: "dense-784-10", batch: 32, steps: 500, epochs: 20},
	{name: "dropout-200-512-256-1", batch: 64, steps: 250, epochs: 8, random: true},
	{name: "digits-cnn", batch: 32, steps: 250, epochs: 10, random: true},
	{name: "lstm", batch: 32, steps: 250, epochs: 8},
	{name: "attention", batch: 32, steps: 100, epochs: 10},
	{name: "image-224", batch: 32, steps: 4, epochs: 10},
}

type training struct {
	name                 string
	batch, steps, epochs int
	random               bool // a step draws random numbers, which differ between the ways

	folder string // of the programs
	model  *savedmodels.Model
	sig    *savedmodels.Signature
	all    data.Batch // the batches of an epoch
	data   string     // folder with the same in files
}

// epochs are the figures of a training. The programs in C and Python print them.
type epochs struct {
	StepNS     []float64 `json:"step_ns"` // the mean in each epoch
	Anon       []int64   `json:"anon_bytes"`
	Peak       int64     `json:"peak_bytes"`
	WarmupLoss float64   `json:"warmup_loss"`
}

// stepsPerExecution are those of the ways of Keras with several.
const stepsPerExecution = 50

// BenchmarkTrain trains models in several programs, from the same weights, with the same optimizer, on the same batches
// in the same order: a warm-up epoch, then the measured ones. An op is a step, and its time the median over the epochs.
// A way with another loss in the warm-up epoch than the way that ran first is refused. STEADYFIT_BENCH_EPOCHS is the
// number of measured epochs, if it is set.
func BenchmarkTrain(b *testing.B) {
	for _, t := range trainings {
		b.Run("model="+t.name, func(b *testing.B) {
			for _, way := range []struct {
				name string
				run  func(*testing.B, *training, string) (epochs, error)
			}{{"c", trainC}, {binding, trainBinding}, {"fit", trainFit}, {"fit-auto", trainFit}, {"keras-fit", trainKeras},
				{"keras-fit-spe", trainKeras}, {"keras-fit-jit", trainKeras}, {"keras-fit-spe-jit", trainKeras}} {
				b.Run("way="+way.name, func(b *testing.B) {
					t.open(b)
					switch {
					case strings.Contains(way.name, "-spe") && t.steps < stepsPerExecution:
						b.Skip("an epoch has fewer steps than an execution")
					case strings.Contains(way.name, "-jit") && t.model.Roles.TrainXLA == "":
						b.Skip("XLA does not compile the model")
					}
					r, err := way.run(b, &t, way.name)
					if err == nil {
						err = t.sameWork(r.WarmupLoss)
					}
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(stats.Median(r.StepNS), "ns/op")
					b.ReportMetric(float64(r.Anon[len(r.Anon)-1]), "anon-bytes")
					var at, anon []float64
					for i, bytes := range r.Anon {
						at, anon = append(at, float64(i*t.steps)), append(anon, float64(bytes))
					}
					b.ReportMetric(stats.NewSlopes(at).Median(anon), "anon-B/step")
					b.ReportMetric(float64(r.Peak), "peak-bytes")
				})
			}
		})
	}
}

func (t *training) open(b *testing.B) {
	t.folder = os.Getenv("STEADYFIT_BENCH")
	t.data = filepath.Join(t.folder, "data", t.name)
	var err error
	if n := os.Getenv("STEADYFIT_BENCH_EPOCHS"); n != "" {
		t.epochs, err = strconv.Atoi(n)
	}
	if err == nil {
		t.model, err = savedmodels.Open(filepath.Join(t.folder, "models", t.name))
	}
	if err == nil {
		t.sig, err = t.model.Signature(t.model.Roles.Train)
	}
	if err == nil {
		var s *synth.Synth
		if s, err = synth.New(t.model, t.sig.Name, 1); err == nil {
			t.all = s.Batch(t.batch * t.steps)
			s.FillAll(t.all, 0)
		}
	}
	if err == nil {
		err = os.MkdirAll(t.data, 0o777)
	}
	for _, f := range t.all.Fields {
		if err == nil {
			err = writeArray(filepath.Join(t.data, f.Name+".npy"), f.Array)
		}
	}
	if err != nil {
		b.Fatalf("STEADYFIT_BENCH is the folder of the programs and models of make bench: %v", err)
	}
}

// sameWork compares the mean loss of the first epoch with that of the way that ran first. Another order of additions
// changes the loss of a step by about 1e-6, and the difference grows with the steps.
func (t *training) sameWork(loss float64) error {
	file, tolerance := filepath.Join(t.data, "loss"), 1e-3
	if t.random {
		tolerance = 0.05
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return files.Replace(file, strconv.AppendFloat(nil, loss, 'g', -1, 64))
	}
	if err != nil {
		return err
	}
	first, err := strconv.ParseFloat(string(text), 64)
	if !(math.Abs(loss-first) <= tolerance*math.Abs(first)) { // also true for NaN
		return fmt.Errorf("the mean loss of the first epoch is %v, and that of the way that ran first is %v", loss, first)
	}
	return err
}

func trainC(_ *testing.B, t *training, _ string) (epochs, error) {
	args := []string{"-model", t.model.Dir, "-data", t.data}
	for _, in := range t.sig.DataInputs() {
		args = append(args, "-feed", in.Op+"="+in.Name)
	}
	for _, out := range t.sig.Metrics() { // the loss comes first
		args = append(args, "-fetch", out.Op)
	}
	return t.printed(filepath.Join(t.folder, "cloop"), args...)
}

func trainKeras(_ *testing.B, t *training, way string) (epochs, error) {
	return t.printed(os.Getenv("STEADYFIT_BENCH_PYTHON"), filepath.Join("scripts", "bench_keras.py"), way, "-model", t.name,
		"-data", t.data)
}

// printed runs a program that prints its epochs.
func (t *training) printed(program string, args ...string) (r epochs, err error) {
	cmd := exec.Command(program, append(args, "-batch", strconv.Itoa(t.batch), "-steps", strconv.Itoa(t.steps), "-epochs",
		strconv.Itoa(t.epochs))...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	return r, err
}

// trainBinding makes tensors from nested slices, as in the documentation of the bindings.
func trainBinding(_ *testing.B, t *training, _ string) (r epochs, err error) {
	loaded, err := loadSavedModel(t.model.Dir, []string{"serve"}, nil)
	if err != nil {
		return r, err
	}
	batches := make([]map[output]any, t.steps)
	for k := range batches {
		batches[k] = map[output]any{}
		part := t.all.Slice(k*t.batch, (k+1)*t.batch)
		for _, in := range t.sig.DataInputs() {
			values, _ := part.Field(in.Name)
			batches[k][named(loaded, in.Op)] = program.Nested(values).Interface()
		}
	}
	var fetches []output
	for _, out := range t.sig.Metrics() {
		fetches = append(fetches, named(loaded, out.Op))
	}
	step := 0
	result, err := measure.Run(measure.Plan{Warmup: t.steps, Steps: t.steps * t.epochs, Chunks: t.epochs},
		func() (float32, error) {
			feeds := map[output]*tensor{}
			for in, values := range batches[step%t.steps] {
				x, err := newTensor(values)
				if err != nil {
					return 0, err
				}
				feeds[in] = x
			}
			step++
			out, err := loaded.Session.Run(feeds, fetches, nil)
			if err != nil {
				return 0, err
			}
			return out[0].Value().(float32), nil
		})
	for _, took := range result.Times {
		r.StepNS = append(r.StepNS, float64(took.Nanoseconds()))
	}
	r.Anon, r.Peak, r.WarmupLoss = result.Anons, int64(result.Memory.Peak.Bytes), result.WarmupLoss
	return r, err
}

// trainFit runs `steadyfit fit`. With --auto, a long training before it measures the configurations, for which the
// measured one is too short, and ends after its first epochs.
func trainFit(b *testing.B, t *training, way string) (r epochs, err error) {
	auto := "off"
	if way == "fit-auto" {
		auto = "on"
	}
	history := filepath.Join(b.TempDir(), "history.jsonl")
	fit := func(args ...string) (log string, err error) {
		cmd := exec.Command(filepath.Join("bin", "steadyfit"), append([]string{"fit", "--model", t.model.Dir, "--data", t.data,
			"--batch", strconv.Itoa(t.batch), "--shuffle=false", "--auto", auto}, args...)...)
		cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(t.folder, "cache"))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err = cmd.Run(); err != nil {
			err = fmt.Errorf("%w: %s", err, &stderr)
		}
		return stderr.String(), err
	}
	if auto == "on" {
		if _, err := fit("--epochs", "1000000", "--early-stop", "loss:1:max"); err != nil {
			return r, err
		}
	}
	log, err := fit("--epochs", strconv.Itoa(1+t.epochs), "--history", history)
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(log) {
		if choice, ok := strings.CutPrefix(line, "auto: "); ok && strings.Contains(choice, "measured before") {
			fmt.Printf("# %s: %s", t.name, choice)
			auto = "off"
		}
	}
	if auto == "on" {
		return r, fmt.Errorf("fit did not use the earlier choice: %s", log)
	}
	text, err := os.ReadFile(history)
	if err != nil {
		return r, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var e struct {
			Loss    float64 `json:"loss"`
			Seconds float64 `json:"seconds"`
			Anon    int64   `json:"anon_bytes"`
			Peak    int64   `json:"peak_bytes"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return r, err
		}
		if r.Peak == 0 {
			r.WarmupLoss = e.Loss
		} else {
			r.StepNS = append(r.StepNS, e.Seconds*float64(time.Second)/float64(t.steps))
			r.Anon = append(r.Anon, e.Anon)
		}
		r.Peak = e.Peak
	}
	return r, nil
}
