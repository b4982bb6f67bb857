package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"steadyfit/option"
)

// environment looks up a variable, as os.LookupEnv does.
type environment func(name string) (value string, ok bool)

func (e environment) get(name string) string {
	value, _ := e(name)
	return value
}

// FromEnvironment returns the cluster that a scheduler describes in the environment, or nil if this
// process trains alone. lookup is usually os.LookupEnv. The first of these variables that is set
// decides:
//   - TF_CONFIG, which Kubeflow's TFJob sets (training-operator, pkg/controller.v1/tensorflow). The
//     job named chief or master is rank 0, and the workers follow.
//   - PET_NNODES or JAX_NUM_PROCESSES, which Kubeflow Trainer sets (trainer,
//     pkg/runtime/framework/plugins). The host name of rank 0 must end in the index 0. The host
//     names of the other ranks differ from it in this index only.
//   - SLURM_STEP_NUM_TASKS, which Slurm's srun sets (slurm, src/common/env.c). A script of sbatch
//     outside of srun trains alone. Ports follow from the number of the job.
//
// For a cluster of one process, the result is nil.
func FromEnvironment(lookup func(name string) (value string, ok bool)) (*Cluster, error) {
	e := environment(lookup)
	switch {
	case e.get(envTFConfig) != "":
		return e.tfConfig()
	case e.get("PET_NNODES") != "":
		return e.indexed("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR",
			net.JoinHostPort(e.get("PET_MASTER_ADDR"), e.get("PET_MASTER_PORT")))
	case e.get("JAX_NUM_PROCESSES") != "":
		return e.indexed("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS", e.get("JAX_COORDINATOR_ADDRESS"))
	case e.get(slurmTasks) != "":
		return e.slurm()
	}
	return nil, nil
}

const (
	envTFConfig = "TF_CONFIG"
	slurmTasks  = "SLURM_STEP_NUM_TASKS"
)

// found returns the cluster that a variable describes; nil if it has one rank. An invalid cluster
// is an error about the variable.
func found(variable string, workers []string, rank int) (*Cluster, error) {
	c := &Cluster{Workers: workers, Rank: rank, From: variable}
	var invalid *option.Error
	if err := c.Check(); errors.As(err, &invalid) {
		return nil, &option.Error{Option: variable, Reason: fmt.Sprintf("%s %v: %s",
			strings.ToLower(strings.TrimPrefix(invalid.Option, "Cluster.")), invalid.Value, invalid.Reason), Fix: invalid.Fix}
	}
	if len(workers) == 1 {
		return nil, nil
	}
	return c, nil
}

// number returns the value of a variable that is a count or an index.
func (e environment) number(variable string, least, most int) (int, error) {
	text := e.get(variable)
	if text == "" {
		return 0, &option.Error{Option: variable, Reason: "missing",
			Fix: fmt.Sprintf("set a number from %d to %d", least, most)}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, &option.Error{Option: variable, Value: shorten(text),
			Reason: fmt.Sprintf("expected a number from %d to %d", least, most)}
	}
	return n, nil
}

func (e environment) tfConfig() (*Cluster, error) {
	refuse := func(reason, fix string) (*Cluster, error) {
		return nil, &option.Error{Option: envTFConfig, Reason: reason, Fix: fix}
	}
	// With enableDynamicWorker, TF_CONFIG has only this worker, in an object: cluster in
	// training-operator 1.9, and sparseCluster in earlier versions.
	incomplete := func() (*Cluster, error) {
		return refuse("the cluster does not list all workers", "set enableDynamicWorker of the TFJob to false")
	}
	var config struct {
		Cluster map[string][]string `json:"cluster"`
		Sparse  json.RawMessage     `json:"sparseCluster"`
		Task    struct {
			Type  string      `json:"type"`
			Index json.Number `json:"index"`
		} `json:"task"`
	}
	if err := json.Unmarshal([]byte(e.get(envTFConfig)), &config); err != nil {
		var sparse *json.UnmarshalTypeError
		if errors.As(err, &sparse) && sparse.Value == "object" {
			return incomplete()
		}
		return nil, &option.Error{Option: envTFConfig, Reason: "cannot be read as JSON of a cluster: " + shorten(err.Error()),
			Err: err}
	}
	if config.Sparse != nil {
		return incomplete()
	}
	task := config.Task.Type
	if task == "evaluator" {
		return refuse("this task is an evaluator, and validation is a part of the training",
			"remove the evaluator from the job")
	}
	for name, addresses := range config.Cluster {
		switch {
		case name == "worker", len(addresses) == 0:
		case name == "ps":
			return refuse("the cluster has parameter servers, and training has none", "use workers only")
		case name != "chief" && name != "master":
			return refuse(fmt.Sprintf("the cluster has a job named %q", shorten(name)), "use workers only")
		}
	}
	first := append(append([]string(nil), config.Cluster["chief"]...), config.Cluster["master"]...)
	workers := append(first, config.Cluster["worker"]...)
	if len(first) > 1 {
		return refuse("the cluster has more than one chief", "use one chief, or workers only")
	}
	if len(workers) == 0 {
		return nil, nil
	}
	rank, err := strconv.Atoi(config.Task.Index.String())
	switch {
	case len(workers) == 1:
		return found(envTFConfig, workers, 0)
	case err != nil || rank < 0 || rank >= len(config.Cluster[task]):
		return refuse(fmt.Sprintf("the cluster has no task %q with the index %q", shorten(task),
			shorten(config.Task.Index.String())), "set type and index of the task")
	case task == "worker":
		rank += len(first)
	}
	return found(envTFConfig, workers, rank)
}

// indexed returns the cluster of an environment that has the address of rank 0 only. The first
// label of the host name in this address ends in the index 0, as in train-node-0-0.train of a
// JobSet or train-0.train of an indexed Job.
func (e environment) indexed(count, index, variable, address string) (*Cluster, error) {
	if strings.Contains(e.get(count), ":") {
		return nil, &option.Error{Option: count, Value: shorten(e.get(count)),
			Reason: "the number of machines cannot change during a training", Fix: "set one number"}
	}
	n, err := e.number(count, 1, maxRanks)
	if err != nil || n == 1 {
		return nil, err
	}
	rank, err := e.number(index, 0, n-1)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, &option.Error{Option: variable, Value: shorten(address),
			Reason: "expected the address of rank 0 with a port", Err: err}
	}
	name, domain, dotted := strings.Cut(host, ".")
	stem, ok := strings.CutSuffix(name, "-0")
	if !ok {
		return nil, &option.Error{Option: variable, Value: shorten(host),
			Reason: "the addresses of the other ranks are unknown; they follow from a host name that ends in the index of " +
				"rank 0, as in train-node-0-0.train",
			Fix: "list the addresses of all ranks in a file"}
	}
	if dotted {
		domain = "." + domain
	}
	workers := make([]string, n)
	for i := range workers {
		workers[i] = net.JoinHostPort(fmt.Sprintf("%s-%d%s", stem, i, domain), port)
	}
	return found(variable, workers, rank)
}

// slurm returns the cluster of a step of Slurm. Its ranks are in blocks: those of the first node,
// then those of the second, and so on.
func (e environment) slurm() (*Cluster, error) {
	n, err := e.number(slurmTasks, 1, maxRanks)
	if err != nil || n == 1 {
		return nil, err
	}
	rank, err := e.number("SLURM_PROCID", 0, n-1)
	if err != nil {
		return nil, err
	}
	const nodes = "SLURM_STEP_NODELIST"
	hosts, err := expandHosts(e.get(nodes))
	if err != nil {
		return nil, &option.Error{Option: nodes, Value: shorten(e.get(nodes)), Reason: err.Error(), Err: err}
	}
	perNode := "SLURM_STEP_TASKS_PER_NODE"
	if e.get(perNode) == "" {
		perNode = "SLURM_TASKS_PER_NODE"
	}
	counts, err := expandCounts(e.get(perNode))
	if err == nil && len(counts) != len(hosts) {
		err = fmt.Errorf("describes %d nodes, but %s has %d", len(counts), nodes, len(hosts))
	}
	if err != nil {
		return nil, &option.Error{Option: perNode, Value: shorten(e.get(perNode)), Reason: err.Error(), Err: err}
	}
	base, node, local := e.slurmPort(), 0, 0 // the node of this rank, and its index on the node
	var workers []string
	for i, host := range hosts {
		for j := range counts[i] {
			if len(workers) == rank {
				node, local = i, j
			}
			if workers = append(workers, net.JoinHostPort(host, strconv.Itoa(base+j))); len(workers) > n {
				break
			}
		}
	}
	if len(workers) != n {
		return nil, &option.Error{Option: perNode, Value: shorten(e.get(perNode)),
			Reason: fmt.Sprintf("expected %d tasks on all nodes together, as %s says", n, slurmTasks)}
	}
	for variable, want := range map[string]int{"SLURM_NODEID": node, "SLURM_LOCALID": local} {
		if text := e.get(variable); text != "" && text != strconv.Itoa(want) {
			return nil, &option.Error{Option: variable, Value: shorten(text),
				Reason: fmt.Sprintf("expected %d for task %d, since the tasks of a node must be consecutive", want, rank),
				Fix:    "use srun --distribution=block"}
		}
	}
	return found(nodes, workers, rank)
}

// slurmPort returns the port of the first task of each node. It is below the ports that Linux uses
// for outgoing connections (from 32768). Jobs that share a node have different ports unless their
// numbers are equal modulo 625 or they have more than 32 tasks per node.
func (e environment) slurmPort() int {
	job, _ := strconv.ParseUint(e.get("SLURM_JOB_ID"), 10, 32) // 0 is a valid number, too
	step, _ := strconv.ParseUint(e.get("SLURM_STEP_ID"), 10, 32)
	return 12000 + int((job+step)%625)*32
}

// maxBrackets is the largest number of bracketed lists in a name. Slurm has at most one per
// dimension of the network, of which there are five (HIGHEST_DIMENSIONS).
const maxBrackets = 5

var errHosts = fmt.Errorf("expected a list of at most %d hosts, as in a1,b[01-03,7]", maxRanks)

// expandHosts expands a list of hosts of Slurm, such as login1,n[01-03,7]-ib.
func expandHosts(text string) (hosts []string, err error) {
	for text != "" {
		end, depth := 0, 0
		for ; end < len(text) && (depth > 0 || text[end] != ','); end++ {
			switch text[end] {
			case '[':
				depth++
			case ']':
				depth--
			}
		}
		names, err := expandName(text[:end], maxBrackets)
		if hosts = append(hosts, names...); err != nil || len(hosts) > maxRanks {
			return nil, errHosts
		}
		if end == len(text) {
			return hosts, nil
		}
		text = text[end+1:]
	}
	return nil, errHosts // empty, or a comma at the end
}

// expandName expands one name with at most the given number of bracketed lists.
func expandName(text string, brackets int) ([]string, error) {
	before, rest, ok := strings.Cut(text, "[")
	if !ok {
		if text == "" && brackets == maxBrackets {
			return nil, errHosts
		}
		return []string{text}, nil
	}
	list, after, ok := strings.Cut(rest, "]")
	if !ok || brackets == 0 {
		return nil, errHosts
	}
	tails, err := expandName(after, brackets-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for item := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(item, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.ParseUint(low, 10, 32)
		last, err2 := strconv.ParseUint(high, 10, 32)
		if err1 != nil || err2 != nil || last < first || len(low) > 20 || int(last-first) >= maxRanks ||
			len(names)+int(last-first+1)*len(tails) > maxRanks {
			return nil, errHosts
		}
		for n := first; n <= last; n++ {
			for _, tail := range tails {
				names = append(names, fmt.Sprintf("%s%0*d%s", before, len(low), n, tail))
			}
		}
	}
	return names, nil
}

// expandCounts expands numbers of tasks per node of Slurm, such as 2(x3),1.
func expandCounts(text string) (counts []int, err error) {
	for item := range strings.SplitSeq(text, ",") {
		number, times, repeated := strings.Cut(item, "(x")
		n, err := strconv.Atoi(number)
		repeat := 1
		if repeated && err == nil {
			repeat, err = strconv.Atoi(strings.TrimSuffix(times, ")"))
		}
		if err != nil || n < 0 || n > maxRanks || repeat < 1 || repeat > maxRanks-len(counts) {
			return nil, errors.New("expected numbers of tasks, as in 2(x3),1")
		}
		for range repeat {
			counts = append(counts, n)
		}
	}
	return counts, nil
}
