// Package flags names the flag of each option that the command line sets.
package flags

import (
	"strconv"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/memory"
)

var names = map[string]string{
	"Autotune.Cache":            "cache",
	"Autotune.Mode":             "auto",
	"Best":                      "keep-best",
	"Budget.Batch":              "batch",
	"Budget.Layer":              "memory-budget-of",
	"Budget.Limit":              "memory-budget",
	"CSVOptions.Header":         "header",
	"Checkpoint":                "checkpoints",
	"Checkpoints.Keep":          "keep",
	"Config.Augmentation":       "augment",
	"Config.Checkpoints":        "checkpoints",
	"Config.ClassWeights":       "class-weight",
	"Config.Model":              "model",
	"Config.OnOutOfMemory":      "on-oom",
	"Config.Out":                "out",
	"Config.Prefetch":           "prefetch",
	"Config.Resume":             "resume",
	"Config.Seed":               "seed",
	"Config.Supervise":          "supervise",
	"Config.Trace":              "in-force",
	"Config.Validation":         "validation",
	"Config.ValidationFraction": "validation",
	"Data.Header":               "header",
	"Data.Height":               "image-size",
	"Data.Label":                "label",
	"Data.Map":                  "map",
	"Data.Path":                 "data",
	"Data.Scale":                "scale",
	"Data.Width":                "image-size",
	"Data.Workers":              "workers",
	"EarlyStop":                 "early-stop",
	"EveryEpochs":               "every",
	"EverySteps":                "every",
	"HistoryFile":               "history",
	"ImageOptions.Size":         "image-size",
	"Keep":                      "keep",
	"Loop.Batch":                "batch",
	"Loop.DropRemainder":        "drop-remainder",
	"Loop.Epochs":               "epochs",
	"Loop.InitialEpoch":         "initial-epoch",
	"Loop.LearningRate":         "learning-rate",
	"Loop.Resume":               "resume",
	"Loop.ResumeAnyway":         "force",
	"Loop.Session":              "model",
	"Loop.StepsPerEpoch":        "steps-per-epoch",
	"Loop.Validation":           "validation",
	"Loop.ValidationEvery":      "validation-every",
	"InMemory.Drop":             "ignore-fields",
	"Model.WithLoss":            "loss-output",
	"Options.AllowInexactSplit": "inexact-micro-batches",
	"Options.Compiled":          "compiled",
	"Options.Deterministic":     "deterministic",
	"Options.GPUAllocator":      "gpu-allocator",
	"Options.InterThreads":      "inter-threads",
	"Options.IntraThreads":      "intra-threads",
	"Options.LossScale":         "loss-scale",
	"Options.MaxBytes":          "max-data",
	"Options.MemoryFraction":    "gpu-memory-fraction",
	"Options.MemoryGrowth":      "memory-growth",
	"Options.Precision":         "precision",
	"Options.StepsPerExecution": "fuse-steps",
	"Options.VirtualGPUs":       "gpu-memory-limit",
	"Options.VisibleGPUs":       "visible-gpus",
	"Options.XLA":               "xla",
	"Plan.Cache":                "cache",
	"ReduceOnPlateau":           "reduce-lr",
	"ResetPolicy.Depth":         "reset",
	"ResetPolicy.EveryEpochs":   "reset-every",
	"ResetPolicy.EverySteps":    "reset-every",
	"ResetPolicy.Layer":         "memory-budget-of",
	"ResetPolicy.Limit":         "reset-near",
	"ResetPolicy.Within":        "reset-within",
	"RestoreBest":               "restore-best",
	"Session.SetLearningRate":   "learning-rate",
	"Supervisor.Deadline":       "deadline",
	"Supervisor.Restarts":       "restarts",
	"supervise.Run":             "supervise",
}

var precisions = map[gpuopts.Precision]string{gpuopts.BFloat16: "bf16", gpuopts.Float16: "fp16", gpuopts.Float16CPU: "fp16", gpuopts.Float16GPU: "fp16"}

var layers = map[memory.Layer]string{memory.RSS: "rss", memory.Anon: "anon", memory.CgroupWorkingSet: "cgroup", memory.GPUProcess: "gpu"}

// Name is an option.Name: the flag of an option, with the value as the flag has it. Other
// names, such as those of variables, stay as they are.
func Name(option, value string) string {
	flag, ok := names[option]
	if !ok {
		return strings.TrimSpace(option + " " + value)
	}
	switch flag {
	case "xla":
		value = strconv.FormatBool(value != string(gpuopts.XLAOff))
	case "precision":
		value = precisions[gpuopts.Precision(value)]
	case "memory-budget-of":
		value = layers[memory.Layer(value)]
	case "gpu-allocator":
		value = strings.ToLower(value)
	case "visible-gpus":
		value = strings.Join(strings.Fields(strings.Trim(value, "[]")), ",")
	case "gpu-memory-limit":
		sizes := strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune("[] ", r) })
		for i := range sizes {
			sizes[i] += "MiB"
		}
		value = strings.Join(sizes, ",")
	}
	switch value {
	case "true":
		return "--" + flag
	case "false":
		return "--" + flag + "=false"
	}
	return strings.TrimSpace("--" + flag + " " + value)
}
