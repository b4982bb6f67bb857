package watch

import (
	"fmt"
	"io"
	"strings"
	"time"

	"steadyfit/internal/memlayer"
	"steadyfit/internal/texts"
	"steadyfit/memory"
)

// WriteText writes the report for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	var out strings.Builder
	line := func(lead, text string) {
		if text != "" {
			out.WriteString(texts.Wrap(fmt.Sprintf("%-9s", lead), 9, texts.Printable(text), 100) + "\n")
		}
	}
	out.WriteString(r.Headline() + "\n")
	line("reason", r.Reason())
	if r.Why != nil {
		line("cause", r.Cause)
		line("evidence", r.Why.Evidence)
		line("place", r.Why.Place)
		line("change", r.Why.Change)
	}
	for _, s := range r.Stacks {
		line("stack", r.stack(s))
	}
	if r.Verdict == Leak {
		line("growth", r.Growth())
	}
	for _, l := range r.Shown()[1:] {
		line("layer", fmt.Sprintf("%s: %s", label(l.Name), l.Text))
	}
	if len(r.Processes) > 1 {
		for _, p := range r.Processes {
			line("process", fmt.Sprintf("%d: %v to %v: %s", p.PID, p.First, p.Last, texts.Printable(p.Command)))
		}
	}
	if r.Cause == unknown {
		for _, e := range r.Excluded {
			line("excluded", e)
		}
	}
	for _, n := range r.Notes {
		line("note", texts.Printable(n))
	}
	line("watched", r.Watched())
	_, err := io.WriteString(w, out.String())
	return err
}

// Shown returns the layers to show: the whole memory, and its parts if it has several.
func (r *Report) Shown() []Layer {
	out := r.Layers[:1]
	for _, l := range r.Layers[1:] {
		if l.End > 0 && l.End < r.Layers[0].End {
			out = append(out[:len(out):len(out)], l)
		}
	}
	return out
}

// label names a layer for readers.
func label(l memory.Layer) string {
	switch l {
	case memory.Anon:
		return "anonymous memory"
	case memlayer.File:
		return "mapped files"
	}
	return string(l)
}

// Headline is the answer in a sentence.
func (r *Report) Headline() string {
	switch r.Verdict {
	case Leak:
		return fmt.Sprintf("The memory leaks: %s.", r.rate(r.Slope))
	case Level:
		grown := r.Slope.Estimate * (r.to - r.From)
		if r.Slope.Low > 0 && grown >= float64(memory.MiB) {
			return fmt.Sprintf("The memory is level so far: it grew by %v, or %s.", memory.Bytes(grown), r.rate(r.Slope))
		}
		return fmt.Sprintf("The memory is level: %s.", r.rate(r.Slope))
	}
	return "It is not decided whether the memory grows."
}

// Reason says why there is no verdict.
func (r *Report) Reason() string {
	if r.Verdict != Undecided || len(r.Layers) == 0 {
		return ""
	}
	return strings.TrimPrefix(r.Layers[0].Text, "inconclusive: ")
}

// rate formats a slope per unit.
func (r *Report) rate(s memory.Interval) string {
	return strings.Replace(memlayer.Rate(Total, "", s.Estimate, s.Low, s.High), "/step", " per "+r.Unit, 1)
}

// stack formats a native stack, the innermost function first.
func (r *Report) stack(s Stack) string {
	return fmt.Sprintf("about %v per %s from %s", s.Growth, r.Unit, strings.Join(s.Functions, " < "))
}

// Watched says what was watched, and how long.
func (r *Report) Watched() string {
	return fmt.Sprintf("%s in %s, %d samples, peak %v%s", r.counted(), r.time(r.Seconds), r.Samples, r.Peak, r.end())
}

func (r *Report) counted() string {
	text := texts.Count(r.Steps, r.Unit)
	if r.Unit == perMinute {
		text = "no steps"
	}
	if r.Epochs > 0 {
		text += ", " + texts.Count(r.Epochs, "epoch")
	}
	return text
}

func (r *Report) time(seconds float64) string {
	return texts.Duration(time.Duration(seconds * float64(time.Second)))
}

// Growth says how fast the memory is used up.
func (r *Report) Growth() string {
	parts := []string{fmt.Sprintf("%v per hour", r.PerHour)}
	if r.PerEpoch > 0 {
		parts = append([]string{fmt.Sprintf("%v per epoch", r.PerEpoch)}, parts...)
	}
	text := strings.Join(parts, ", ") + fmt.Sprintf(", since %s %.0f", r.Unit, r.From)
	if r.GoneSeconds > 0 {
		text += fmt.Sprintf("; the %v that are left last %s", r.Left, r.time(r.GoneSeconds))
	}
	return text
}

func (r *Report) end() string {
	switch {
	case r.Ended != "":
		return "; ended: " + r.Ended
	case r.Exit > 128:
		return fmt.Sprintf("; the program was ended by signal %d", r.Exit-128)
	case r.Exit > 0:
		return fmt.Sprintf("; the program ended with exit code %d", r.Exit)
	}
	return ""
}
