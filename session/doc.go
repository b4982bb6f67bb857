// Package session opens a trainable SavedModel in TensorFlow, runs its signatures on batches
// of data, saves and restores its state, writes the trained SavedModel, and closes
// everything again.
//
// Epochs, hooks and checkpoints belong to package fit, reading SavedModels to package
// savedmodels, and reading data to package data.
//
// Compile decides how a model trains with some Options, and Open loads it. Train,
// Evaluate and the Steps of Prepare then feed batches: Step.put copies a data.Array into
// the native buffer of an input, converted to its element type, or lets TensorFlow read
// it in place. Running a step crosses into C once, and reading a scalar back does not
// allocate. Loss scaling, micro-batches (SetMicroBatches) and several steps per execution
// (Stack and TrainN) are only involved if they are used.
//
// Reset returns a session to a Snapshot, with or without loading the model again.
// UseEnvironment and UseReleaseProfile restart the program with the settings that
// TensorFlow reads only once.
//
// The Session owns the native session, its graph and its variables; a Step owns its input
// buffers. Both have to be closed. Variables that are not saved are gone after Close.
package session
