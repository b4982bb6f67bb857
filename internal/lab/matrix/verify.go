package matrix

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/runner"
	"steadyfit/internal/tfprocess"
)

// Go reads the variables in goVariables, and the C library's malloc reads those with the prefix
// mallocVariables.
var goVariables = []string{"GOGC", "GOMEMLIMIT"}

const mallocVariables = "MALLOC_"

// verify returns the reason why a remedy had no effect on a run, or "". unseen lists what it
// could not check.
func (p *Plan) verify(j job, o *runner.Observed, v variables) (reason, unseen string) {
	r := j.remedy
	if r.Preload != "" && !strings.Contains(o.Maps, tfprocess.Allocators[r.Preload].File) {
		return fmt.Sprintf("%s was not loaded: it is not among the mappings of the process",
			tfprocess.Allocators[r.Preload].File), ""
	}
	var doubts []string
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		reader, libraries := "this TensorFlow", p.libraries(j.runtime, o)
		if a := tfprocess.Allocators[r.Preload]; r.Preload != "" && strings.HasPrefix(name, a.Variables) {
			path, err := p.Allocator(r.Preload)
			if err != nil {
				return err.Error(), ""
			}
			reader, libraries = "this "+r.Preload, []string{path}
		} else if strings.HasPrefix(name, mallocVariables) {
			if in := o.Facts[program.FactAllocator]; in != "" && in != "glibc" {
				return fmt.Sprintf("%s is read by the malloc of the C library, and the process has that of %s", name, in), ""
			}
			continue
		} else if slices.Contains(goVariables, name) {
			continue
		}
		switch known, err := v.read(libraries, name); {
		case err != nil:
			doubts = append(doubts, fmt.Sprintf("whether %s reads %s is not known: %v", reader, name, err))
		case !known:
			return fmt.Sprintf("%s does not read %s: the name is nowhere in its libraries", reader, name), ""
		}
	}
	for _, fact := range slices.Sorted(maps.Keys(r.Traced)) {
		count, traced := o.Facts[fact]
		switch {
		case !traced:
			doubts = append(doubts, p.whyUntraced(j))
		case r.Traced[fact] && count == "0":
			return fmt.Sprintf("the graph that ran has no %s", fact), ""
		case !r.Traced[fact] && count != "0":
			return fmt.Sprintf("the graph that ran has %s %s", count, fact), ""
		}
	}
	doubts = append(doubts, r.Unseen)
	doubts = slices.DeleteFunc(doubts, func(text string) bool { return text == "" })
	return "", strings.Join(slices.Compact(doubts), "; ")
}

// libraries returns the TensorFlow libraries of a run.
func (p *Plan) libraries(runtime string, o *runner.Observed) []string {
	if runtime != Program {
		return p.Commands[runtime].Libraries
	}
	return slices.Compact(slices.Sorted(slices.Values(mapped.FindAllString(o.Maps, -1))))
}

// mapped matches TensorFlow's libraries among the mappings of a process.
var mapped = regexp.MustCompile(`/\S*/libtensorflow\S*`)

// whyUntraced returns the reason why a run has no traced step.
func (p *Plan) whyUntraced(j job) string {
	if j.workload.Limit > 0 {
		return "no step is traced under a memory limit"
	}
	return "its step cannot be traced"
}

// unseenTrace returns the reason why traced steps do not show that a remedy took effect: the
// baseline has the same operations.
func unseenTrace(r Remedy, base []*RunResult) string {
	for _, fact := range slices.Sorted(maps.Keys(r.Traced)) {
		for _, run := range base {
			switch count, traced := run.Facts[fact]; {
			case !traced:
			case r.Traced[fact] && count != "0":
				return fmt.Sprintf("the graph that ran without it has %s %s, too", count, fact)
			case !r.Traced[fact] && count == "0":
				return fmt.Sprintf("the graph that ran without it has no %s, either", fact)
			}
		}
	}
	return ""
}

var operationFacts = []string{program.FactOperations, program.FactBFloat16, program.FactFloat16, program.FactRecomputed,
	program.FactClusters, program.FactOneDNN, program.FactCalls}

// unseenPairs returns the reason why a pair of runs does not show that a remedy took effect: the
// run with the remedy has as many operations of each kind, or the same final loss, as the baseline.
// If the losses of the baseline runs differ from each other, losses show nothing.
func unseenPairs(r Remedy, runs, base []*RunResult) string {
	if len(runs) != len(base) {
		return ""
	}
	loss := func(run *RunResult) string { return run.Facts[program.FactLossLast] }
	facts := operationFacts
	if !slices.ContainsFunc(base, func(run *RunResult) bool { return loss(run) != loss(base[0]) }) {
		facts = append(slices.Clip(facts), program.FactLossLast)
	}
	for i, run := range runs {
		without := base[i]
		_, traced := run.Facts[program.FactOperations]
		switch {
		case run.Failure != "" || without.Failure != "":
		case r.OtherGraph && !traced:
			return "its step cannot be traced"
		case r.OtherGraph && !slices.ContainsFunc(facts,
			func(fact string) bool { return run.Facts[fact] != without.Facts[fact] }):
			return "a traced step has as many operations of each kind as without it, and the loss is the same"
		case !r.OtherLoss:
		case loss(run) == "" || loss(without) == "":
			return "there is no loss to compare"
		case loss(run) == loss(without):
			return "the loss at the end is that without it, bit for bit"
		case loss(without) != loss(base[0]) && base[0].Failure == "":
			return "the losses without it differ from run to run"
		}
	}
	return ""
}

// needle returns the text by which a library that reads a variable can be recognized: the name
// without the prefix that the library adds when it runs. oneDNN adds the prefixes oneDNN_ and DNNL_
// (getenv_int_user in utils.cpp), mimalloc adds mimalloc_ (mi_option_init in options.c).
func needle(name string) string {
	for _, prefix := range []string{"ONEDNN_", "DNNL_"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return rest
		}
	}
	if rest, ok := strings.CutPrefix(name, tfprocess.Allocators["mimalloc"].Variables); ok {
		return strings.ToLower(rest)
	}
	return name
}

// variables caches whether a library contains the name of an environment variable. A key is the path of the
// library and the name.
type variables map[[2]string]bool

// read reports whether one of the libraries contains the name of a variable.
func (v variables) read(libraries []string, name string) (bool, error) {
	if len(libraries) == 0 {
		return false, errors.New("no library to look into")
	}
	for _, library := range libraries {
		key := [2]string{library, name}
		if _, known := v[key]; !known {
			found, err := hasString(library, needle(name))
			if err != nil {
				return false, err
			}
			v[key] = found
		}
		if v[key] {
			return true, nil
		}
	}
	return false, nil
}

// unmeasurable reports whether a remedy could not be applied.
func unmeasurable(f runner.Failure) bool {
	return f == runner.NotApplicable || f == runner.CouldNotApply
}

// hasString reports whether a file has a name as a C string, with a zero byte after it.
//
// The text before a name is ignored, since compilers store a string that is the end of another one only
// once. A name that is found wrongly does less harm to callers than a name that is not found.
func hasString(path, name string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	text, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return false, err
	}
	found := bytes.Contains(text, append([]byte(name), 0))
	return found, unix.Munmap(text)
}
