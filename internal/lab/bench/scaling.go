package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"steadyfit/data"
	"steadyfit/internal/child"
	"steadyfit/internal/files"
	"steadyfit/internal/lab/measure"
)

var scalingVariants = []string{"c", "steadyfit", "steadyfit-fused", "keras-fit"}

// Scaling is the content of scaling.json. A measurement of some parts keeps the others.
type Scaling struct {
	// Batches has dense-784-10 with batch sizes from 1 to 4096. Widths has hidden layers of 64
	// to 4096 units with batch size 32.
	Batches   *Report     `json:"batches,omitempty"`
	Widths    *Report     `json:"widths,omitempty"`
	Trainings []Trainings `json:"trainings,omitempty"`
}

// Trainings is a measurement of simultaneous trainings.
type Trainings struct {
	Turn int `json:"turn"`
	// Processes is the number of processes, and Each the number of trainings in each of them. Every
	// training has its own session.
	Processes int `json:"processes"`
	Each      int `json:"trainings_each"`
	// StepsPerSecond is the sum over all trainings after the last warm-up.
	StepsPerSecond float64 `json:"steps_per_second"`
	// CPUNS is the processor time of a step. Anon is the anonymous memory of all processes.
	CPUNS float64 `json:"cpu_ns"`
	Anon  int64   `json:"anon_bytes"`
}

const scaled = "dense-784-10"

// batchWorkloads returns workloads with about 40,000 samples and at most 500 steps per epoch.
func batchWorkloads() []Workload {
	var out []Workload
	for batch := 1; batch <= 4096; batch *= 4 {
		steps := min(500, 40960/batch)
		if steps > stepsPerExecution {
			steps -= steps % stepsPerExecution
		}
		out = append(out, Workload{Name: "batch-" + strconv.Itoa(batch), Model: scaled, Batch: batch, Steps: steps,
			Epochs: 10})
	}
	return out
}

func widthWorkloads() []Workload {
	var out []Workload
	for _, width := range []int{64, 256, 1024, 4096} {
		name := "dense-784-" + strconv.Itoa(width) + "-10"
		out = append(out, Workload{Name: name, Model: name, Batch: 32, Steps: 2 * stepsPerExecution, Epochs: 10})
	}
	return out
}

func scaling(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench scaling", flag.ContinueOnError)
	parts := flags.String("parts", "batches,widths,trainings", "what to measure")
	most := flags.Int("trainings", 8, "maximum number of simultaneous trainings")
	o.register(flags, scalingVariants, 3)
	b, err := o.parse(flags, args, stderr)
	if err != nil {
		return err
	}
	chosen := strings.Split(*parts, ",")
	for _, part := range chosen {
		if part != "batches" && part != "widths" && part != "trainings" {
			return usage("-parts %s: unknown part %q; use some of batches, widths and trainings", *parts, part)
		}
	}
	if err := os.MkdirAll(o.out, 0o777); err != nil {
		return err
	}
	file := filepath.Join(o.out, "scaling.json")
	s, err := readScaling(file)
	if err != nil {
		return err
	}
	save := func() error {
		text, err := json.MarshalIndent(s, "", " ")
		if err != nil {
			return err
		}
		return files.Replace(file, append(text, '\n'))
	}
	sizes := func(r *Report, list []Workload) error {
		b.workloads = nil
		for _, w := range list {
			b.workloads = append(b.workloads, o.sized(w))
		}
		err := b.measure(ctx, r, save)
		if len(r.Runs) > 0 {
			r.table(stdout)
			fmt.Fprintln(stdout)
		}
		return errors.Join(err, r.failed())
	}
	for _, part := range chosen {
		switch part {
		case "batches":
			s.Batches = newReport(ctx)
			err = errors.Join(err, sizes(s.Batches, batchWorkloads()))
		case "widths":
			s.Widths = newReport(ctx)
			err = errors.Join(err, sizes(s.Widths, widthWorkloads()))
		case "trainings":
			s.Trainings = nil
			err = errors.Join(err, b.concurrent(ctx, &s, *most, save))
			trainingsTable(stdout, s.Trainings)
		}
		if ctx.Err() != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "\nThe figures are in %s.\n", file)
	return err
}

func readScaling(file string) (Scaling, error) {
	var s Scaling
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("%s cannot be read, but its other parts must be kept: %w; remove it to start from scratch", file,
			err)
	}
	return s, nil
}

// concurrent measures 1, 2, 4, ... simultaneous trainings, in one process and in separate
// processes.
func (b *benchmark) concurrent(ctx context.Context, s *Scaling, most int, save func() error) error {
	var err error
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	p, err := b.prepare(ctx, b.sized(Workload{Name: "trainings", Model: scaled, Batch: 32, Steps: 500, Epochs: 10}))
	if err != nil {
		return err
	}
	type way struct{ processes, each int }
	ways := []way{{1, 1}}
	for n := 2; n <= most; n *= 2 {
		ways = append(ways, way{1, n}, way{n, 1})
	}
	for turn := range b.turns {
		for _, i := range order(len(ways), turn) {
			t, err := b.trainings(ctx, p, ways[i].processes, ways[i].each)
			if err != nil {
				return fmt.Errorf("%d x %d trainings: %w", ways[i].processes, ways[i].each, err)
			}
			t.Turn = turn
			s.Trainings = append(s.Trainings, t)
			fmt.Fprintf(b.log, "bench: turn %d of %d: %d x %d trainings: %.0f steps/s\n", turn+1, b.turns, t.Processes, t.Each,
				t.StepsPerSecond)
		}
		if err := save(); err != nil {
			return err
		}
	}
	return nil
}

// trained is the last message of a child.
type trained struct {
	Steps int   `json:"steps"`
	CPU   int64 `json:"cpu_ns"`
	Anon  int64 `json:"anon_bytes"`
}

// trainings starts processes, and starts the trainings once all processes are warm.
func (b *benchmark) trainings(ctx context.Context, p *prepared, processes, each int) (t Trainings, err error) {
	deadline := time.Now().Add(b.timeout)
	var all []*child.Process
	defer func() {
		for _, c := range all {
			if err == nil { // otherwise some may still wait for a request
				c.Wait(time.Until(deadline))
			}
			if exit := c.End(nil); exit.Code != 0 {
				err = errors.Join(err, fmt.Errorf("a child failed: %s", exit.Cause))
			}
		}
	}()
	for range processes {
		args := append([]string{b.self, childTrainings, "-model", p.model.Dir, "-data", p.data}, p.flags("-")...)
		c, err := child.Start(ctx, child.Command{Args: args, Env: []string{"TF_CPP_MIN_LOG_LEVEL=2"}, Variable: trainingsEnv,
			Spec: each, KillWithParent: true})
		if err != nil {
			return t, err
		}
		all = append(all, c)
	}
	for _, c := range all {
		if _, err := c.Receive(deadline); err != nil {
			return t, fmt.Errorf("waiting until a child is warm: %w", err)
		}
	}
	start := time.Now()
	for _, c := range all {
		if _, err := c.Requests.WriteString("go\n"); err != nil {
			return t, err
		}
	}
	t = Trainings{Processes: processes, Each: each}
	steps, cpu := 0, int64(0)
	for _, c := range all {
		line, err := c.Receive(deadline)
		if err != nil {
			return t, fmt.Errorf("waiting for the trainings of a child: %w", err)
		}
		var done trained
		if err := json.Unmarshal(line, &done); err != nil {
			return t, fmt.Errorf("reading %q: %w", line, err)
		}
		steps, cpu, t.Anon = steps+done.Steps, cpu+done.CPU, t.Anon+done.Anon
	}
	t.StepsPerSecond = float64(steps) / time.Since(start).Seconds()
	t.CPUNS = float64(cpu) / float64(steps)
	return t, nil
}

const trainingsEnv = "STEADYFIT_BENCH_TRAININGS"

const childTrainings = "trainings"

// trainingsChild warms up its trainings, reports that, waits for a request, and runs them.
func trainingsChild(ctx context.Context, args []string, stderr io.Writer) error {
	var n int
	parent, err := child.Connect(trainingsEnv, &n)
	if err != nil {
		return err
	}
	var p passFlags
	if err := p.parse(childTrainings, args, stderr); err != nil {
		return err
	}
	return measure.WithData(p.data, func(all data.Batch) error {
		var list []*training
		closed := func() error {
			var err error
			for _, t := range list {
				err = errors.Join(err, t.close())
			}
			list = nil
			return err
		}
		defer closed()
		for range n {
			t, err := p.open(ctx, all)
			if err != nil {
				return err
			}
			list = append(list, t)
		}
		together := func(epochs int) error {
			errs := make([]error, len(list))
			var group sync.WaitGroup
			for i, t := range list {
				group.Go(func() {
					for range epochs * len(t.calls) {
						if _, errs[i] = t.execute(ctx); errs[i] != nil {
							return
						}
					}
				})
			}
			group.Wait()
			return errors.Join(errs...)
		}
		if err := together(1); err != nil {
			return err
		}
		if err := parent.Send("warm"); err != nil {
			return err
		}
		if _, err := bufio.NewReader(parent.Requests).ReadString('\n'); err != nil {
			return fmt.Errorf("waiting for the parent: %w", err)
		}
		used := measure.ProcessTime()
		if err := together(p.epochs); err != nil {
			return err
		}
		done := trained{Steps: n * p.steps * p.epochs, CPU: int64(measure.ProcessTime() - used)}
		m, err := measure.ReadMemory()
		if err != nil {
			return err
		}
		done.Anon = int64(m.Anon.Bytes)
		return errors.Join(parent.Send(done), closed())
	})
}

func trainingsTable(out io.Writer, list []Trainings) {
	if len(list) == 0 {
		return
	}
	columns := make(map[[2]int][3]map[int]float64)
	var ways [][2]int
	for _, t := range list {
		way := [2]int{t.Processes, t.Each}
		if _, ok := columns[way]; !ok {
			columns[way] = [3]map[int]float64{{}, {}, {}}
			ways = append(ways, way)
		}
		for i, v := range []float64{t.StepsPerSecond, t.CPUNS, float64(t.Anon)} {
			columns[way][i][t.Turn] = v
		}
	}
	fmt.Fprintf(out, "\nsimultaneous trainings of %s, batch 32\n", scaled)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "processes\ttrainings in each\tsteps/s\t[95%]\tto one training\t[95%]\tCPU us/step\tanon MB\t\n")
	for _, way := range ways {
		c := columns[way]
		to := Estimate{}
		if one, ok := columns[[2]int{1, 1}]; ok && way != [2]int{1, 1} {
			to = ratio(c[0], one[0])
		}
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%.0f\t\n", way[0], way[1], overTurns(c[0]).cells(1), to.cells(1),
			number(middle(c[1]), 1e3), middle(c[2])/1e6)
	}
	t.Flush()
}
