package fit

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"steadyfit/memory"
)

const (
	// barWidth is the width of the bar in columns; the library shrinks it on a narrow terminal.
	barWidth = 20
	// barRoom is the number of columns for a small bar, its speed and its times.
	barRoom = 46
)

// Progress is a hook that prints a line per epoch. If w is a terminal, it also shows a bar during
// the epoch, with the means so far, the time left, the steps per second, and the memory of this
// process. NO_COLOR turns colours off.
//
// A line has names and values, separated by two or more spaces:
//
//	epoch 3/10   step 300   loss 0.1234     val_loss 0.1310     steps/s 512       data_wait 0.3%    rss 431.2 MiB   anon 212.0 MiB
//
// steps/s does not include validation. data_wait is the share of the training time during which
// steps waited for data; the bar shows it from 1%. checkpoint_pause is the time for which training
// waited for checkpoints since the previous line. Progress also prints the position at which a
// run resumed, and the reason why it stopped. If w cannot be written, it logs one warning.
func Progress(w io.Writer) Hook {
	p := &progressView{w: w, every: 100 * time.Millisecond}
	if file, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		fd := int(file.Fd())
		p.terminal = term.IsTerminal(fd)
		p.width = func() int {
			width, _, err := term.GetSize(fd)
			if err != nil {
				return 80
			}
			return width
		}
	}
	return p.hook()
}

type progressView struct {
	w        io.Writer
	terminal bool
	// every is the minimum time between two updates of the bar.
	every time.Duration
	// width returns the number of columns of the terminal.
	width func() int

	bar *progressbar.ProgressBar
	// dirty is true if the line shows text other than the bar.
	dirty   bool
	epoch   int
	seen    int // EpochStep at the last call of step
	pending int // steps that the bar does not show yet
	shown   time.Time
	// failed is the error of writing to w. warned is true after a warning about it.
	failed error
	warned bool
}

func (p *progressView) hook() Hook {
	h := Hook{Name: "progress", Priority: priorityReport, Start: p.harmless(p.start), Epoch: p.harmless(p.epochLine),
		End: p.harmless(p.end), local: true}
	if p.terminal {
		h.Step, h.StepEvery = p.harmless(p.step), AnyStep
	}
	return h
}

// harmless makes a hook function of f that never returns an error, so that a failed write to w does
// not end the run.
func (p *progressView) harmless(f func(*State)) func(context.Context, *State) error {
	return func(_ context.Context, s *State) error {
		f(s)
		if p.failed != nil && !p.warned {
			p.warned = true
			s.Log.Warn("progress cannot be printed; training continues", "error", p.failed)
		}
		return nil
	}
}

func (p *progressView) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(p.w, format, args...); err != nil {
		p.failed = err
	}
}

func (p *progressView) start(s *State) {
	p.bar, p.dirty, p.epoch, p.failed, p.warned = nil, false, 0, nil, false
	if s.History.ResumedFrom != "" {
		p.printf("resumed from %s: %d of %d epochs done, step %d\n", s.History.ResumedFrom, s.EpochsDone, s.Epochs, s.Step)
	}
}

func (p *progressView) step(s *State) {
	if s.EpochStep == s.StepsPerEpoch {
		p.lastStep(s)
		return
	}
	now := time.Now()
	if p.epoch != s.Epoch {
		// The bar begins after the first step of this run, because earlier steps would distort
		// its speed.
		p.epoch, p.seen, p.pending, p.shown = s.Epoch, s.EpochStep, 0, now
		p.bar = p.newBar(s.StepsPerEpoch-s.EpochStep, p.describe(s))
		p.bar.StartWithoutRender()
		return
	}
	p.pending += s.EpochStep - p.seen
	p.seen = s.EpochStep
	if now.Sub(p.shown) < p.every {
		return
	}
	p.shown = now
	if err := p.bar.Add(p.pending); err != nil {
		p.failed = err
	}
	p.pending = 0
	p.bar.Describe(p.describe(s))
}

// lastStep removes the bar, and prints "validating" if a validation follows.
func (p *progressView) lastStep(s *State) {
	p.clear()
	if s.run.validates() {
		p.dirty = true
		p.printf("\repoch %d/%d  validating", s.Epoch, s.Epochs)
	}
}

func (p *progressView) newBar(steps int, description string) *progressbar.ProgressBar {
	colour := os.Getenv("NO_COLOR") == ""
	theme := progressbar.Theme{Saucer: "=", SaucerHead: ">", SaucerPadding: " ", BarStart: "|", BarEnd: "|"}
	if colour {
		theme.Saucer, theme.SaucerHead = "[green]=[reset]", "[green]>[reset]"
	}
	return progressbar.NewOptions64(int64(steps),
		progressbar.OptionSetWriter(p.w),
		progressbar.OptionSetDescription(description),
		progressbar.OptionSetWidth(barWidth),
		progressbar.OptionSetTheme(theme),
		progressbar.OptionEnableColorCodes(colour),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString("steps"),
		// Add and Describe would both draw within an interval.
		progressbar.OptionThrottle(p.every/2),
		progressbar.OptionClearOnFinish(),
	)
}

// describe returns the text before the bar: the epoch, the loss and, if they fit, the other metrics, the
// memory and the share of waiting for data.
func (p *progressView) describe(s *State) string {
	running := s.Running()
	text, rest := fmt.Sprintf("epoch %d/%d  %v", s.Epoch, s.Epochs, running[0]), ""
	for _, m := range running[1:] {
		rest += "  " + m.String()
	}
	if usage, err := memory.Read(); err == nil && usage.RSS.OK {
		rest += "  rss " + usage.RSS.String()
	}
	if share := s.run.waiting(); share >= 0.01 {
		rest += "  data_wait " + formatShare(share)
	}
	if len(text)+len(rest) > p.width()-barRoom {
		return text
	}
	return text + rest
}

func (p *progressView) epochLine(s *State) {
	p.clear()
	epochs, steps := strconv.Itoa(s.Epochs), strconv.FormatInt(int64(s.Epochs)*int64(s.StepsPerEpoch), 10)
	p.printf("%s\n", recordLine(*s.Record,
		fmt.Sprintf("%-*s", 2*len(epochs)+1, fmt.Sprintf("%d/%s", s.Record.Epoch, epochs)),
		fmt.Sprintf("%-*d", len(steps), s.Record.Step)))
}

func (p *progressView) clear() {
	if p.bar == nil && !p.dirty {
		return
	}
	p.bar, p.dirty = nil, false
	p.printf("\r%s\r", strings.Repeat(" ", max(p.width()-1, 0)))
}

func (p *progressView) end(s *State) {
	p.clear()
	if s.run.stop == "" || s.Err != nil {
		return
	}
	saved := ""
	if s.History.Checkpoint != "" {
		saved = "; checkpoint " + s.History.Checkpoint
	}
	p.printf("stopped: %s%s\n", s.run.stop, saved)
}
