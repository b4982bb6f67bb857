// Package tfbind is the binding to the TensorFlow C API: tensors, graphs, sessions and
// prepared steps with explicit lifetimes. It is the only package of steadyfit that uses cgo.
// It builds without TensorFlow: the library is found and opened at run time, at first use or
// by [Load]. The package runs existing SavedModels and GraphDefs; it has no functions to build
// models.
//
// [NewTensor] copies a flat Go slice into native memory; [Session.Run] feeds tensors and
// returns new ones. A training loop uses a [Step], which resolves names once, owns a native
// buffer per input, crosses into C once per run, and returns scalars without allocating.
// [Step.Borrow] makes a step read a large input from Go's memory, which stays pinned while
// TensorFlow refers to it.
//
// # Lifetimes
//
// Every type that holds native memory has a Close method. Close is idempotent, and may be
// called while another goroutine uses the object: the memory is freed when the last use ends.
// Using a closed object returns [ErrClosed]. The garbage collector frees no native memory,
// since it does not see that memory and runs too late (tensorflow#57356). [Live] counts the
// open objects, and [Counts.Leaked] counts the objects that became unreachable without a
// Close. With the build tag leakcheck, [Leaks] reports where each leaked object was made.
//
// # Concurrency
//
// Several goroutines may use a Session, Graph or Tensor at once. A Step owns its input
// buffers: a second use while a run is in progress returns [ErrBusy] and changes nothing.
//
// # Contexts
//
// TensorFlow limits what a context can do. See [CancelMode].
package tfbind
