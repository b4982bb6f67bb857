// Package tfbind is the binding to the TensorFlow C API: tensors, graphs, sessions and
// prepared steps with explicit lifetimes. It is the only package of steadyfit that uses
// cgo, and builds without TensorFlow: the library is found and opened at run time, at
// first use or by [Load]. It runs existing graphs, SavedModels or GraphDefs, and is not for
// writing models.
//
// [NewTensor] copies a flat Go slice into native memory; [Session.Run] feeds tensors and
// returns new ones. A training loop uses a [Step], which resolves names once, owns a
// native buffer per input, crosses into C once per run, and returns scalars without
// allocating. [Step.Borrow] makes it read a large input from Go's memory, which stays
// pinned while TensorFlow refers to it.
//
// # Lifetimes
//
// Everything that holds native memory has a Close method that is idempotent, safe to
// defer, and safe to call while another goroutine uses the object: the memory is freed
// when the last use ends. Using a closed object returns [ErrClosed]. The garbage collector
// frees nothing, since it does not see native memory and runs too late (tensorflow#57356).
// [Live] counts the open objects; objects that became unreachable without a Close are in
// [Counts.Leaked], and with the build tag leakcheck [Leaks] says where each was made.
//
// # Concurrency
//
// Several goroutines may use a Session, Graph or Tensor at once. A Step owns its input
// buffers: a second use while a run is under way returns [ErrBusy] and changes nothing.
//
// # Contexts
//
// TensorFlow limits what a context can do. See [CancelMode].
package tfbind
