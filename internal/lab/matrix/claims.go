package matrix

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The verdicts on a claim.
const (
	holds, holdsInPart, doesNotHold = "holds", "holds in part", "does not hold"
	undecided, notTested            = "undecided", "not tested"
)

// claimEntry is a claim of claims.yaml, which describes the fields.
type claimEntry struct {
	ID, Text, Says, Needs string
	Untested              map[string]string // by runtime
	Mainly                bool
	Rows                  []row
}

// row asks one thing about several measurements.
type row struct {
	Name           string
	Runtimes       []string
	GPU            bool
	Runs, Remedies []string
	Against        string
	Is, Of, Share  string // one of them
	Below, Above   float64
	MustGrow       bool `yaml:"must_grow"`
	Rest           string
}

//go:embed claims.yaml
var claimsYAML []byte

func claimTable() ([]claimEntry, error) {
	var table struct {
		Sets, Needs any // parts that rows repeat
		Claims      []claimEntry
	}
	if err := parse(claimsYAML, &table); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	return table.Claims, nil
}

// answer is the answer to a question according to the measurements.
type answer int

const (
	missing answer = iota // not measured
	unclear               // measured, but not decided
	no
	inPart
	yes
)

func (a answer) known() bool { return a >= no }

// evidence is an answer, with a text that has the figures, and the workloads that show it.
type evidence struct {
	name string // of the question
	answer
	text string
	on   []string
}

// ledger tests every claim on every runtime. Claims that the result already has keep their
// verdicts, because a published result lacks the figures behind them.
func ledger(r *Result) ([]Claim, error) {
	table, err := claimTable()
	if err != nil {
		return nil, err
	}
	out := slices.Clone(r.Claims)
	for _, c := range table {
		i := slices.IndexFunc(out, func(old Claim) bool { return old.ID == c.ID })
		if i < 0 {
			i = len(out)
			out = append(out, Claim{ID: c.ID, Verdicts: []ClaimVerdict{}})
			for _, runtime := range Runtimes() {
				if v := newView(r, runtime).verdict(c); v.Verdict != "" {
					out[i].Verdicts = append(out[i].Verdicts, v)
				}
			}
		}
		out[i].Text, out[i].Says, out[i].Needs = c.Text, c.Says, c.Needs
		if len(r.Environment.GPUs) > 0 {
			out[i].Needs = ""
		}
	}
	return out, nil
}

func (v view) verdict(c claimEntry) ClaimVerdict {
	d := ClaimVerdict{Runtime: v.runtime, Combinations: []string{}}
	if d.Verdict, d.Text = c.settle(v.questions(c.Rows)...); d.Verdict != "" {
		d.Combinations = slices.Sorted(maps.Keys(v.used))
	} else if why := c.Untested[v.runtime]; why != "" && len(v.results) > 0 {
		d.Verdict, d.Text = notTested, why
	}
	return d
}

// questions answers the questions that concern the runtime and the machine.
func (v view) questions(rows []row) (list []evidence) {
	all := make(map[string][]evidence)
	for _, r := range rows {
		if (len(r.Runtimes) == 0 || slices.Contains(r.Runtimes, v.runtime)) && (v.gpu || !r.GPU) {
			if all[r.Name] == nil {
				list = append(list, evidence{name: r.Name})
			}
			all[r.Name] = append(all[r.Name], v.answers(r)...)
		}
	}
	for i, q := range list {
		list[i] = pool(all[q.name]...)
		list[i].name = q.name
	}
	return list
}

// pool combines the answers of several measurements to one question. Claims are general, so the
// answer is yes only if all measurements answer yes. It is no only if all decided measurements
// answer no and fewer measurements are undecided.
func pool(all ...evidence) (sum evidence) {
	var texts []string
	n := make(map[answer]int)
	for _, e := range all {
		if e.text != "" && slices.Contains(texts, e.text) {
			continue // the same measurement
		}
		texts = append(texts, e.text)
		if n[e.answer]++; e.known() {
			sum.on = append(sum.on, e.on...)
		}
	}
	open, known := n[unclear], n[no]+n[inPart]+n[yes]
	switch {
	case open+known == 0:
	case n[no] == known && open >= known:
		sum.answer = unclear
	case n[no] == known:
		sum.answer = no
	case n[yes] == known && open == 0:
		sum.answer = yes
	default:
		sum.answer = inPart
	}
	if known > 0 && open > 0 {
		texts = append(texts, fmt.Sprintf("not decided by %d of %d measurements", open, known+open))
	}
	sum.on, sum.text = slices.Compact(slices.Sorted(slices.Values(sum.on))), sentences(texts...)
	return sum
}

// combined returns the verdict on the claim if the open questions have an answer.
func (c claimEntry) combined(questions []evidence, open answer) string {
	n := make(map[answer]int)
	for i, q := range questions {
		if !q.known() {
			q.answer = open
		}
		if n[q.answer]++; q.answer == no && c.Mainly && i == 0 {
			return doesNotHold
		}
	}
	switch len(questions) {
	case n[no]:
		return doesNotHold
	case n[yes]:
		return holds
	}
	return holdsInPart
}

// settle returns the verdict on the claim if it is the same for every possible answer to the open
// questions. Otherwise the claim is undecided, or untested ("") if a question was not measured. If
// one workload alone shows the answer yes, the claim holds in part, since the cause may be specific
// to that workload.
func (c claimEntry) settle(questions ...evidence) (verdict, text string) {
	var texts, left []string
	untested := 0
	for _, q := range questions {
		texts = append(texts, q.text)
		switch q.answer {
		case missing:
			untested++
			left = append(left, q.name+" was not part of this matrix")
		case unclear:
			left = append(left, q.name+" is not decided")
		}
	}
	if verdict = c.combined(questions, no); verdict != c.combined(questions, yes) {
		verdict = undecided
	}
	if untested == len(questions) || verdict == undecided && untested > 0 {
		return "", ""
	}
	if len(questions) == 1 {
		left, questions[0].name = nil, "it" // the question is the claim
	}
	for _, q := range questions {
		if verdict != doesNotHold && q.answer == yes && len(q.on) < 2 {
			left = append(left, fmt.Sprintf("%s is shown on %s alone", q.name, strings.Join(q.on, "")))
			if verdict == holds {
				verdict = holdsInPart
			}
		}
	}
	return verdict, sentences(append(texts, left...)...)
}

// sentences joins parts with ". ", without a final full stop.
func sentences(parts ...string) string {
	var list []string
	for _, part := range parts {
		if part != "" {
			part = strings.ToUpper(part[:1]) + part[1:]
		}
		if part != "" && !slices.Contains(list, part) {
			list = append(list, part)
		}
	}
	return strings.Join(list, ". ")
}
