// Package contract has the names that a trainable SavedModel, the exporter's notes and the
// packages of this module have in common (docs/reference/contract.md).
package contract

// The reserved inputs and outputs of a training signature, and their values.
const (
	InputSampleWeight = "sample_weight" // float, shape [batch] or [batch, ...]
	InputLearningRate = "learning_rate" // float scalar
	InputSeed         = "seed"          // two int64 for stateless random operations
	InputLossScale    = "loss_scale"    // float scalar: multiplies the loss and divides the gradients
	InputGroupSize    = "group_size"    // int32 scalar: the number of workers

	OutputLoss        = "loss"         // float scalar
	OutputGradsFinite = "grads_finite" // bool scalar: whether the step was applied
)

// BuiltinPrefix begins the path of a built-in model or dataset, as in builtin:digits.
const BuiltinPrefix = "builtin:"

// MaxAhead is the maximum number of batches that data.Prefetch reads ahead.
const MaxAhead = 1 << 14

// Metrics of training with loss scaling: the scale of the next step, and the number of skipped
// steps.
const (
	MetricLossScale    = "loss_scale"
	MetricSkippedSteps = "skipped_steps"
)

// The values of savedmodels.Metadata.LossReduction that need special treatment with
// micro-batches.
const (
	ReductionWeighted = "mean_with_sample_weight" // the weighted sum divided by the sum of the weights
	ReductionSum      = "sum"
	// ReductionTrainedSum is a sum in training only: each evaluation adds a penalty to its loss.
	ReductionTrainedSum = "sum_in_training"
	// ReductionUnknown means that the losses of parts do not give that of the batch, as with masked
	// samples.
	ReductionUnknown = "unknown"
)

// The depths of a reset (session.Session.Reset, train.Reset).
const (
	ResetNone    = "none"
	ResetRestore = "restore" // writes the variables
	ResetReload  = "reload"  // closes the session and opens another one
	ResetProcess = "process" // ends the process; another one continues
)

// Codes of savedmodels.Problem that other packages need.
const (
	// CodeStateNotSaved means that training changes state that a checkpoint does not include,
	// such as a variable without a saver or a random generator.
	CodeStateNotSaved = "state-not-saved"
	// CodeNoSaver means that the model can be trained but its variables cannot be saved.
	CodeNoSaver = "no-saver"
	// CodeUnusableSignature means that a signature has the name of a role but cannot be used
	// for it.
	CodeUnusableSignature = "unusable-signature"
	// CodeMetadata means that the exporter's notes cannot be read.
	CodeMetadata = "metadata-unreadable"
)

// The graphs that savedmodels makes and session runs: those of several ranks (savedmodels.Parallel), and those
// of a train step on features (savedmodels.Features).
const (
	// ShareFlags is the number of flags at the beginning of a share, the vector that a rank sends
	// to the others in each step. The flag for finite gradients follows.
	ShareFlags = 2
	// ShareResults is the index of the first metric in a share.
	ShareResults = ShareFlags + 1
	// FirstInstance is the key of the first sum over ranks in a step. Other graphs use lower keys
	// for their sums.
	FirstInstance = 100
	// OriginalPrefix begins the name of the original train signature in Features.Model.
	OriginalPrefix = "original/"
)

// GroupKey returns the key of the group of all ranks in CollectiveReduceV2. The next key is that of
// CollectiveGatherV2, since a group serves one type of operation (tensorflow#48372). Each number of ranks has
// its own keys: TensorFlow ends a group for all of its ranks when a process joins it with another number.
func GroupKey(ranks int) int { return 2 * ranks }
