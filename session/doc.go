// Package session is the life of a trainable SavedModel in TensorFlow: it opens
// one, steps its signatures on batches of data, saves and restores its state,
// writes the trained SavedModel, and closes everything again.
//
// It decides nothing about training: epochs, hooks and checkpoints are package
// fit's, which drives a *Session. It does not read SavedModels, which package
// savedmodels does, nor files of data.
//
// A value flows like this: Open takes what savedmodels.Open found and loads it
// into TensorFlow. Prepare turns a signature into a Step, whose Set or Feed
// copies a data.Array, converted to the signature's element type, into the
// native buffer of an input; Run crosses into C once; Float reads a scalar back
// without allocating. Train and Evaluate are such steps for the roles of the
// model, with the reserved inputs filled in; large batches of a dataset are read in place.
//
// Reset brings a session back to a Snapshot, with or without loading the model
// anew; SetMicroBatches has batches trained in parts. Supervise runs a training in
// a child process, and starts another one when it dies. UseEnvironment and
// UseReleaseProfile start the program anew with what TensorFlow reads only once.
//
// The Session owns the native session, its graph and its variables; a Step owns
// its input buffers. Both have to be closed. Variables live in the session and
// nowhere else: what is not saved is gone after Close.
package session
