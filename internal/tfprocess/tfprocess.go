// Package tfprocess is about the process that TensorFlow runs in: its environment variables, which it reads as
// TensorFlow does, the malloc libraries that can be preloaded, and functions that report on TensorFlow and
// malloc in this process or change their settings. Importing package tfbind sets the functions.
package tfprocess

// OneDNN reports whether TensorFlow computes with oneDNN on the CPU. TensorFlow decides that by
// TF_ENABLE_ONEDNN_OPTS or the processor (IsMKLEnabled in tensorflow/core/util/util.cc).
// Without oneDNN, kernels round differently, and large blocks come from malloc instead of a
// pool. known is false if no library is open or the library does not report it.
var OneDNN func() (on, known bool)

// Environment returns os.Environ at the time when the library was opened. ok is false if no
// library is open. The caller must not change the result.
var Environment func() (env []string, ok bool)

// FirstSession returns the serialized tensorflow.ConfigProto and the environment at the time of
// the first session that was opened. TensorFlow sets up its devices and their
// threads with them. ok is false if there was none.
var FirstSession func() (config []byte, env []string, ok bool)

// MaxMmapThreshold is the largest threshold, in bytes, for [SetMmapThreshold]. It is the limit
// of glibc's own adjustment (DEFAULT_MMAP_THRESHOLD_MAX).
const MaxMmapThreshold = 32 << 20

// SetMmapThreshold sets glibc's M_MMAP_THRESHOLD, in bytes. Larger blocks are mapped one by one
// and return to the system when they are freed. Smaller blocks come from arenas, which keep
// freed memory and fragment. SetMmapThreshold also sets M_TRIM_THRESHOLD, the free memory at an
// arena's end above which malloc returns memory, to twice that size. By default, glibc raises
// both settings up to MaxMmapThreshold as large blocks are freed; SetMmapThreshold turns that
// off.
//
// The setting holds for later allocations of the whole process. It affects TensorFlow on a CPU
// only if TensorFlow uses malloc: without oneDNN, or with TF_ONEDNN_USE_SYSTEM_ALLOCATOR. Set
// it before large blocks are in use, because an arena with enough free memory still serves a
// block of any size. A mapped block costs page faults at each allocation.
//
// The error reports that malloc is not glibc's, that the threshold is out of range, or that the
// environment sets a threshold.
var SetMmapThreshold func(bytes int) error

// StartServer starts a server of TensorFlow's distributed runtime in this process and returns its
// address for tfbind.LoadSavedModel. def is a serialized tensorflow.ServerDef. The graphs of sessions
// on the server can exchange tensors with those of other servers.
//
// The server runs until the process ends, because TensorFlow cannot stop a server (TF_ServerStop is
// not implemented, and deleting a started server may abort the process, in 2.21). Anyone who
// reaches its port can run graphs: TensorFlow's servers listen on all addresses, without encryption
// or authentication. Sessions on the server should have the devices of this server only
// (device_filters) and exchange values by collectives: a server that asks another server for a
// tensor of a failed run waits until its own run ends.
var StartServer func(def []byte) (address string, err error)
