// Package savedmodels reads trainable TensorFlow SavedModels. It finds the purpose of each
// signature and reports what would go wrong in training, before anything runs.
//
// The package is pure Go and needs no TensorFlow. It does not run models, read their weights,
// or write them. Package session runs them with the names to feed and fetch from here.
//
// Open reads saved_model.pb within limits on size and memory, picks a metagraph, and follows
// the graph from every signature through the functions that it calls. It keeps the facts
// (which variables a signature reads and writes, which operations touch files) and drops the
// graph. Model.Roles, the signature chosen for each purpose, and Model.Problems are derived
// from the facts. CheckTrainable turns them into an error; WriteText and MarshalJSON print
// them for `steadyfit inspect`.
//
// A SavedModel is a program: a signature can read and write files and use the network, and
// part of the program runs when the model is loaded. The check for such operations is a list
// (unsafeOps), which can be incomplete. It is not a sandbox: run models that you do not trust
// in a container.
package savedmodels
