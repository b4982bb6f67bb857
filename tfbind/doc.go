// Package tfbind is the binding to the TensorFlow C API: tensors, graphs,
// sessions and prepared steps with explicit lifetimes. It is the only package
// of steadyfit that uses cgo, and it needs no TensorFlow to build: the library
// is found and opened at run time, at first use or by [Load].
//
// It is not a way to write models in Go: it runs graphs that exist already,
// as SavedModels or GraphDefs. Gradients, layers and optimizers belong to
// whoever exported the graph.
//
// A value flows like this: [NewTensor] copies a flat Go slice into native
// memory; [Session.Run] feeds tensors and returns new ones; each
// is freed by its Close. A training loop uses a [Step] instead, which resolves
// names once, owns a native buffer for each input that is set, crosses into C once per run and
// hands scalars back without allocating; [Step.Borrow] has it read a large input from Go's
// memory, which is pinned for as long as TensorFlow refers to it.
//
// # Lifetimes
//
// Everything that holds native memory has a Close method that is idempotent,
// safe to defer, and safe to call while another goroutine uses the object: the
// memory goes when the last use ends. Using a closed object returns [ErrClosed].
// Nothing is ever freed by the garbage collector, since it does not see native
// memory and so runs too late (tensorflow#57356). [Live] tells what is held at
// any moment; objects that became unreachable without a Close are counted in
// [Counts.Leaked], and with the build tag leakcheck [Leaks] tells where each one
// was made.
//
// # Concurrency
//
// A Session, Graph or Tensor may be used by several goroutines at once. A Step
// may not, since it owns its input buffers: a second use while a run is under
// way returns [ErrBusy] and changes nothing.
//
// # Contexts
//
// What a context can do is limited by what TensorFlow can do. See [CancelMode].
package tfbind
