package matrix

import (
	"maps"
	"slices"
	"time"

	"steadyfit/internal/texts"
	"steadyfit/option"
)

// The runs of a quick matrix: the most common remedies, on workloads that they are supposed to help.
var (
	quickWorkloads = []string{"W2", "W4", "S3"}
	quickRemedies  = []string{
		"W2/close", "W2/gc-epoch", "W2/batch-half",
		"W4/close-all", "W4/gc-epoch", "W4/trim",
		"S3/trim", "S3/system-allocator", "S3/batch-half",
	}
	// quickUser has the remedies for the workload user.
	quickUser = []string{"trim", "system-allocator", "batch-half", "micro-4", "reload", "onednn-off"}
)

const (
	// quickPairs is the minimum number of pairs that gives useful intervals.
	quickPairs = 3
	// quickTime is the time of a quick matrix without Plan.Within.
	quickTime = 270 * time.Second
	// quickSteps is the most steps of a run of the workload user.
	quickSteps = 200
)

// quickLengths has the steps of a quick matrix, the fewest for a useful verdict, and its batches.
var quickLengths = map[string]struct{ steps, batch int }{"W2": {48, 8}, "W4": {18, 8}, "S3": {28, 16}}

// A run of the workload user has about userSamples samples, userEpochs epochs, and at least
// UserLeast steps. Fewer samples would decide nothing.
const (
	userSamples = 100
	userEpochs  = 10
	UserLeast   = 40
)

// calibrated are workloads that are part of every matrix. The first does not leak; the second leaks a
// known amount.
var calibrated = []string{"W0", "W1"}

// Choose sets the workloads and the remedies of the plan, by their names. Without names, a plan with Quick has
// its own, one with User has the workload user, and others have all. steps and batch are those of the workload
// user. A named workload that none of Plan.Runtimes has is an error.
func (p *Plan) Choose(workloads, remedies []string, steps, batch int) error {
	workloads, remedies, err := p.named(workloads, remedies)
	if err != nil {
		return err
	}
	for _, id := range workloads {
		switch w, err := FindWorkload(id); {
		case id == All:
		case err != nil:
			return option.Errorf("{Plan.Workloads}: %w", err)
		case !slices.ContainsFunc(p.Runtimes, w.runsOn):
			return option.Errorf("{Plan.Workloads}: %s has no program for %s, but for %s: name that in {Plan.Runtimes}", id,
				texts.List(p.Runtimes, "or"), texts.List(slices.Sorted(maps.Keys(w.Takes)), "and"))
		}
	}
	all := len(workloads) == 0 || slices.Contains(workloads, All)
	wanted := append(slices.Clone(calibrated), workloads...)
	for _, w := range Workloads() {
		p.setLength(&w, steps, batch)
		present := w.ID != Program && (w.ID != User || p.User != "")
		if slices.Contains(wanted, w.ID) || all && present {
			p.Workloads = append(p.Workloads, w)
		}
	}
	chosen, err := ParseSelection(remedies)
	if err != nil {
		return option.Errorf("{Plan.Remedies}: %w", err)
	}
	for _, r := range Remedies() {
		if chosen.Names(r.ID) {
			p.Remedies = append(p.Remedies, r)
		}
	}
	p.Select = func(runtime, workload, remedy string) bool {
		// Calibration workloads have no remedies unless they are named.
		return (all || slices.Contains(workloads, workload)) && chosen.Selects(runtime, workload, remedy)
	}
	return nil
}

// setLength sets the length of the workload user, and of the workloads of a quick matrix.
func (p *Plan) setLength(w *Workload, steps, batch int) {
	if p.Quick {
		steps = min(steps, quickSteps)
	}
	if w.ID == User {
		w.Steps, w.Every, w.Epoch, w.Batch = steps, max(1, steps/userSamples), max(1, steps/userEpochs), batch
	}
	if length, ok := quickLengths[w.ID]; ok && p.Quick {
		w.Steps, w.Every, w.Epoch, w.Batch = length.steps, 1, length.steps/4, length.batch
	}
}

// named returns the names in a plan with Quick, or those that are given.
func (p *Plan) named(workloads, remedies []string) (ws, rs []string, err error) {
	if p.Quick && p.Pairs == 0 {
		p.Pairs = quickPairs
	}
	switch {
	case p.Quick && (workloads != nil || remedies != nil):
		return nil, nil, option.Errorf("{Plan.Quick} has its own workloads and remedies: leave {Plan.Workloads} and " +
			"{Plan.Remedies} out")
	case p.Quick && p.User != "":
		return []string{User}, quickUser, nil
	case p.Quick:
		return quickWorkloads, quickRemedies, nil
	case workloads == nil && p.Program != nil:
		return []string{Program}, remedies, nil
	case workloads == nil && p.User != "":
		return []string{User}, remedies, nil
	}
	return workloads, remedies, nil
}
