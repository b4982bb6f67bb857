package watch

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
)

// arm is what a run of a trial does besides what Options say.
type arm struct {
	remedy *Remedy
	// kind, from and to are the decisive part. The run ends at to.
	kind     string
	from, to float64
	// every is the number of steps between two marks of a Python program.
	every int
	// applied is set once a process reads the variables of the remedy.
	applied bool
}

// environment returns the variables of the remedy, and the one that probe/remedies.py reads.
func (a *arm) environment() []string {
	if a == nil {
		return nil
	}
	name := a.remedy.Name
	if name == "" || len(a.remedy.Env) > 0 {
		name = "none"
	}
	kind := "none" // marks by time
	if slices.Contains(kinds, a.kind) {
		kind = a.kind
	}
	return append(slices.Clone(a.remedy.Env), fmt.Sprintf("STEADYFIT_WATCH_TRIAL=%s %s %d", name, kind, a.every))
}

// environment returns the variables of a program that is measured.
func (m *Measure) environment() []string {
	if m == nil {
		return nil
	}
	environment := m.Env
	if m.Every > 0 {
		environment = append(slices.Clip(environment), fmt.Sprintf("%s=%d", memlayer.MarkEveryEnv, m.Every))
	}
	if m.Every > 0 || m.Change != "" {
		environment = append(slices.Clip(environment),
			fmt.Sprintf("STEADYFIT_WATCH_TRIAL=%s %s %d", cmp.Or(m.Change, "none"), every(m.Every), m.Every))
	}
	return environment
}

// every is the kind of steps that have marks in a Python program.
func every(steps int) string {
	if steps > 0 {
		return "each"
	}
	return "none" // marks by time
}

const enoughSteps = "these steps decide"

// enough reports whether a run of a trial has reached the end of the decisive part.
func (p *program) enough() bool {
	switch a := p.o.arm; {
	case a == nil:
		return false
	case a.kind == byTime:
		return time.Since(p.began).Minutes() >= a.to
	default:
		return float64(p.steps[a.kind]) >= a.to
	}
}

// verify looks for a process that reads the variables of the remedy.
func (p *program) verify() {
	a := p.o.arm
	if a == nil || a.applied || len(a.remedy.Env) == 0 {
		return
	}
	for pid := range p.tree.members {
		a.applied = a.applied || a.remedy.reads(pid)
	}
}

// injected returns whether a process has the probe of Python, and how often it made the change of a remedy.
func (r *recorder) injected() (python bool, acted int) {
	for _, p := range r.peers {
		_, has := p.Counts["python block count"]
		python = python || has
		acted += int(p.Counts["remedy count"])
	}
	return python, acted
}

// tail keeps the end of what a program prints.
type tail struct {
	write, read *os.File
	text        []byte
	done        chan struct{}
}

func keepTail() (*tail, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("output: %w", err)
	}
	t := &tail{write: write, read: read, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		buffer := make([]byte, 4096)
		for {
			n, err := read.Read(buffer)
			t.text = append(t.text, buffer[:n]...)
			t.text = t.text[max(0, len(t.text)-1000):]
			if err != nil {
				return
			}
		}
	}()
	return t, nil
}

// close returns the last line that was printed, after a colon.
func (t *tail) close() string {
	_ = t.write.Close()
	_ = t.read.SetReadDeadline(time.Now().Add(lastMessages)) // a process that is left may keep the output open
	<-t.done
	_ = t.read.Close()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return ": " + texts.Printable(last)
	}
	return ""
}
