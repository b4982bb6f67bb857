// Package session opens a trainable SavedModel in TensorFlow, runs its signatures on batches
// of data, saves and restores its state, and writes the trained SavedModel.
//
// Epochs, hooks and checkpoints belong to package fit, reading SavedModels to package
// savedmodels, and reading data to package data.
//
// Compile decides how a model trains with the given Options, and Open loads it. Train,
// Evaluate and the Steps of Prepare then feed batches. Step.put copies a data.Array into the
// native buffer of an input and converts its element type, or lets TensorFlow read it in
// place. Running a step crosses into C once, and reading a scalar does not allocate. Loss
// scaling, micro-batches (SetMicroBatches) and several steps per execution (Stack and TrainN)
// cost nothing unless they are used.
//
// Train and Evaluate share the running metrics of a model with the signature reset_metrics:
// call ResetMetrics at the start of an epoch and of an evaluation.
//
// Reset returns a session to a Snapshot, with or without loading the model again.
// UseEnvironment and UseReleaseProfile restart the program with the settings that TensorFlow
// reads only once.
//
// A Session owns the native session, its graph and its variables; a Step owns its input
// buffers. Both must be closed. Close discards variables that were not saved.
package session
