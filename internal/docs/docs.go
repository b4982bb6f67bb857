// Package docs finds the things in the project's documents that a reader may try: the Go
// program, links, make targets, commands and their flags. Its test tries them, so that `go test
// ./...` fails if a document names something that does not exist.
//
// The package understands the Markdown of these documents: fenced and indented blocks, code
// spans, and inline links. Its functions return what a text mentions, with line numbers. The
// test looks the mentions up.
package docs

import (
	"regexp"
	"slices"
	"strings"
)

// A Mention is a name in a document.
type Mention struct {
	Line int // from 1
	Text string
}

// A Use is a command line of steadyfit.
type Use struct {
	Line    int
	Command string // "" for steadyfit itself
	Flags   []string
}

// GoBlock is the content of the first block that begins with ```go.
func GoBlock(text string) (string, bool) {
	for _, b := range split(text) {
		if b.language == "go" {
			return b.text, true
		}
	}
	return "", false
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links lists the targets of relative links, without the part after a #.
func Links(text string) []Mention {
	var found []Mention
	for _, b := range split(text) {
		if b.code {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(b.text, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target != "" && !scheme.MatchString(target) {
				found = append(found, Mention{b.line, target})
			}
		}
	}
	return found
}

var scheme = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*:`)

var makeCommand = regexp.MustCompile(`(?:^|[\s;&|(])make((?: +[A-Za-z_-][\w=./-]*)+)`)

// MakeTargets lists the words after make in code, except flags and variables.
func MakeTargets(text string) []Mention {
	var found []Mention
	for _, c := range commands(text) {
		for _, m := range makeCommand.FindAllStringSubmatch(c.Text, -1) {
			for word := range strings.FieldsSeq(m[1]) {
				if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
					found = append(found, Mention{c.Line, word})
				}
			}
		}
	}
	return found
}

var (
	// A path may come before the name, but steadyfit=../steadyfit and steadyfit/fit are no
	// commands.
	steadyfit = regexp.MustCompile(`(?:^|[\s;&|(/])steadyfit((?: +[^\s;&|]+)+)`)
	word      = regexp.MustCompile(`^[a-z][a-z-]*$`)
	flag      = regexp.MustCompile(`^--[a-z][a-z0-9-]*`)
)

// Uses lists the command lines of steadyfit in code.
func Uses(text string) []Use {
	var found []Use
	for _, c := range commands(text) {
		for _, m := range steadyfit.FindAllStringSubmatch(c.Text, -1) {
			u := Use{Line: c.Line}
			for i, part := range strings.Fields(m[1]) {
				if i == 0 && word.MatchString(part) {
					u.Command = part
				}
				if f := flag.FindString(part); f != "" {
					u.Flags = append(u.Flags, f)
				}
			}
			found = append(found, u)
		}
	}
	return found
}

// Flags lists the code spans that begin with a flag: `--config`, `--batch 32`.
func Flags(text string) []Mention {
	var found []Mention
	for _, b := range split(text) {
		if b.code {
			continue
		}
		for _, s := range spans(b) {
			for i, part := range strings.Fields(s.Text) {
				f := flag.FindString(part)
				if i == 0 && f == "" {
					break
				}
				if f != "" {
					found = append(found, Mention{s.Line, f})
				}
			}
		}
	}
	return found
}

// A Table is a table, with the text of its cells without surrounding blanks.
type Table struct {
	Line   int // line of the header, from 1
	Header []string
	Rows   [][]string // as many cells as the header has, or another number if the row is broken
}

// Tables lists the tables of a document. A bar in a cell is written \|.
func Tables(text string) []Table {
	var found []Table
	for _, b := range split(text) {
		lines := strings.Split(strings.TrimRight(b.text, "\n"), "\n")
		if b.code || len(lines) < 2 || !delimiter.MatchString(lines[1]) {
			continue
		}
		t := Table{Line: b.line, Header: cells(lines[0])}
		for _, line := range lines[2:] {
			t.Rows = append(t.Rows, cells(line))
		}
		found = append(found, t)
	}
	return found
}

var delimiter = regexp.MustCompile(`^\|( *:?-+:? *\|)+$`)

func cells(line string) []string {
	const bar = "\x00"
	line = strings.ReplaceAll(strings.TrimSpace(line), `\|`, bar)
	list := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|")
	for i, cell := range list {
		list[i] = strings.ReplaceAll(strings.TrimSpace(cell), bar, "|")
	}
	return list
}

// commands lists possible shell commands: the lines of blocks that are not Go, and code spans.
// It removes comments and joins continued lines.
func commands(text string) []Mention {
	var found []Mention
	for _, b := range split(text) {
		switch {
		case b.code && b.language == "go":
		case b.code:
			found = append(found, shellLines(b)...)
		default:
			found = append(found, spans(b)...)
		}
	}
	return found
}

var comment = regexp.MustCompile(`(^|\s)#.*`)

func shellLines(b block) []Mention {
	var found []Mention
	joined, at := "", 0
	for i, line := range strings.Split(b.text, "\n") {
		if joined == "" {
			at = b.line + i
		}
		line = comment.ReplaceAllString(line, "")
		if before, continues := strings.CutSuffix(line, `\`); continues {
			joined += before
			continue
		}
		found = append(found, Mention{at, joined + line})
		joined = ""
	}
	return found
}

var span = regexp.MustCompile("`([^`]+)`")

func spans(b block) []Mention {
	var found []Mention
	for _, m := range span.FindAllStringSubmatchIndex(b.text, -1) {
		found = append(found, Mention{b.line + strings.Count(b.text[:m[0]], "\n"), strings.ReplaceAll(b.text[m[2]:m[3]], "\n", " ")})
	}
	return found
}

// block is a block of code, or a paragraph.
type block struct {
	code     bool
	language string // line of a fence
	line     int    // line of the first text
	text     string
}

func split(text string) []block {
	var blocks []block
	var now block
	end := func() {
		if now.text != "" {
			blocks = append(blocks, now)
		}
		now = block{}
	}
	fenced, blank := false, true
	for i, line := range slices.Collect(strings.SplitSeq(text, "\n")) {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		indented := !fenced && strings.HasPrefix(line, "    ") && (blank || now.code)
		switch {
		case fence:
			end()
			fenced = !fenced
			if fenced {
				now = block{code: true, language: strings.TrimPrefix(strings.TrimSpace(line), "```"), line: i + 2}
			}
		case fenced:
			now.text += line + "\n"
		case strings.TrimSpace(line) == "":
			end()
		default:
			if now.code != indented {
				end()
			}
			if now.text == "" {
				now.code, now.line = indented, i+1
			}
			now.text += line + "\n"
		}
		blank = strings.TrimSpace(line) == ""
	}
	end()
	return blocks
}

var target = regexp.MustCompile(`(?m)^([A-Za-z][\w.-]*):(?:[^=]|$)`)

// Targets lists the targets of a Makefile.
func Targets(makefile string) []string {
	var found []string
	for _, m := range target.FindAllStringSubmatch(makefile, -1) {
		found = append(found, m[1])
	}
	return found
}

var (
	helpCommand = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*) +\S`)
	helpFlag    = regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z][a-z0-9-]*)`)
)

// HelpCommands lists the commands that the help of steadyfit shows.
func HelpCommands(help string) []string {
	_, list, _ := strings.Cut(help, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var found []string
	for _, m := range helpCommand.FindAllStringSubmatch(list, -1) {
		found = append(found, m[1])
	}
	return found
}

// HelpFlags lists the flags that the help of a command shows.
func HelpFlags(help string) []string {
	var found []string
	for _, m := range helpFlag.FindAllStringSubmatch(help, -1) {
		found = append(found, m[1])
	}
	return found
}
