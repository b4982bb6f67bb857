package docs

import (
	"regexp"
	"slices"
	"strings"
)

// Mention is a name in a document.
type Mention struct {
	Line int // from 1
	Text string
}

// Use is a command line of steadyfit.
type Use struct {
	Line    int
	Command string // empty for steadyfit itself
	Flags   []string
}

// GoBlock returns the content of the first block that begins with ```go.
func GoBlock(text string) (string, bool) {
	for _, b := range split(text) {
		if b.language == "go" {
			return b.text, true
		}
	}
	return "", false
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links returns the targets of relative links, without the part after #.
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

// MakeTargets returns the words after make in code, except flags and variables.
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
	// A path may precede the name, but steadyfit=../steadyfit and steadyfit/fit are not commands.
	steadyfit = regexp.MustCompile(`(?:^|[\s;&|(/])steadyfit((?: +[^\s;&|]+)+)`)
	word      = regexp.MustCompile(`^[a-z][a-z-]*$`)
	flag      = regexp.MustCompile(`^--[a-z][a-z0-9-]*`)
)

// Uses returns the command lines of steadyfit in code.
func Uses(text string) []Use {
	var found []Use
	for _, c := range commands(text) {
		for _, m := range steadyfit.FindAllStringSubmatch(c.Text, -1) {
			u := Use{Line: c.Line}
			first := true
			for part := range strings.FieldsSeq(m[1]) {
				if part == "--" { // launch runs another command, and watch any program
					if u.Command == "watch" {
						break
					}
					found = append(found, u)
					u, first = Use{Line: c.Line}, true
					continue
				}
				if first && word.MatchString(part) {
					u.Command = part
				}
				if first = false; flag.MatchString(part) {
					u.Flags = append(u.Flags, flag.FindString(part))
				}
			}
			found = append(found, u)
		}
	}
	return found
}

// Flags returns code spans that begin with a flag, such as `--config` and `--batch 32`.
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

// commands returns possible shell commands: lines of blocks that are not Go, and code spans. It removes
// comments and joins continued lines.
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

var target = regexp.MustCompile(`(?m)^([A-Za-z][\w.-]*):(?:[^=]|$)`)

// Targets returns the targets of a Makefile.
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

// HelpCommands returns the commands in the help of steadyfit.
func HelpCommands(help string) []string {
	_, list, _ := strings.Cut(help, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var found []string
	for _, m := range helpCommand.FindAllStringSubmatch(list, -1) {
		found = append(found, m[1])
	}
	return found
}

// HelpFlags returns the flags in the help of a command.
func HelpFlags(help string) []string {
	var found []string
	for _, m := range helpFlag.FindAllStringSubmatch(help, -1) {
		found = append(found, m[1])
	}
	return found
}

// block is a paragraph or a block of code, which is fenced or indented.
type block struct {
	code     bool
	language string // text after the opening fence
	line     int    // number of the first line of text
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

var (
	note   = regexp.MustCompile(`^<!-- (needs|file): (.*) -->\n$`)
	prompt = regexp.MustCompile(`(?m)^\$ (.*\n)`)
	// commandBlock matches a block of commands. Others are output, or files.
	commandBlock = regexp.MustCompile(`^(\$|[A-Z_]+=.*|(bin|scripts)/.*|cat|curl|docker|export|go|kubectl|make|perf|pip|pip3|` +
		`python|python3|sbatch|source|srun|steadyfit|steadyfit-export|steadyfit-import|sudo|tar|tensorboard)[ \n]`)
)

// Script returns the commands of a page for bash. A comment before a block says what it needs, and leaves it out, or names
// the file that it shows. In a block with prompts, the other lines are output.
func Script(text string) string {
	var script strings.Builder
	kind, value := "", ""
	for _, b := range split(text) {
		lines := b.text
		if strings.HasPrefix(lines, "    ") {
			lines = strings.ReplaceAll("\n"+lines, "\n    ", "\n")[1:]
		}
		switch {
		case !b.code:
			kind = ""
			if m := note.FindStringSubmatch(b.text); m != nil {
				kind, value = m[1], m[2]
			}
			continue
		case kind == "file":
			script.WriteString("cat > " + value + " <<'END FILE'\n" + lines + "END FILE\n")
		case kind == "" && (b.language == "sh" || b.language == "" && commandBlock.MatchString(lines)):
			if typed := prompt.FindAllStringSubmatch(lines, -1); typed != nil {
				lines = ""
				for _, m := range typed {
					lines += m[1]
				}
			}
			script.WriteString(lines)
		}
		kind = ""
	}
	return script.String()
}
