// Package savedmodels reads trainable TensorFlow SavedModels: it finds the purpose of each
// signature and reports what would go wrong in training, before anything runs.
//
// It is pure Go and needs no TensorFlow. It does not run models or read their weights, as
// package session does with the names to feed and fetch from here, and writes none.
//
// Open reads saved_model.pb within limits on size and memory, picks a metagraph, and
// follows the graph from every signature through the functions that it calls. The facts
// (which variables a signature reads and writes, which operations touch files) stay and
// the graph is dropped. Model.Roles, the signature chosen for each purpose, and
// Model.Problems derive from the facts. CheckTrainable turns them into an error;
// WriteText and MarshalJSON print them for `steadyfit inspect`.
//
// A SavedModel is a program: a signature can read files, write them and use the network,
// and part of the program runs when the model is loaded. The check for such operations is
// a list (unsafeOps), which can be incomplete. It is no sandbox: run models that you do not
// trust in a container.
package savedmodels
