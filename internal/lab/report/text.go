package report

import (
	"cmp"
	"embed"
	"fmt"
	"io"
	"strings"
	"text/template"

	"steadyfit/internal/lab/compare"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/texts"
)

// paragraphEnd ends the paragraphs of text.tmpl.
const paragraphEnd = "\x1e"

//go:embed text.tmpl
var textFile embed.FS

var textTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"p": func() string { return paragraphEnd }, "md": markdown, "sentence": sentence, "join": join,
}).ParseFS(textFile, "text.tmpl"))

// Text writes the answer for a terminal: the calibration, the workloads with their remedies, and the
// claims. width is in columns, at least 40; 0 means 80.
func Text(w io.Writer, r *matrix.Result, width int) error { return write(w, width, "text", newView(r)) }

// Claims writes the claims in Markdown: a table with the verdicts, then each claim with the figures and
// their sources, or with what a test needs.
func Claims(w io.Writer, r *matrix.Result) error {
	if err := textTemplate.ExecuteTemplate(w, "claims", newView(r)); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Lines returns the remedies of a loop by their effect. The names of those that changed nothing are left
// out if the loop neither grows nor crashes.
func (l *loop) Lines() (lines []string) {
	for _, look := range looks[1:] {
		change := look.effect == compare.Works || look.effect == compare.Partly
		nothing := look.effect == compare.NoEffect || look.effect == unverified || look.effect == compare.Unclear
		var names []string
		for _, r := range l.Rows {
			switch {
			case r.effect != look.effect, nothing && !l.Bad(), r.effect == compare.NotApplicable:
			case change:
				names = append(names, fmt.Sprintf("%s (%s)", r.Remedy, strings.Join(present(r.Figure, r.Cost), "; ")))
			default:
				names = append(names, r.Remedy+when(look.effect == compare.CouldNotApply, " ("+r.Reason+")"))
			}
		}
		if more := len(names) - 4; change && more > 0 {
			names = append(names[:4], fmt.Sprintf("and %d more", more))
		}
		if len(names) > 0 {
			lines = append(lines, fmt.Sprintf("%s %s: %s.", look.Symbol, look.Word, strings.Join(names, ", ")))
		}
	}
	return lines
}

// write executes a template and wraps its paragraphs. Leading spaces are the indent of a paragraph.
// Headings begin with "# ", and alarms with "! ".
func write(w io.Writer, width int, name string, data any) error {
	var all, out strings.Builder
	if err := textTemplate.ExecuteTemplate(&all, name, data); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	width = max(cmp.Or(width, 80), 40)
	for paragraph := range strings.SplitSeq(all.String(), paragraphEnd) {
		paragraph = strings.TrimLeft(paragraph, "\n")
		text, heading := strings.CutPrefix(strings.TrimLeft(paragraph, " "), "# ")
		lead := strings.Repeat(" ", len(paragraph)-len(strings.TrimLeft(paragraph, " ")))
		out.WriteString(when(heading, "\n"))
		out.WriteString(texts.Wrap(lead, len(lead), oneLine(text), width) + "\n")
	}
	_, err := io.WriteString(w, strings.TrimRight(out.String(), "\n")+"\n")
	return err
}

var escapeMarkdown = strings.NewReplacer("\\", "\\\\", "|", "\\|", "<", "&lt;", ">", "&gt;", "&", "&amp;",
	"*", "\\*", "`", "\\`", "[", "\\[", "]", "\\]")

// markdown escapes text and puts it on one line. Underscores within words need no escape.
func markdown(text string) string { return escapeMarkdown.Replace(oneLine(text)) }
