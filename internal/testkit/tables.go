package testkit

import (
	"regexp"
	"strings"
)

// Table is a table of a document. Its cells have no surrounding blanks.
type Table struct {
	Line   int // line of the header, from 1
	Header []string
	Rows   [][]string // a broken row may have another number of cells than the header
}

// Tables returns the tables of a document outside of code blocks. A bar in a cell is written \|.
func Tables(text string) (found []Table) {
	lines := strings.Split(text, "\n")
	for i := 1; i < len(lines); i++ {
		if !delimiter.MatchString(lines[i]) {
			continue
		}
		t := Table{Line: i, Header: cells(lines[i-1])}
		for i++; i < len(lines) && strings.HasPrefix(lines[i], "|"); i++ {
			t.Rows = append(t.Rows, cells(lines[i]))
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
