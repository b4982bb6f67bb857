package data

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"steadyfit/internal/dtype"
)

// InferSchema reads a table and returns a schema for it as YAML, in the order of the columns. Comments
// in the YAML state the number of missing cells, which are errors until the schema has a value for
// them. Columns of lists have no rules.
func InferSchema(path string, o Options) ([]byte, error) {
	o.CSV = CSVOptions{Header: "yes", Schema: &Schema{texts: true}}
	o.Images = ImageOptions{Size: 1} // images have no schema, so any size will do
	ds, err := Open(path, o)
	if err != nil {
		return nil, err
	}
	defer ds.Close()
	var all []*guess
	for _, f := range ds.Fields() {
		if len(f.Shape) > 0 || f.Type != dtype.For[string]().Name {
			continue
		}
		all = append(all, newGuess(f.Name))
	}
	for b, err := range ds.Batches(Pass{Batch: 256}) {
		if err != nil {
			return nil, err
		}
		for _, g := range all {
			a, _ := b.Field(g.name)
			for _, cell := range a.Values.([]string) {
				g.add(cell)
			}
		}
	}
	columns := &yaml.Node{Kind: yaml.MappingNode}
	for _, g := range all {
		rule, err := g.node()
		if err != nil {
			return nil, err
		}
		columns.Content = append(columns.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: g.name, Tag: "!!str"}, rule)
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(map[string]any{"columns": columns}); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

// guess infers the rule of a column from its cells.
type guess struct {
	name           string
	cells, missing int
	notAvailable   map[string]bool
	counts         map[string]int // nil if there are too many different cells for a category
	fits           []fit          // the first one becomes the rule
}

// fit is a rule that all cells fit so far, and the sum of their numbers.
type fit struct {
	Rule
	sum float64
}

// other returns a rule that reads the cells as other numbers than the first one does, such as 2,137 as 2.137 or 2137;
// nil if there is none.
func (g *guess) other() *fit {
	for i, f := range g.fits {
		if f.Type == "float" && slices.Equal(f.Strip, g.fits[0].Strip) && f.sum != g.fits[0].sum {
			return &g.fits[i]
		}
	}
	return nil
}

// maxCategories is the maximum number of categories of a column.
const maxCategories = 100

// notAvailable are the words of pandas.read_csv for missing values, and "?".
var notAvailable = []string{"?", "#N/A", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}

// newGuess returns a guess with all rules that may fit.
func newGuess(name string) *guess {
	g := &guess{name: name, notAvailable: map[string]bool{}, counts: map[string]int{},
		fits: []fit{{Rule: Rule{Type: "int"}}}}
	for _, sign := range [][]string{nil, {"$"}, {"€"}, {"£"}, {"%"}} {
		for _, r := range []Rule{{}, {Thousands: ","}, {Decimal: ","}, {Thousands: ".", Decimal: ","}} {
			r.Type, r.Strip = "float", sign
			g.fits = append(g.fits, fit{Rule: r})
		}
	}
	for _, words := range [][2]string{{"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"}, {"on", "off"}} {
		g.fits = append(g.fits, fit{Rule: Rule{Type: "bool", TrueValues: []string{words[0]},
			FalseValues: []string{words[1]}}})
	}
	for _, format := range []string{usualDate, "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y"} {
		g.fits = append(g.fits, fit{Rule: Rule{Type: "date", Format: format, Unit: "days"}})
	}
	for _, format := range []string{usualDate + "T%H:%M:%S", usualDate + " %H:%M:%S", usualDate + "T%H:%M:%SZ", usualDate +
		"T%H:%M:%S%z", usualDate + " %H:%M:%S%z"} {
		g.fits = append(g.fits, fit{Rule: Rule{Type: "date", Format: format, Unit: "seconds"}})
	}
	for i := range g.fits {
		g.fits[i].layout, _ = layoutOf(g.fits[i].Format)
	}
	return g
}

func (g *guess) add(cell string) {
	g.cells++
	if cell = strings.TrimSpace(cell); cell == "" || slices.Contains(notAvailable, cell) {
		if g.missing++; cell != "" {
			g.notAvailable[cell] = true
		}
		return
	}
	fits := g.fits[:0]
	for _, f := range g.fits {
		text, ok := f.convert(cell)
		if slices.Equal(f.Strip, []string{"%"}) && !strings.Contains(cell, "%") {
			ok = false // a hundredth of the others, or 100 times as much
		}
		if ok {
			number, _ := strconv.ParseFloat(text, 64) // convert has checked it
			f.sum += number
			fits = append(fits, f)
		}
	}
	g.fits = fits
	if g.counts == nil {
		return
	}
	if g.counts[cell]++; len(g.counts) > maxCategories {
		g.counts = nil
	}
}

// node returns the rule as YAML with comments.
func (g *guess) node() (*yaml.Node, error) {
	present := g.cells - g.missing
	r := Rule{Type: "text"}
	switch {
	case present == 0:
	case len(g.fits) > 0:
		r = g.fits[0].Rule
	case g.counts != nil && 2*len(g.counts) <= present:
		r = Rule{Type: "category", Values: map[string]int64{}}
		for i, value := range slices.Sorted(maps.Keys(g.counts)) {
			r.Values[value] = int64(i)
		}
	}
	if r.Type != "text" {
		r.NAValues = slices.Sorted(maps.Keys(g.notAvailable))
	}
	node := &yaml.Node{}
	if err := node.Encode(r); err != nil {
		return nil, err
	}
	node.Content[1].LineComment = g.comment()
	if g.missing > 0 && r.Type != "text" {
		value := &yaml.Node{Kind: yaml.ScalarNode, Value: missingIsError}
		value.LineComment = fmt.Sprintf("%d of %d cells", g.missing, g.cells)
		if r.Type == "float" || r.Type == "int" {
			mean := g.fits[0].sum / float64(present)
			if r.Type == "int" {
				mean = math.Round(mean)
			}
			value.LineComment += fmt.Sprintf("; %.4g, the mean, would fill them", mean)
		}
		node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "missing"}, value)
	}
	return node, nil
}

// comment says what the rule of the column leaves open.
func (g *guess) comment() string {
	switch other := g.other(); {
	case g.cells == g.missing:
	case len(g.fits) > 1 && g.fits[0].Type == "date" && g.fits[1].Type == "date":
		return "or the format " + g.fits[1].Format + ": each cell fits both"
	case other != nil:
		return fmt.Sprintf("or thousands '%s' and decimal '%s': each cell fits both", other.Thousands,
			cmp.Or(other.Decimal, "."))
	}
	return ""
}
