// Package savedmodels reads trainable TensorFlow SavedModels. It finds the purpose of each
// signature and reports, before anything runs, what would fail in training.
//
// The package is pure Go and needs no TensorFlow. It does not run models, and neither reads nor
// writes their weights. Package session runs models with the signatures that this package
// finds.
//
// Open reads saved_model.pb with limits on file size and memory, chooses a metagraph, and
// follows the graph of each signature through the functions that it calls. Open records facts,
// such as the variables that a signature reads and writes and the operations that access files,
// and drops the graph. Model.Roles and Model.Problems are derived from these facts.
// CheckTrainable returns the problems as an error. WriteText and MarshalJSON write them for
// `steadyfit inspect`.
//
// A SavedModel is a program. It can access files and the network, also while it is loaded. The
// check accepts only operations that are known to be safe (ops/safe.txt). It is not a sandbox: run
// untrusted models in a container.
package savedmodels
