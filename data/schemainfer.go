package data

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

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

// fit is a rule that all cells fit so far, except for a few words.
type fit struct {
	Rule
	sum   float64        // of the numbers of the cells
	words map[string]int // the cells that do not fit
}

// maxWords is the maximum number of words that do not fit a rule, and perWord the number of cells that a column must
// have for each cell with such a word. The words then mean missing values, such as "unknown" among ages.
const (
	maxWords = 2
	perWord  = 10
)

// skip notes a cell that does not fit. It returns false if the rule is not the one of the column.
func (f *fit) skip(cell string) bool {
	if f.words == nil {
		f.words = map[string]int{}
	}
	f.words[cell]++
	return f.Type != "bool" && len(f.words) <= maxWords && !strings.ContainsAny(cell, "0123456789")
}

// SuggestRule returns a rule of a schema, as YAML, that reads a cell as a number; "" if none is known.
func SuggestRule(cell string) string {
	g := newGuess("")
	g.add(cell)
	if g.decide(); len(g.fits) == 0 || g.missing > 0 {
		return ""
	}
	first, other := g.fits[0], g.other()
	for _, f := range g.fits {
		if strings.Contains(cell, ".") && f.Thousands == "," && slices.Equal(f.Strip, first.Strip) {
			first = f // which also reads larger amounts
		}
	}
	text, _ := json.Marshal(first.Rule) // a rule has texts only
	if other == nil {
		return string(text)
	}
	or, _ := json.Marshal(other.Rule)
	return fmt.Sprintf("%s (%.9g) or %s (%.9g)", text, first.sum, or, other.sum)
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
		}
		if ok || f.skip(cell) {
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

// decide keeps the rules that the fewest words do not fit. These words then mean missing values.
func (g *guess) decide() {
	least := maxWords + 1
	for _, f := range g.fits {
		cells := 0
		for _, n := range f.words {
			cells += n
		}
		if perWord*cells <= g.cells-g.missing {
			least = min(least, len(f.words))
		}
	}
	g.fits = slices.DeleteFunc(g.fits, func(f fit) bool { return len(f.words) != least })
	if len(g.fits) == 0 {
		return
	}
	for word, n := range g.fits[0].words {
		g.notAvailable[word] = true
		g.missing += n
	}
}

// node returns the rule as YAML with comments.
func (g *guess) node() (*yaml.Node, error) {
	g.decide()
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
	node.Content[1].LineComment = g.comment(r)
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

// comment says what the rule r of the column leaves open.
func (g *guess) comment(r Rule) string {
	amounts := 0
	for value := range r.Values {
		if strings.ContainsAny(value, "0123456789") {
			amounts++
		}
	}
	switch other := g.other(); {
	case len(g.fits) > 1 && r.Type == "date" && g.fits[1].Type == "date":
		return "or the format " + g.fits[1].Format + ": each cell fits both"
	case other != nil:
		return fmt.Sprintf("or thousands '%s' and decimal '%s': each cell fits both", other.Thousands,
			cmp.Or(other.Decimal, "."))
	case 2*amounts > len(r.Values):
		return "in the order of the texts; if the values are amounts, write all of them as numbers"
	}
	return ""
}
