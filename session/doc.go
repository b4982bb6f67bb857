// Package session opens a trainable SavedModel in TensorFlow, runs its signatures on batches of
// data, saves and restores its variables, and writes the trained model.
//
// Compile decides how a model trains with some Options. Open loads it. Train, Evaluate and the
// Steps of Prepare run signatures on batches. Each execution crosses into C once. A batch is
// either copied into the native buffers of the inputs, with its element type converted, or read
// in place. Loss scaling, micro-batches (SetMicroBatches) and several steps per execution, which
// fit.Loop runs, take no time unless they are used.
//
// Train and Evaluate share the model's running metrics. Call ResetMetrics at the start of an
// epoch and of an evaluation.
//
// Reset gives memory back. UseEnvironment sets the environment variables that TensorFlow
// reads only once.
//
// A Session owns a native session with its graph and variables. A Step owns its input buffers.
// Both must be closed. Close discards unsaved variables.
//
// Other packages have epochs, hooks and checkpoints (fit), the description of a SavedModel
// (savedmodels), and datasets (data).
package session
