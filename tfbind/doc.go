// Package tfbind binds the TensorFlow C API: tensors, graphs, sessions and prepared steps. It
// runs existing SavedModels and GraphDefs and does not build models.
//
// It is the only package of steadyfit that uses cgo. A program builds without TensorFlow,
// because the library is found and opened at run time, by [Load] or at the first use.
//
// [NewTensor] copies a Go slice into native memory. [Session.Run] takes and returns tensors. A
// training loop uses a [Step], which resolves names once, has a native buffer for each input,
// calls C once per run, and returns scalars without allocating. With [Step.Borrow], a step
// reads a large input directly from pinned Go memory.
//
// # Lifetimes
//
// A type with native memory has a Close method. Close may be called several times, and while
// another goroutine uses the object. The memory of the object is freed after its last use. A closed
// object returns [ErrClosed]. The garbage collector frees no native memory, because it does not see
// that memory and runs too late (tensorflow#57356). [Live] counts open objects. [Counts.Leaked]
// counts objects that became unreachable without Close. The
// profile "tfbind" of package runtime/pprof has the stacks at which open objects were made.
//
// # Concurrency
//
// Several goroutines may use a Session, a Graph or a Tensor. A Step is for one goroutine: using
// it during a run is an error.
//
// # Contexts
//
// TensorFlow can end a run early only by closing its session. A timeout in tensorflow.RunOptions
// has an effect only after the run has ended (measured with 2.21: a timeout of 200 ms for a step
// of 2.1 s returned after 2.1 s).
//
//   - If the context has ended before the run, nothing runs, and the error is the context's
//     cause.
//   - By default, a run in progress continues to its end and returns its results without an
//     error.
//   - With the option Abort, the session is closed and TensorFlow cancels what it can. The
//     method returns when the operations have ended. The error matches the context's cause and
//     [ErrClosed]. Some of the variables may be updated.
//   - A deadline has the effect of a cancellation at that time.
//   - No goroutine continues after the method returns.
package tfbind
