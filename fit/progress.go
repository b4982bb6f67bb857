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
	// refreshEvery is the time from one picture of the bar to the next. Between
	// them, a step costs one look at the clock.
	refreshEvery = 100 * time.Millisecond
	barWidth     = 20
	// barRoom is what the bar needs on a line beside its description.
	barRoom = barWidth + 46
)

// Progress is a hook that shows how training goes: a line per epoch, and if w
// is a terminal, a bar while the epoch runs, with the means so far, the time
// that is left of the epoch, steps per second, and the memory of this process.
// The bar has colours unless NO_COLOR is set.
//
// A line is names and values, each name followed by a space and its value, and
// separated by two or more spaces:
//
//	epoch 3/10  step 300  loss 0.1234     val_loss 0.1310     steps/s 512       rss 431.2 MiB   anon 212.0 MiB
//
// Steps per second do not include validation. What is not known is left out.
// Lines that do not begin with "epoch" say where a run resumed, and why it
// stopped.
func Progress(w io.Writer) Hook {
	p := &progressView{w: w}
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
	// width is the number of columns of the terminal.
	width func() int

	bar     *progressbar.ProgressBar
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
	p.bar, p.epoch = nil, 0
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
	p.pending++
	last := s.EpochStep == s.StepsPerEpoch
	now := time.Now()
	if !last && p.epoch == s.Epoch && now.Sub(p.shown) < refreshEvery {
		return nil
	}
	p.shown = now
	if p.epoch != s.Epoch {
		// After a resume the bar covers what is left of the epoch, as steps from
		// before would distort its speed.
		p.epoch = s.Epoch
		p.bar = p.newBar(s.StepsPerEpoch - s.EpochStep + 1)
	}
	if last {
		if err := p.bar.Clear(); err != nil {
			return fmt.Errorf("printing progress: %w", err)
		}
		if s.run.validates() {
			if _, err := fmt.Fprintf(p.w, "\r%s  validating", p.label(s)); err != nil {
				return fmt.Errorf("printing progress: %w", err)
			}
		}
		p.pending = 0
		return nil
	}
	p.bar.Describe(p.describe(s))
	err := p.bar.Add(p.pending)
	p.pending = 0
	if err != nil {
		return fmt.Errorf("printing progress: %w", err)
	}
	return nil
}

func (p *progressView) newBar(steps int) *progressbar.ProgressBar {
	colour := os.Getenv("NO_COLOR") == ""
	theme := progressbar.Theme{Saucer: "=", SaucerHead: ">", SaucerPadding: " ", BarStart: "|", BarEnd: "|"}
	if colour {
		theme.Saucer, theme.SaucerHead = "[green]=[reset]", "[green]>[reset]"
	}
	return progressbar.NewOptions64(int64(steps),
		progressbar.OptionSetWriter(p.w),
		progressbar.OptionSetWidth(barWidth),
		progressbar.OptionSetTheme(theme),
		progressbar.OptionEnableColorCodes(colour),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString("steps"),
		// Describe and Add would both draw; one picture per refresh is enough.
		progressbar.OptionThrottle(refreshEvery/2),
		progressbar.OptionClearOnFinish(),
	)
}

// label is "epoch  3/10".
func (p *progressView) label(s *State) string {
	return "epoch " + epochOf(s.Epoch, s.Epochs)
}

// epochOf pads an epoch to the width of the last.
func epochOf(epoch, epochs int) string {
	total := strconv.Itoa(epochs)
	return fmt.Sprintf("%*d/%s", len(total), epoch, total)
}

// describe is the text before the bar, as much of it as the line has room for.
func (p *progressView) describe(s *State) string {
	parts := []string{p.label(s)}
	var rss string
	if usage, err := memory.Read(); err == nil && usage.RSS.OK {
		rss = "rss " + usage.RSS.String()
	}
	room := p.width() - barRoom - len(parts[0]) - len(rss) - 2
	for _, m := range s.Running() {
		part := m.Name + " " + formatValue(m.Value)
		if room -= len(part) + 2; room < 0 {
			break
		}
		parts = append(parts, part)
	}
	if rss != "" {
		parts = append(parts, rss)
	}
	return strings.Join(parts, "  ")
}

func (p *progressView) epochLine(_ context.Context, s *State) error {
	if err := p.clear(); err != nil {
		return err
	}
	return p.line(recordLine(*s.Record, epochOf(s.Record.Epoch, s.Epochs)))
}

// clear empties the line that the bar is on.
func (p *progressView) clear() error {
	if p.bar == nil {
		return nil
	}
	p.bar = nil
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
