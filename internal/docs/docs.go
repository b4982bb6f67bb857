// Package docs reads the tables of the project's documents for tests of other packages. Its own tests
// check that what a document names exists: Go programs, links, make targets, commands and flags. The package
// understands the Markdown of these documents: fenced and indented blocks, code spans, and inline links.
package docs

import (
	"regexp"
	"slices"
	"strings"
)

// Table is a table. Its cells have no surrounding blanks.
type Table struct {
	Line   int // line of the header, from 1
	Header []string
	Rows   [][]string // a broken row may have another number of cells than the header
}

// Tables returns the tables of a document. A bar in a cell is written \|.
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
