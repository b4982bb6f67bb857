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
	"time"

	"steadyfit/gpuopts"
	"steadyfit/internal/child"
	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// roundSeconds is how long a round takes at least, and a call that takes longer is a round.
// Of both that are compared it takes about as long, if that is no longer than mostSeconds.
const (
	roundSeconds = 0.02
	mostSeconds  = 0.1
)

// hangs is how long a round may take in any case.
const hangs = 5 * time.Second

// errLate ends a race: its time is over.
var errLate = errors.New("there was no time left")

// errCold is a candidate that would leave the next ones no time.
var errCold = errors.New("half of the time that was left was too short to warm up")

// errHangs is a candidate that does not answer any more.
var errHangs = errors.New("it hangs")

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
	// start begins what runs a candidate; what fails is said by its hear.
	start func(context.Context, Candidate) rival
	// own is the anonymous memory of this process.
	own memory.Bytes
	// begun is when the race began, and until when it is over. warm is how long plain steps
	// took to begin.
	begun, until time.Time
	warm         time.Duration
	// best runs the fastest way so far, beside which others are measured: where steps of
	// one way scatter more than two others differ, as plain ones do if their threads were
	// just woken, ratios to it would not tell those apart. At first it is plain.
	best     rival
	standing Measurement // of best
	// steps are the times of plain steps, in all rounds so far, peak and anon the most memory
	// that was seen of them, and base what they began with.
	steps            []float64
	peak, anon, base memory.Bytes
	// measured is what is known of candidates so far.
	measured []Measurement
}

// rival runs a candidate. Outside of tests it is a competitor.
type rival interface {
	// hear waits for an answer: the first is that it has warmed up. errLate is that there
	// was none in time, and there are no more then.
	hear(until time.Time) (answer, error)
	// ask has it run a round, and waits for the answer.
	ask(until time.Time, seconds float64) (answer, error)
	// last is the latest answer, with the most anonymous memory of all of them.
	last() answer
	// end ends it, and waits until it has ended.
	end()
}

// run measures plain steps; the most promising way; plain steps with fewer threads; the
// other ways; all settings of threads on top of the way that is then the fastest without
// any; and the other settings on top of the best of all. The first measurement is that of
// plain steps; without an error it is complete. The error is about what is no candidate's
// doing, or about plain steps.
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
	return r.among(ctx, ways, settings)
}

// among is run, once there is data to run on.
func (r *race) among(ctx context.Context, ways, settings []Candidate) ([]Measurement, error) {
	start := time.Now()
	r.best, r.standing = r.start(ctx, Candidate{}), plainSteps
	defer func() { r.best.end() }()
	first, err := r.best.hear(r.until)
	r.warm = time.Since(start)
	if err == nil {
		// One round before any that counts, to know what the race may take.
		first, err = r.best.ask(r.until, roundSeconds)
	}
	if err == nil {
		err = usable(first)
	}
	if err != nil {
		return nil, fmt.Errorf("plain steps: %w", cmp.Or(context.Cause(ctx), err))
	}
	r.ran(first)
	r.until = r.begun.Add(r.plan.allowed(time.Duration(first.Step * 1e9)))

	// One thread for each operation can be worth more to plain steps than all else, and takes
	// no compiler.
	var fewer []Candidate
	for _, c := range settings {
		if c.IntraThreads > 0 {
			fewer = append(fewer, c)
		}
	}
	promising := min(len(ways), 1)
	for _, c := range slices.Concat(ways[:promising], fewer, ways[promising:]) {
		r.measure(ctx, c)
	}
	way := bestWay(r.plan.within(r.measured, r.own))
	for _, c := range settings {
		if c == c.ofThreads() {
			r.measure(ctx, c.over(way))
		}
	}
	for _, c := range settings {
		if c != c.ofThreads() {
			winner, _ := judge(r.plan.within(r.measured, r.own))
			r.measure(ctx, c.over(winner.Candidate))
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	plain := summarize(Candidate{}, r.steps, r.steps, plainSteps)
	plain.Peak, plain.Anon, plain.Base = r.peak, r.anon, r.base
	return slices.Insert(r.measured, 0, plain), nil
}

// ran notes a round of the best.
func (r *race) ran(a answer) {
	if r.standing.Candidate.Plain() {
		r.steps = append(r.steps, a.Step)
		r.peak, r.anon, r.base = max(r.peak, r.best.last().Peak), max(r.anon, r.best.last().Anon), r.best.last().Base
		return
	}
	if m := of(r.measured, r.standing.Candidate); m != nil {
		m.Peak, m.Anon = r.best.last().Peak, r.best.last().Anon
	}
}

// roomFor refuses to begin a second process where the first has so much anonymous memory,
// and twice as much may not be there: the kernel would then end one of this group, or in
// some containers all. XLA was seen to take 2.2 times what plain steps do.
func (r *race) roomFor(anon memory.Bytes) error {
	need := 2*anon + 256*memory.MiB
	if left := memory.Available(); left.OK && left.Bytes < need {
		return fmt.Errorf("there may be no room for it: %v are left, and it might take %v", left, need)
	}
	return nil
}

// measure measures a candidate beside the best, unless it was measured before. From then on
// it is the best if it is shown to be faster than that, and may be chosen: by medians alone,
// the luckiest of many would be, and each next ratio be taken to its luck.
func (r *race) measure(ctx context.Context, c Candidate) {
	if of(r.measured, c) != nil {
		return
	}
	for {
		if time.Until(r.until) < r.warm {
			r.measured = append(r.measured, out(c, errLate))
			return
		}
		if err := r.roomFor(r.anon); err != nil {
			r.measured = append(r.measured, out(c, err))
			return
		}
		other := r.start(ctx, c)
		m, shown, err := r.against(other, c)
		if err == nil {
			if shown && r.plan.within([]Measurement{m}, r.own)[0].faster() {
				r.best, other = other, r.best
				r.standing = m
			}
			other.end()
			r.measured = append(r.measured, m)
			return
		}
		other.end()
		if r.standing.Candidate.Plain() {
			err = fmt.Errorf("plain steps, which it is measured against: %w", err)
			r.measured = append(r.measured, Measurement{Candidate: c, Out: err.Error(), Passing: true})
			return
		}
		r.withdraw(ctx, err)
	}
}

// withdraw takes the best out, which has failed after it had been measured, and has plain
// steps take its place again.
func (r *race) withdraw(ctx context.Context, err error) {
	*of(r.measured, r.standing.Candidate) = out(r.standing.Candidate, err)
	r.best.end()
	r.best, r.standing = r.start(ctx, Candidate{}), plainSteps
	_, _ = r.best.hear(r.until) // what fails is said by the next answer, too
}

// out is a candidate that could not be measured.
func out(c Candidate, err error) Measurement {
	late := errors.Is(err, errLate) || errors.Is(err, errCold)
	return Measurement{Candidate: c, Out: err.Error(), Late: late, Passing: !late && !errors.Is(err, errNotFinite) && !errors.Is(err, errLasting)}
}

// against has a candidate run in rounds that alternate with those of the best. shown is that
// it is faster than the best, as Measurement.faster is of plain steps. The error is about the
// best.
func (r *race) against(other rival, c Candidate) (m Measurement, shown bool, err error) {
	// XLA's compiler may take long, and how long is not known before. What takes more than half
	// of what is left leaves the other half to the next ones; but little time is not halved.
	left := time.Until(r.until)
	share := max(left/2, min(left, 3*r.warm))
	warm, err := other.hear(time.Now().Add(share))
	if errors.Is(err, errLate) && share < left {
		err = errCold
	}
	if err != nil {
		return out(c, err), false, nil
	}
	// A little less than a call, so that it is one call and not two.
	seconds := min(max(roundSeconds, 0.8*max(warm.Call, r.best.last().Call)), mostSeconds)
	var steps, beside []float64
	for len(steps) < maxRounds {
		a, err := r.bestRuns(seconds)
		if errors.Is(err, errLate) {
			break
		}
		if err != nil {
			return Measurement{}, false, err
		}
		b, err := r.runs(other, seconds)
		if errors.Is(err, errLate) {
			break
		}
		if err != nil {
			return out(c, err), false, nil
		}
		beside, steps = append(beside, a.Step), append(steps, b.Step)
		// What was slower than plain steps each time cannot win, and what was slower than the
		// best can do so only where that must not run.
		m := summarize(c, steps, beside, r.standing)
		if len(steps) >= minRounds && m.Low >= 1 || len(steps) >= slowRounds && slices.Min(ratios(steps, beside)) >= 1 {
			break
		}
	}
	m = summarize(c, steps, beside, r.standing)
	m.Peak, m.Anon, m.Base = other.last().Peak, other.last().Anon, other.last().Base
	if m.Rounds < minRounds {
		m.Out, m.Late = errLate.Error(), true
	}
	return m, summarize(c, steps, beside, plainSteps).faster(), nil
}

// bestRuns has the best run a round.
func (r *race) bestRuns(seconds float64) (answer, error) {
	a, err := r.runs(r.best, seconds)
	if err == nil {
		r.ran(a)
	}
	return a, err
}

// runs has a rival run a round. It has run before: if it takes very much longer now, it
// hangs.
func (r *race) runs(one rival, seconds float64) (answer, error) {
	until := time.Now().Add(hangs + time.Duration(20e9*max(seconds, one.last().Call)))
	if until.After(r.until) {
		until = r.until
	}
	a, err := one.ask(until, seconds)
	if errors.Is(err, errLate) && until.Before(r.until) {
		err = errHangs
	}
	if err == nil {
		err = usable(a)
	}
	return a, err
}

// competitor is a child process that runs a candidate.
type competitor struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *os.File
	lines   *bufio.Reader
	log     child.Tail
	err     error // of starting it
	latest  answer
}

// compete begins a child process.
func (r *race) compete(ctx context.Context, candidate Candidate) *competitor {
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
	cmd.Env = append(os.Environ(), Env+"=1")
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
	a.Anon = max(c.latest.Anon, a.Anon)
	c.latest = a
	return a, c.err
}

func (c *competitor) last() answer { return c.latest }

// died is the error of a child that ended before its time.
func (c *competitor) died() error {
	cmd := c.cmd
	c.end()
	how := "without a word"
	if cmd != nil && cmd.ProcessState != nil {
		how = cmd.ProcessState.String()
	}
	c.err = fmt.Errorf("its process has ended: %s", how)
	if line := child.CauseLine(c.log.String()); line != "" {
		c.err = fmt.Errorf("%w: %s", c.err, line)
	}
	return c.err
}

// end ends the child, which has nothing to save, and waits until it has.
func (c *competitor) end() {
	if c.cmd == nil {
		return
	}
	_ = child.Kill(c.cmd.Process.Pid) // it has not been waited for, so the number is its own
	child.Await(c.cmd)
	_ = child.Kill(c.cmd.Process.Pid)
	_ = c.cmd.Wait() // its state says how it ended
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
	r := &race{plan: p, spec: spec{
		Library: info.Library, Model: p.Model.Dir, Hash: p.Model.Hash, Loss: p.Model.LossOutput, Options: o,
		Batch: p.Batch, LearningRate: p.LearningRate,
	}}
	r.start = func(ctx context.Context, c Candidate) rival { return r.compete(ctx, c) }
	return r
}
