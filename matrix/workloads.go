package matrix

import (
	"fmt"
	"slices"
	"strings"

	"steadyfit/internal/nearest"
)

// Params that many workloads have, by what they work on.
var (
	// goTrainer are those of a training loop on this project's packages.
	goTrainer = []string{"reset", "micro", "prefetch", "eager", "model"}
	// galeoneTrainer are those of one on the Go binding that exists.
	galeoneTrainer = []string{"release", "reset", "model"}
	// kerasRuntime are those that every workload has on Keras, since it takes no
	// ConfigProto.
	kerasRuntime = []string{"intra", "inter", "jit", "grappler", "bf16"}
	// kerasFit are those of a training loop on Keras.
	kerasFit = []string{"loop", "clear_session", "del", "eager", "data", "prefetch", "cache", "callback", "mixed", "reset"}
	// kerasGenerator are the defaults of one whose images a generator makes.
	kerasGenerator = map[string]map[string]string{Keras: {"data": "generator"}}
)

// Workloads are all workloads that the matrix knows, in the order of the report.
func Workloads() []Workload {
	none, leak := int64(0), int64(64<<10)
	return []Workload{
		{
			ID: "W0", Title: "everything released", Leak: &none,
			What:     "a train step of a small convolutional model on a batch from memory; every tensor is closed",
			Expected: "a jump at the first step, then flat: the control",
			Model:    "digits-cnn", Steps: 1280, Every: 16, Epoch: 128, Batch: 32, Budget: 2 << 10,
			Takes: takes(goTrainer, galeoneTrainer, kerasFit),
			// The control has to release everything, and nothing else does it there.
			On: map[string]Variant{Galeone: {Params: map[string]string{"gc": "step"}}},
		},
		{
			ID: "W1", Title: "a fetched tensor kept", Leak: &leak,
			What:     "the step of W0, and one fetched tensor of 64 KiB that is never released",
			Expected: "a line of 65536 bytes per step: the calibration",
			Model:    "digits-cnn", Steps: 1200, Every: 12, Epoch: 120, Batch: 32, Budget: 4 << 10,
			Takes: takes([]string{"release"}, []string{"release"}, []string{"release"}),
			// What its other tensors leave to the collector would be in the slope; and the
			// first 17 MB of the leak are of memory that loading the model has freed.
			On: map[string]Variant{Galeone: {Steps: 2400, Every: 24, Epoch: 240, Params: map[string]string{"gc": "step"}}},
		},
		{
			ID: "W2", Title: "input tensors left to the collector",
			What:     "a train step on 8 images of 224x224x3, whose input tensors of 4.8 MB are made anew and left alone",
			Expected: "a line where nothing collects them, a saw-tooth where something does",
			Model:    "image-224", Steps: 96, Every: 1, Epoch: 12, Batch: 8, Budget: 64 << 10,
			Takes:    takes([]string{"release", "input", "eager", "model"}, []string{"release", "model"}, []string{"release", "input", "loop", "del", "clear_session", "eager", "data", "prefetch", "cache", "callback", "mixed"}),
			Defaults: kerasGenerator,
		},
		{
			ID: "W3", Title: "thousands of batch sizes",
			What:     "a prediction for a number of samples that is drawn from 1 to 3000",
			Expected: "a long ramp while oneDNN's caches fill, then a plateau",
			Model:    "digits", Steps: 4800, Every: 48, Epoch: 480, Batch: 1500, Budget: 8 << 10,
			On:    map[string]Variant{Keras: {Steps: 800, Every: 8, Epoch: 80}},
			Takes: takes([]string{"shapes", "model"}, []string{"release", "shapes", "model"}, []string{"shapes", "loop", "clear_session", "eager"}),
		},
		{
			ID: "W4", Title: "the model loaded for each step",
			What:     "the SavedModel is loaded anew, does one train step, and is dropped",
			Expected: "a line of the model's size; a plateau where all is closed",
			Model:    "image-224", Steps: 24, Every: 1, Epoch: 4, Batch: 8, Budget: 256 << 10,
			Takes: takes([]string{"close", "reuse", "model"}, []string{"release", "close", "reuse", "model"}, []string{"clear_session", "del", "reuse", "loop", "eager"}),
		},
		{
			ID: "W4s", Like: "W4", Title: "a small model loaded and closed 1,000 times",
			What:     "as W4, with a model of a few KiB, closed as its runtime's users close it",
			Expected: "flat; a line where closing a session leaves its graph to the collector",
			Params:   map[string]string{"close": "all"},
			On:       map[string]Variant{Galeone: {Params: map[string]string{"close": "session"}}},
			Model:    "digits", Steps: 1000, Every: 10, Epoch: 100, Batch: 32, Budget: 1 << 10,
			Takes: map[string][]string{Go: {"close", "reuse", "model"}, Galeone: {"release", "close", "reuse", "model"}},
		},
		{
			ID: "W5", Title: "a graph that grows",
			What:     "a constant of 4 KiB and an operation on it are added to the graph, and run",
			Expected: "worse than a line, and so is the time of a step",
			Steps:    384, Every: 6, Epoch: 48, Batch: 1, Budget: 2 << 10,
			Takes: takes([]string{"graph"}, []string{"release", "graph"}, []string{"graph", "clear_session"}),
		},
		{
			ID: "W6", Title: "new fetches each time",
			What:     "another set of a graph's 14 outputs is fetched",
			Expected: "a line: an executor is kept for each set",
			Steps:    600, Every: 6, Epoch: 60, Batch: 1, Budget: 2 << 10,
			Takes: takes([]string{"fetches"}, []string{"release", "fetches"}, []string{"fetches", "clear_session"}),
		},
		{
			ID: "W8", Title: "bursts of small tensors",
			What:     "320 tensors of 64 to 256 KiB from 8 threads, released out of order, a tenth of them a step later",
			Expected: "a ratchet, with malloc's memory in use flat: fragmentation",
			Steps:    800, Every: 8, Epoch: 80, Batch: 1, Budget: 16 << 10, NoSession: true,
			Takes: takes([]string{"goroutines"}, []string{"goroutines"}, []string{"goroutines"}),
		},
		{
			ID: "W9", Title: "XLA with varying shapes",
			What:     "a train step that XLA compiles, with a batch size that was never used before",
			Expected: "a line without end: the compilation cache drops nothing",
			Model:    "dense-100-64-1", Steps: 40, Every: 1, Epoch: 8, Batch: 64, Budget: 64 << 10,
			// Else XLA leaves shapes that come once to TensorFlow's own kernels.
			Env:      map[string]string{"TF_XLA_FLAGS": "--tf_xla_enable_lazy_compilation=false"},
			Takes:    takes([]string{"shapes", "jit", "model"}, []string{"release", "shapes", "jit", "model"}, []string{"shapes", "loop", "clear_session", "eager"}),
			Defaults: map[string]map[string]string{Keras: {"jit": "1"}},
		},
		{
			ID: "W10", Title: "a history of outputs",
			What:     "predictions for 256 samples, whose values are appended to a list",
			Expected: "a line on the host's heap",
			Model:    "digits", Steps: 4800, Every: 48, Epoch: 480, Batch: 256, Budget: 1 << 10,
			On:    map[string]Variant{Keras: {Steps: 960, Every: 12, Epoch: 96}},
			Takes: takes([]string{"history", "model"}, []string{"release", "history", "model"}, []string{"history", "loop", "clear_session", "del", "eager"}),
		},
		{
			ID: "W11", Title: "a shuffle buffer in the graph",
			What:     "a batch from a tf.data pipeline in the graph with a shuffle buffer, begun anew each epoch, and a train step on it",
			Expected: "a saw-tooth that stays on its level",
			Model:    "dense-784-10", Steps: 5120, Every: 40, Epoch: 64, Batch: 32, Budget: 4 << 10,
			Takes: takes(append([]string{"shuffle"}, goTrainer...), nil, []string{"shuffle", "prefetch", "loop", "clear_session", "del", "eager", "mixed"}),
		},
		{
			ID: "W12", Title: "tensors of strings",
			What:     "a tensor of 1000 strings of 10 to 200 bytes goes through a graph, is read back and released",
			Expected: "flat: TensorFlow mended a leak of theirs in 2021",
			Steps:    3200, Every: 32, Epoch: 320, Batch: 1, Budget: 2 << 10,
			Takes: takes([]string{}, []string{"release"}, []string{"release", "clear_session", "del"}),
		},
		{
			ID: "S0", Title: "a large data set",
			What:     "a train step of a dense model on 32 of 1,000,000 samples of 100 numbers, all held in memory",
			Expected: "no slope; the peak is that of the data",
			Model:    "dense-100-64-1", Steps: 18720, Every: 156, Epoch: 1872, Batch: 32, Budget: 512,
			On:    map[string]Variant{Keras: {Steps: 4680, Every: 39, Epoch: 468}},
			Takes: takes(append([]string{"data", "rows"}, goTrainer...), []string{"release", "data", "rows"}, append([]string{"rows"}, kerasFit...)),
		},
		{
			ID: "S1", Title: "a small dense model, validated",
			What:     "a train step on 32 of 1000 samples of 100 numbers; validation at each epoch's end",
			Expected: "a jump at the first step, then flat",
			Model:    "dense-100-64-1", Steps: 12800, Every: 128, Epoch: 32, Batch: 32, Budget: 1 << 10,
			On:    map[string]Variant{Keras: {Steps: 3200, Every: 32, Epoch: 32}},
			Takes: takes(goTrainer, galeoneTrainer, kerasFit),
		},
		{
			ID: "S1d", Title: "a dense model with dropout, validated",
			What:     "a train step on 64 of 10,000 samples of 200 numbers; validation at each epoch's end",
			Expected: "a larger jump at the first step, then flat",
			Model:    "dropout-200-512-256-1", Steps: 1570, Every: 10, Epoch: 157, Batch: 64, Budget: 2 << 10,
			Takes: takes(goTrainer, galeoneTrainer, kerasFit),
		},
		{
			ID: "S2", Title: "a classifier over epochs",
			What:     "a train step of a softmax classifier on 32 samples of 784 numbers",
			Expected: "flat: an epoch leaves nothing behind",
			Model:    "dense-784-10", Steps: 9600, Every: 96, Epoch: 320, Batch: 32, Budget: 1 << 10,
			On:    map[string]Variant{Keras: {Steps: 2400, Every: 24, Epoch: 80}},
			Takes: takes(goTrainer, galeoneTrainer, kerasFit),
		},
		{
			ID: "S2l", Title: "an LSTM over epochs",
			What:     "a train step of an LSTM classifier on 32 sequences",
			Expected: "flat: a layer keeps none of its computations",
			Model:    "lstm", Steps: 960, Every: 8, Epoch: 96, Batch: 32, Budget: 2 << 10,
			Takes: takes(goTrainer, galeoneTrainer, kerasFit),
		},
		imageVariant("S3", "images from a generator", "a generator makes 32 images of 224x224x3, as new tensors, for a train step of a convolutional model",
			"flat where the tensors are released, a crash under a limit where they are not", nil, 0),
		imageVariant("S3a", "images with augmentation", "the step of S3, on images that are flipped, cropped and jittered on the way",
			"flat: temporaries are released", map[string]string{"augment": "1"}, 0),
		imageVariant("S3v", "images in varying batches", "the step of S3, with 8 to 40 images", "flattens out: the pool is filled up",
			map[string]string{"shapes": "varying"}, 0),
		imageVariant("S3m", "images under a memory limit", "the step of S3 in a process that may use 768 MiB",
			"killed; smaller batches survive", nil, 768<<20),
		{
			ID: "S4", Title: "a classifier with a history",
			What:     "the step of S2, whose loss and metrics are kept",
			Expected: "a small slope on the host's heap",
			Model:    "dense-784-10", Steps: 18720, Every: 156, Epoch: 1872, Batch: 32, Budget: 128,
			Takes: takes(append([]string{"history"}, goTrainer...), []string{"release", "history", "model"}, append([]string{"history"}, kerasFit...)),
		},
		policyVariant("S5", "digits", 4800, 48),
		policyVariant("S5b", "digits-bf16", 4800, 48),
		policyVariant("S5h", "digits-fp16", 4800, 48),
		policyVariant("S5s", "digits-scaled", 4800, 48),
		policyVariant("S6", "digits-cnn", 960, 12),
		policyVariant("S6b", "digits-cnn-bf16", 960, 12),
		policyVariant("S6h", "digits-cnn-fp16", 960, 12),
		{
			ID: User, Title: "your own model",
			What:     "a train step of a model of yours, on your data or on made-up batches",
			Expected: "nothing was predicted",
			Steps:    1000, Every: 10, Epoch: 100, Batch: 32, Budget: 4 << 10,
			Takes: map[string][]string{Go: {"reset", "micro", "prefetch", "model"}},
		},
	}
}

// imageVariant is S3, or it with other knobs or a limit.
func imageVariant(id, title, what, expected string, knobs map[string]string, limit int64) Workload {
	inGo, inGaleone := []string{"input", "augment", "shapes", "prefetch", "micro", "eager", "release", "model"}, []string{"release", "augment", "shapes", "model"}
	like := "S3"
	if id == like {
		like = ""
	}
	return Workload{
		ID: id, Like: like, Title: title, What: what, Expected: expected, Params: knobs, Limit: limit,
		Model: "image-224", Steps: 64, Every: 1, Epoch: 8, Batch: 32, Budget: 256 << 10,
		Takes:    takes(inGo, inGaleone, append([]string{"input", "augment", "shapes"}, kerasFit...)),
		Defaults: kerasGenerator,
	}
}

// policyVariant is S2 with a model of digits, as exported under a dtype policy of Keras.
func policyVariant(id, model string, steps, every int) Workload {
	policy := "float32"
	switch {
	case strings.HasSuffix(model, "-bf16"):
		policy = "mixed_bfloat16"
	case strings.HasSuffix(model, "-fp16"):
		policy = "mixed_float16"
	case strings.HasSuffix(model, "-scaled"):
		policy = "mixed_float16, its loss scaled from outside"
	}
	return Workload{
		ID: id, Like: "S2", Title: model + ", exported in " + policy,
		What:     "a train step of " + model + " on 32 samples",
		Expected: "flat, whatever it computes in",
		Model:    model, Steps: steps, Every: every, Epoch: steps / 10, Batch: 32, Budget: 1 << 10,
		Takes: map[string][]string{Go: {"reset", "micro", "prefetch"}},
	}
}

// takes lists the knobs of the three runtimes. Those that every workload has on Keras
// are added; nil for galeone is a workload that it cannot run.
func takes(inGo, inGaleone, inKeras []string) map[string][]string {
	all := append(slices.Clone(inKeras), kerasRuntime...)
	slices.Sort(all)
	t := map[string][]string{Go: inGo, Keras: slices.Compact(all)}
	if inGaleone != nil {
		t[Galeone] = inGaleone
	}
	return t
}

// FindWorkload finds a workload by its ID; the error offers the nearest ones.
func FindWorkload(id string) (Workload, error) {
	var names []string
	for _, w := range Workloads() {
		if w.ID == id {
			return w, nil
		}
		names = append(names, w.ID)
	}
	names = nearest.Sort(id, names)
	return Workload{}, fmt.Errorf("%w: workload %q; the nearest are %s", ErrUnknown, id, strings.Join(names[:min(5, len(names))], ", "))
}
