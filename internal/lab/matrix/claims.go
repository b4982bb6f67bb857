package matrix

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
)

const (
	holds       = "holds"
	holdsInPart = "holds in part"
	doesNotHold = "does not hold"
	undecided   = "undecided"
	notTested   = "not tested"
)

// claimEntry is a claim with the questions that decide it. The claim holds if all questions are
// answered yes, does not hold if all are answered no, and otherwise holds in part.
type claimEntry struct {
	ID, Text string
	// Says is what the literature says about the claim.
	Says string
	// Needs describes what a test of the claim needs that a machine without a GPU lacks.
	Needs string
	// GPU means that only a GPU can test the claim.
	GPU bool
	// Untested has the reasons why runtimes cannot test the claim.
	Untested map[string]string
	// Mainly means that the claim does not hold if its first question is answered no.
	Mainly bool
	// Any means that questions without measurements are ignored instead of leaving the claim
	// undecided.
	Any       bool
	Questions []question
}

type question struct {
	Name     string // empty for the only question of a claim
	Runtimes []string
	Probes   []probe
	// AtMostInPart limits the answer to "in part".
	AtMostInPart bool `yaml:"at_most_in_part"`
	// Silent omits the figures of this question, since another question reports them.
	Silent bool
	// Notes are additional sentences for an answer ("unclear", "no", "in part" or "yes"), or
	// for "any" measured answer.
	Notes map[string]string
}

// probe is the name of a test with the workloads and remedies that it uses.
type probe struct {
	// Test is a key of the map tests. Of names the amount that the test compares.
	Test, Of string
	// Runs lists workloads, as in "S0", or workloads with a remedy, as in "S0/stream". "own growth"
	// means all workloads without intended growth, "fixed batch" all with one batch size. With
	// Remedies, each workload is combined with each remedy.
	Runs, Remedies []string
	// Against is the measurement to compare with; "/remedy" is the same workload with a remedy. The
	// default is the baseline.
	Against   string
	Runtimes  []string
	Otherwise string // added to the text if a remedy makes no difference
}

// gpuCommand measures the claims that need a GPU. It replaces "$GPU" in the table.
const gpuCommand = "steadyfit matrix --runtime go,keras --workloads W0,S1d,S3,S3v --remedies " +
	"memory-growth,cuda-async,mixed-bf16,mixed-fp16 on a machine with a GPU"

//go:embed claims.yaml
var claimsYAML string

func claimTable() (table []claimEntry, err error) {
	if err := parse([]byte(strings.ReplaceAll(claimsYAML, "$GPU", gpuCommand)), &table); err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	return table, nil
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

func (a answer) String() string { return [...]string{"missing", "unclear", "no", "in part", "yes"}[a] }

// evidence is an answer, a text with the figures that support it, and the workloads that show it.
type evidence struct {
	answer
	text string
	on   []string
}

type half struct {
	name string
	evidence
}

// ledger tests every claim on every runtime. Claims that the result already has keep their
// verdicts, because a published result lacks the figures behind them.
func ledger(r *Result) ([]Claim, error) {
	table, err := claimTable()
	if err != nil {
		return nil, err
	}
	gpus := len(r.Environment.GPUs) > 0
	out := slices.Clone(r.Claims)
	for _, c := range table {
		i := slices.IndexFunc(out, func(old Claim) bool { return old.ID == c.ID })
		if i < 0 {
			i = len(out)
			out = append(out, Claim{ID: c.ID, Verdicts: r.verdicts(c)})
		}
		out[i].Text, out[i].Says, out[i].Needs = c.Text, c.Says, c.Needs
		if gpus {
			out[i].Needs = ""
		}
		out[i].Verdicts = r.withReasons(c, out[i].Verdicts)
	}
	return out, nil
}

func (r *Result) verdicts(c claimEntry) []ClaimVerdict {
	list := []ClaimVerdict{}
	if c.GPU && len(r.Environment.GPUs) == 0 {
		return list
	}
	for _, runtime := range Runtimes() {
		v := newView(r, runtime)
		if verdict, text := v.decide(c); verdict != "" {
			list = append(list, ClaimVerdict{Runtime: runtime, Verdict: verdict, Text: text,
				Combinations: slices.Sorted(maps.Keys(v.used))})
		}
	}
	return list
}

// withReasons adds the reasons why runtimes of the result have no verdict.
func (r *Result) withReasons(c claimEntry, list []ClaimVerdict) []ClaimVerdict {
	for _, runtime := range Runtimes() {
		ran := slices.ContainsFunc(r.Combinations, func(x Combination) bool { return x.Runtime == runtime })
		has := slices.ContainsFunc(list, func(v ClaimVerdict) bool { return v.Runtime == runtime })
		if why := c.Untested[runtime]; why != "" && ran && !has {
			list = append(list, ClaimVerdict{Runtime: runtime, Verdict: notTested, Text: why, Combinations: []string{}})
		}
	}
	return list
}

func (v view) decide(c claimEntry) (verdict, text string) {
	var halves []half
	for _, q := range c.Questions {
		if !v.among(q.Runtimes) {
			continue
		}
		var all []evidence
		for _, p := range q.Probes {
			if v.among(p.Runtimes) {
				all = append(all, tests[p.Test](v, p)...)
			}
		}
		e := pool(all...)
		if q.AtMostInPart {
			e.answer = min(e.answer, inPart)
		}
		if e.answer != missing {
			e.text = sentences(e.text, cmp.Or(q.Notes[e.answer.String()], q.Notes["any"]))
		}
		if q.Silent {
			e.text = ""
		}
		if !c.Any || e.answer != missing {
			halves = append(halves, half{q.Name, e})
		}
	}
	if len(halves) == 1 {
		halves[0].name = ""
	}
	if len(halves) == 0 {
		return "", ""
	}
	return c.settle(halves...)
}

func (v view) among(runtimes []string) bool {
	return len(runtimes) == 0 || slices.Contains(runtimes, v.runtime)
}

// pairs returns the measurements of a probe, each with the measurement that it is compared with.
func pairs(p probe) (list [][2]string) {
	for _, from := range p.Runs {
		runs := []string{from}
		if from == "own growth" || from == "fixed batch" {
			runs = workloadsOf(from)
		}
		for _, run := range runs {
			remedies := p.Remedies
			if len(remedies) == 0 {
				remedies = []string{""}
			}
			workload, _, _ := strings.Cut(run, "/")
			other := cmp.Or(p.Against, workload)
			if strings.HasPrefix(other, "/") {
				other = workload + other
			}
			for _, remedy := range remedies {
				name := run
				if remedy != "" {
					name += "/" + remedy
				}
				list = append(list, [2]string{name, other})
			}
		}
	}
	return list
}

// workloadsOf returns the workloads of a set: for "own growth", those that neither grow nor crash
// on purpose, and for "fixed batch", those with one batch size.
func workloadsOf(kind string) (ids []string) {
	out := []string{"W1", "W10", User}
	if kind == "fixed batch" {
		out = []string{"W1", "W3", "W9", "S3v", User}
	}
	for _, w := range Workloads() {
		if w.Limit == 0 && !slices.Contains(out, w.ID) {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

// pool combines the answers of several measurements to one question. Claims are general, so the
// answer is yes only if all measurements answer yes. It is no only if all decided measurements
// answer no and fewer measurements are undecided.
func pool(all ...evidence) evidence {
	var sum evidence
	var texts []string
	known, open := 0, 0
	for _, e := range all {
		texts = append(texts, e.text)
		switch {
		case e.answer == unclear:
			open++
		case e.known():
			if known++; known == 1 {
				sum.answer = e.answer
			} else if e.answer != sum.answer {
				sum.answer = inPart
			}
			sum.on = append(sum.on, e.on...)
		}
	}
	switch {
	case open == 0:
	case sum.answer == yes:
		sum.answer = inPart
	case open >= known && sum.answer != inPart:
		sum.answer = unclear
	}
	if known > 0 && open > 0 {
		texts = append(texts, fmt.Sprintf("not decided by %d of %d measurements", open, known+open))
	}
	slices.Sort(sum.on)
	sum.on = slices.Compact(sum.on)
	sum.text = sentences(texts...)
	return sum
}

func not(e evidence) evidence {
	switch e.answer {
	case yes:
		e.answer = no
	case no:
		e.answer = yes
	}
	return e
}

// combined returns the verdict on a claim by the answers to its questions.
func (c claimEntry) combined(all []answer) string {
	is := func(want answer) bool { return !slices.ContainsFunc(all, func(a answer) bool { return a != want }) }
	switch {
	case is(no), c.Mainly && all[0] == no:
		return doesNotHold
	case is(yes):
		return holds
	}
	return holdsInPart
}

// settle returns the verdict on the claim if it is the same for every possible answer to the open
// questions. Otherwise the claim is undecided, or untested ("") if a question was not measured. If
// one workload alone shows the answer yes, the claim holds in part, since the cause may be specific
// to that workload.
func (c claimEntry) settle(halves ...half) (verdict, text string) {
	var texts, left []string
	var low, high []answer
	untested, seen := false, false
	for _, h := range halves {
		least, most := h.answer, h.answer
		if !h.known() {
			least, most = no, yes
		}
		low, high = append(low, least), append(high, most)
		switch h.answer {
		case missing:
			untested = true
			left = append(left, h.name+" was not part of this matrix")
		case unclear:
			left = append(left, h.name+" is not decided")
		}
		seen = seen || h.answer != missing
		texts = append(texts, h.text)
	}
	if verdict = c.combined(low); verdict != c.combined(high) {
		verdict = undecided
	}
	if !seen || verdict == undecided && untested {
		return "", ""
	}
	if len(halves) == 1 {
		left = nil // the question has no name
	}
	for _, h := range halves {
		if verdict != doesNotHold && h.answer == yes && len(h.on) < 2 {
			left = append(left, fmt.Sprintf("%s is shown on %s alone", cmp.Or(h.name, "it"), strings.Join(h.on, "")))
			if verdict == holds {
				verdict = holdsInPart
			}
		}
	}
	return verdict, sentences(append(texts, left...)...)
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(parts), func(s string) bool { return s == "" }), "; ")
}

// sentences joins parts with ". ", without a final full stop. Names keep their case at the
// beginning of a sentence.
func sentences(parts ...string) string {
	var list []string
	for _, part := range parts {
		part = strings.TrimSuffix(part, ".")
		word, _, _ := strings.Cut(part, " ")
		if !strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsLower(r) }) && word != "" {
			part = string(unicode.ToUpper(rune(part[0]))) + part[1:]
		}
		if part != "" && !slices.Contains(list, part) {
			list = append(list, part)
		}
	}
	return strings.Join(list, ". ")
}
