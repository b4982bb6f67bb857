package matrix

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"steadyfit/internal/lab/claims"
)

const (
	holds       = "holds"
	holdsInPart = "holds in part"
	doesNotHold = "does not hold"
	undecided   = "undecided"
)

// answer is the answer of measurements to a question.
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

// evidence is an answer, its figures in sentences, and the workloads that show it.
type evidence struct {
	answer
	text string
	on   []string
}

type half struct {
	name string
	evidence
}

// ledger tests every claim on every runtime.
func ledger(r *Result) ([]Claim, error) {
	table, err := claims.Table()
	if err != nil {
		return nil, err
	}
	combinations, runs := make(map[combinationID]*Combination), make(map[combinationID][]*RunResult)
	for i := range r.Combinations {
		c := &r.Combinations[i]
		combinations[combinationID{c.Runtime, c.Workload, c.Remedy}] = c
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		id := combinationID{run.Runtime, run.Workload, run.Remedy}
		runs[id] = append(runs[id], run)
	}
	gpus := len(r.Environment.GPUs) > 0
	var out []Claim
	for _, c := range table {
		entry := Claim{ID: c.ID, Text: c.Text, Says: c.Says, Verdicts: []ClaimVerdict{}, Needs: c.Needs}
		if gpus {
			entry.Needs = ""
		}
		for _, runtime := range Runtimes() {
			if c.GPU && !gpus {
				continue
			}
			v := view{runtime: runtime, gpus: gpus, seed: uint64(r.Settings.Seed), combinations: combinations, runs: runs, used: make(map[string]bool)}
			if verdict, text := v.decide(c); verdict != "" {
				entry.Verdicts = append(entry.Verdicts, ClaimVerdict{Runtime: runtime, Verdict: verdict, Text: text, Combinations: slices.Sorted(maps.Keys(v.used))})
			}
		}
		out = append(out, entry)
	}
	return out, nil
}

func (v view) decide(c claims.Claim) (verdict, text string) {
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
	rule := equally
	if c.Mainly {
		rule = mainly
	}
	return settle(rule, halves...)
}

func (v view) among(runtimes []string) bool {
	return len(runtimes) == 0 || slices.Contains(runtimes, v.runtime)
}

// pairs returns the measurements of a probe, each with the one that it is compared with.
func pairs(p claims.Probe) (list [][2]string) {
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

// workloadsOf returns the workloads of a set: "own growth" are those that neither grow nor
// crash on purpose, "fixed batch" those with one batch size.
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

// pool combines several measurements of one question. Claims are general: a no refutes a claim
// unless as many measurements are undecided, and a yes needs all measurements.
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

func equally(all []answer) string {
	switch {
	case !slices.ContainsFunc(all, func(a answer) bool { return a != yes }):
		return holds
	case !slices.ContainsFunc(all, func(a answer) bool { return a != no }):
		return doesNotHold
	}
	return holdsInPart
}

// mainly is the rule of claims that do not hold if their first question is answered no.
func mainly(all []answer) string {
	if all[0] == no {
		return doesNotHold
	}
	return equally(all)
}

// settle returns the verdict that the rule has for every possible answer of the open questions.
// Otherwise the claim is undecided, or untested ("") if a question was not measured. If one
// workload alone shows the answer yes, the claim holds in part, since the cause may be specific
// to that workload.
func settle(rule func([]answer) string, halves ...half) (verdict, text string) {
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
	if verdict = rule(low); verdict != rule(high) {
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
