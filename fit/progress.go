package fit

import (
	"context"
	"errors"
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
	// barWidth is that of the bar where there is room; the library makes it
	// smaller where there is not.
	barWidth = 20
	// barRoom is what a small bar, its speed and its times need on a line.
	barRoom = 46
)

// Progress is a hook that shows how training goes: a line per epoch, and if w
// is a terminal, a bar while the epoch runs, with the means so far, the time
// that is left of the epoch, steps per second, and the memory of this process.
// The bar has colours unless NO_COLOR is set.
//
// A line is names and values, each name followed by a space and its value, and
// separated by two or more spaces:
//
//	epoch 3/10   step 300   loss 0.1234     val_loss 0.1310     steps/s 512       rss 431.2 MiB   anon 212.0 MiB
//
// Steps per second do not include validation. What is not known is left out.
// Lines that do not begin with "epoch" say where a run resumed, and why it
// stopped.
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
	// every is the time from one picture of the bar to the next. Between them, a
	// step costs one look at the clock.
	every time.Duration
	// width is the number of columns of the terminal.
	width func() int

	bar *progressbar.ProgressBar
	// dirty is true if there is something else on the line.
	dirty   bool
	epoch   int
	pending int // steps that the bar does not show yet
	shown   time.Time
}

func (p *progressView) hook() Hook {
	h := Hook{Name: "progress", Priority: PriorityReport, Start: p.start, Epoch: p.epochLine, End: p.end}
	if p.terminal {
		h.Step = p.step
	}
	return h
}

func (p *progressView) start(_ context.Context, s *State) error {
	p.bar, p.dirty, p.epoch = nil, false, 0
	if s.History.ResumedFrom == "" {
		return nil
	}
	return p.line(fmt.Sprintf("resumed from %s: %d of %d epochs done, step %d", s.History.ResumedFrom, s.run.done, s.Epochs, s.Step))
}

func (p *progressView) line(text string) error {
	if _, err := fmt.Fprintln(p.w, text); err != nil {
		return fmt.Errorf("printing progress: %w", err)
	}
	return nil
}

// step keeps the bar current.
func (p *progressView) step(_ context.Context, s *State) error {
	if s.EpochStep == s.StepsPerEpoch {
		return p.lastStep(s)
	}
	now := time.Now()
	if p.epoch != s.Epoch {
		// The bar covers what is left of the epoch after its first step, or after
		// the first one of a resumed run: steps that it did not see would distort
		// its speed.
		p.epoch, p.pending, p.shown = s.Epoch, 0, now
		p.bar = p.newBar(s.StepsPerEpoch-s.EpochStep, p.describe(s))
		p.bar.StartWithoutRender()
		return nil
	}
	p.pending++
	if now.Sub(p.shown) < p.every {
		return nil
	}
	p.shown = now
	err := p.bar.Add(p.pending)
	p.pending = 0
	if err != nil {
		return fmt.Errorf("printing progress: %w", err)
	}
	p.bar.Describe(p.describe(s))
	return nil
}

// lastStep replaces the bar by a word on what takes time now.
func (p *progressView) lastStep(s *State) error {
	if err := p.clear(); err != nil {
		return err
	}
	if !s.run.validates() {
		return nil
	}
	p.dirty = true
	if _, err := fmt.Fprintf(p.w, "\r%s  validating", p.label(s)); err != nil {
		return fmt.Errorf("printing progress: %w", err)
	}
	return nil
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
		// Add and Describe would both draw; one picture per refresh is enough.
		progressbar.OptionThrottle(p.every/2),
		progressbar.OptionClearOnFinish(),
	)
}

// label is "epoch 3/10".
func (p *progressView) label(s *State) string {
	return fmt.Sprintf("epoch %d/%d", s.Epoch, s.Epochs)
}

// describe is the text before the bar: the loss, then as much of the memory and
// of the other metrics as the line has room for.
func (p *progressView) describe(s *State) string {
	text := p.label(s)
	room := p.width() - barRoom - len(text)
	rss := ""
	for i, m := range s.Running() {
		part := "  " + m.Name + " " + formatValue(m.Value)
		if room -= len(part); i > 0 && room < 0 {
			break
		}
		text += part
		if i > 0 {
			continue
		}
		if usage, err := memory.Read(); err == nil && usage.RSS.OK {
			rss = "  rss " + usage.RSS.String()
		}
		if room -= len(rss); room < 0 {
			return text
		}
	}
	return text + rss
}

func (p *progressView) epochLine(_ context.Context, s *State) error {
	if err := p.clear(); err != nil {
		return err
	}
	epochs, steps := strconv.Itoa(s.Epochs), strconv.FormatInt(int64(s.Epochs)*int64(s.StepsPerEpoch), 10)
	return p.line(recordLine(*s.Record,
		fmt.Sprintf("%-*s", 2*len(epochs)+1, fmt.Sprintf("%d/%s", s.Record.Epoch, epochs)),
		fmt.Sprintf("%-*d", len(steps), s.Record.Step)))
}

// clear empties the line that the bar is on.
func (p *progressView) clear() error {
	if p.bar == nil && !p.dirty {
		return nil
	}
	p.bar, p.dirty = nil, false
	if _, err := fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", max(p.width()-1, 0))); err != nil {
		return fmt.Errorf("printing progress: %w", err)
	}
	return nil
}

func (p *progressView) end(_ context.Context, s *State) error {
	if err := p.clear(); err != nil {
		return err
	}
	saved := ""
	if s.History.Checkpoint != "" {
		saved = "; checkpoint " + s.History.Checkpoint
	}
	switch {
	case s.run.stop != "" && s.Err == nil:
		return p.line("stopped: " + s.run.stop + saved)
	case errors.Is(s.Err, context.Canceled), errors.Is(s.Err, context.DeadlineExceeded):
		return p.line(fmt.Sprintf("interrupted in epoch %d, after step %d%s", s.Epoch, s.Step, saved))
	}
	return nil
}
