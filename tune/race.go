package tune

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"steadyfit/gpuopts"
	"steadyfit/internal/child"
	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// roundSeconds is how long a round of a candidate takes at least; a call that takes
// longer is a round.
const roundSeconds = 0.02

// errLate ends a race that has no time left.
var errLate = errors.New("there is no time left for it")

// errNotFinite is a candidate that must not win, however fast it is.
var errNotFinite = errors.New("its loss is not finite")

// errLasting is a candidate that will fail at any other time, too.
var errLasting = errors.New("it cannot run")

// failure is what a child says of itself.
type failure struct {
	text    string
	lasting bool
}

func (f *failure) Error() string { return f.text }

func (f *failure) Is(target error) bool { return target == errLasting && f.lasting }

// usable refuses what is not to be compared.
func usable(a answer) error {
	if !a.Finite {
		return errNotFinite
	}
	return nil
}

// race measures one candidate after the other. Nothing of it outlives run.
type race struct {
	plan *Plan
	spec spec
	// own is the anonymous memory of this process.
	own memory.Bytes
	// begun is when the race began, and until when it is over.
	begun, until time.Time
	// plain runs plain steps, and steps is their time in all rounds so far.
	plain *competitor
	steps []float64
}

// run measures plain steps, the ways, and the settings on top of the best of them. The
// first measurement is that of plain steps; without an error it is complete. The error is
// about what is no candidate's doing, or about plain steps.
func (r *race) run(ctx context.Context, ways, settings []Candidate, allowed time.Duration) (measured []Measurement, err error) {
	r.begun = time.Now()
	r.until = r.begun.Add(allowed)
	dir, remove, err := files.Scratch("steadyfit-tune-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if r.spec.Data, r.spec.Fields, err = sample(r.plan.Model, r.plan.Options, r.plan.Data, r.plan.Batch, dir, allowed/4); err != nil {
		return nil, err
	}
	r.own = ownMemory()

	r.plain = r.start(ctx, Candidate{})
	defer func() { r.plain.end() }()
	first, err := r.plain.hear(r.until)
	if err == nil {
		// One round before any that counts, to know what the race may take.
		first, err = r.plain.ask(r.until, roundSeconds)
	}
	if err == nil {
		err = usable(first)
	}
	if err != nil {
		return nil, fmt.Errorf("plain steps: %w", cmp.Or(context.Cause(ctx), err))
	}
	r.steps = append(r.steps, first.Step)
	r.until = r.begun.Add(r.plan.allowed(time.Duration(first.Step * 1e9)))

	if err := r.roomFor(first.Anon); err != nil {
		for _, c := range ways {
			measured = append(measured, Measurement{Candidate: c, Out: err.Error(), Passing: true})
		}
		return r.withPlain(measured), nil
	}
	best := Candidate{}
	measure := func(c Candidate) {
		measured = append(measured, r.against(ctx, c))
		if winner, ok := judge(r.plan.within(measured, r.own)); ok {
			best = winner.Candidate
		}
	}
	for _, c := range ways {
		measure(c)
	}
	for _, c := range settings {
		base := best
		if c.Precision == "" && c.Allocator == "" { // threads are instead of other threads
			base.Executor, base.IntraThreads, base.InterThreads, base.CallerRuns = "", 0, 0, false
		}
		measure(c.over(base))
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return r.withPlain(measured), nil
}

// withPlain is what was measured, after that of plain steps.
func (r *race) withPlain(measured []Measurement) []Measurement {
	plain := summarize(Candidate{}, r.steps, r.steps)
	plain.Peak, plain.Anon = r.plain.last.Peak, r.plain.anon
	return slices.Insert(measured, 0, plain)
}

// roomFor refuses to begin a second process where the first has so much anonymous memory,
// and twice as much may not be there: the kernel would then end one of this group, or in
// some containers all. XLA was seen to take 2.2 times what plain steps do.
func (r *race) roomFor(anon memory.Bytes) error {
	need := 2*anon + 256*memory.MiB
	if left := room(); left.OK && left.Bytes < need {
		return fmt.Errorf("there may be no room for it: %v are left, and it might take %v", left, need)
	}
	return nil
}

// room is the memory that is left to processes here, by the machine and by the limit of
// the control group.
func room() memory.Reading {
	var left memory.Reading
	least := func(bytes memory.Bytes) {
		if !left.OK || bytes < left.Bytes {
			left = memory.Known(max(bytes, 0))
		}
	}
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemAvailable:" {
			if n, err := strconv.ParseInt(fields[1], 10, 53); err == nil {
				least(memory.Bytes(n) * memory.KiB)
			}
		}
	}
	sampler, err := memory.NewSampler(memory.SamplerOptions{})
	if err != nil {
		return left
	}
	defer sampler.Close()
	gauge, err := memory.NewGauge(memory.CgroupWorkingSet)
	if err != nil {
		return left
	}
	defer gauge.Close()
	var now memory.Sample
	if sampler.Sample(0, &now) == nil {
		limit, used := now.Get(memory.CgroupLimit), gauge.Read()
		if limit.OK && used.OK {
			least(limit.Bytes - used.Bytes)
		}
	}
	return left
}

// against measures a candidate, in rounds that alternate with plain steps.
func (r *race) against(ctx context.Context, c Candidate) Measurement {
	out := func(err error) Measurement {
		late := errors.Is(err, errLate)
		return Measurement{Candidate: c, Out: err.Error(), Late: late, Passing: !late && !errors.Is(err, errNotFinite) && !errors.Is(err, errLasting)}
	}
	if time.Now().After(r.until) {
		return out(errLate)
	}
	other := r.start(ctx, c)
	defer other.end()
	if _, err := other.hear(r.until); err != nil {
		return out(err)
	}
	var steps, plain []float64
	for len(steps) < maxRounds {
		a, err := r.plain.ask(r.until, roundSeconds)
		if err != nil {
			if errors.Is(err, errLate) {
				break
			}
			return out(fmt.Errorf("plain steps, which it is measured against: %w", err))
		}
		b, err := other.ask(r.until, roundSeconds)
		if errors.Is(err, errLate) {
			break
		}
		if err == nil {
			err = usable(b)
		}
		if err != nil {
			return out(err)
		}
		plain, steps = append(plain, a.Step), append(steps, b.Step)
		// Three rounds that are slower need no fourth.
		if m := summarize(c, steps, plain); len(steps) >= minRounds && m.Low >= 1 {
			break
		}
	}
	r.steps = append(r.steps, plain...)
	m := summarize(c, steps, plain)
	m.Peak, m.Anon = other.last.Peak, other.anon
	if m.Rounds < minRounds {
		m.Out, m.Late = errLate.Error(), true
	}
	return m
}

// competitor is a child process that runs a candidate.
type competitor struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *os.File
	lines   *bufio.Reader
	log     child.Tail
	err     error // of starting it
	last    answer
	anon    memory.Bytes // the most that was seen
}

// start begins a child process; what fails is said by hear.
func (r *race) start(ctx context.Context, candidate Candidate) *competitor {
	c := &competitor{}
	s := r.spec
	s.Candidate = candidate
	c.err = c.begin(ctx, s)
	return c
}

func (c *competitor) begin(ctx context.Context, s spec) error {
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	program := "/proc/self/exe" // even if its file has been replaced
	if runtime.GOOS != "linux" {
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Args = os.Args[:1]
	// The training may be a supervised child, which this process is not.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, session.SupervisedEnv+"=")
	}), Env+"=1")
	missing, err := s.Candidate.Environment()
	if err != nil {
		return err
	}
	for _, v := range missing {
		cmd.Env = append(cmd.Env, v.String())
	}
	cmd.Stderr = &c.log
	cmd.SysProcAttr = child.Group()
	cmd.Cancel = func() error { return child.Kill(cmd.Process.Pid) }
	cmd.WaitDelay = time.Second
	if c.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	answers, toParent, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout = toParent
	err = cmd.Start()
	err = errors.Join(err, toParent.Close())
	if err != nil {
		return errors.Join(fmt.Errorf("cannot start %s: %w", program, err), answers.Close())
	}
	c.cmd, c.answers, c.lines = cmd, answers, bufio.NewReader(answers)
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return c.died()
	}
	return nil
}

// ask has the child run a round.
func (c *competitor) ask(until time.Time, seconds float64) (answer, error) {
	if c.err == nil {
		line, err := json.Marshal(round{Seconds: seconds})
		if err != nil {
			return answer{}, err
		}
		if _, err := c.in.Write(append(line, '\n')); err != nil {
			return answer{}, c.died()
		}
	}
	return c.hear(until)
}

// hear waits for an answer. errLate is that there was none in time.
func (c *competitor) hear(until time.Time) (answer, error) {
	if c.err != nil {
		return answer{}, c.err
	}
	if err := c.answers.SetReadDeadline(until); err != nil {
		return answer{}, err
	}
	line, err := c.lines.ReadBytes('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.err = errLate // what comes later is the answer to another question
		return answer{}, errLate
	}
	var a answer
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err != nil {
		return answer{}, c.died()
	}
	if a.Failure != "" {
		c.err = &failure{a.Failure, a.Lasting}
	}
	c.last, c.anon = a, max(c.anon, a.Anon)
	return a, c.err
}

// died is the error of a child that ended before its time.
func (c *competitor) died() error {
	c.end()
	c.err = fmt.Errorf("its process has ended: %s", cmp.Or(child.Telling(c.log.String()), "without a word"))
	return c.err
}

// end ends the child, which has nothing to save, and waits until it has.
func (c *competitor) end() {
	if c.cmd == nil {
		return
	}
	_ = child.Kill(c.cmd.Process.Pid) // it has not been waited for, so the number is its own
	child.Await(c.cmd)
	_ = child.Collect(c.cmd) // what it was to say has been heard
	_ = c.answers.Close()
	c.cmd = nil
}

// newRace is the race of a plan. TensorFlow is open.
func newRace(p *Plan, info tfbind.Info) *race {
	o := p.Options
	// Several processes share the GPUs: none may take all of one. How TensorFlow grows
	// there costs nothing once it has.
	if d := &o.Device; d.MemoryFraction < 1 && len(d.VirtualGPUs) == 0 && d.GPUAllocator != gpuopts.CUDAMallocAsync && os.Getenv("TF_FORCE_GPU_ALLOW_GROWTH") == "" {
		d.MemoryGrowth = true
	}
	o.ListAllocations = false
	return &race{plan: p, spec: spec{
		Library: info.Library, Model: p.Model.Dir, Hash: p.Model.Hash, Options: o,
		Batch: p.Batch, LearningRate: p.LearningRate,
	}}
}
