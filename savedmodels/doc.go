// Package savedmodels knows what a trainable TensorFlow SavedModel is: it reads
// one, finds what each of its signatures is for, and says what would go wrong
// with it before anything runs.
//
// It is pure Go and needs no TensorFlow. It does not load or run models, and
// it does not read their weights: that is package session's work, which takes
// from here the names to feed and to fetch. It does not write SavedModels.
//
// A model flows through it like this. Open reads saved_model.pb within fixed
// bounds on size and memory, picks the metagraph to use, and follows the graph
// from every signature down through the functions that it calls. What it finds
// (which variables a signature reads and writes, which operations touch files
// or the network) is kept as facts, and the graph is dropped. From the facts
// come Model.Roles, the signature chosen for each purpose, and Model.Problems.
// CheckTrainable turns these into one error for a caller about to train;
// WriteText and MarshalJSON turn the whole into what `steadyfit inspect` prints.
//
// A SavedModel is a program: a train signature can read files, write them and
// call out to the network, and part of the program runs as soon as the model
// is loaded. The check for such operations is a list (see unsafeOps) applied to
// everything reachable, and a list can be incomplete. It is a help in noticing,
// not a sandbox: run models that you do not trust in a container.
package savedmodels
