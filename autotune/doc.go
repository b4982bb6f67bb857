// Package autotune measures how a training runs fastest on this machine: one step per call or
// several, the XLA-compiled signatures of the model, and settings of TensorFlow's executor, its
// threads and its allocator.
//
// No [Configuration] always wins: compiled steps, several per call, were 4 times as fast as plain
// ones on a small dense model and 8 times slower on one with dropout (docs/explanation/speed.md). So
// [Choose] runs trials. A trial trains with one configuration on the first batches of the data,
// in a child process, in rounds that alternate with those of the fastest configuration so far in
// another child. So a trial that crashes, hangs or takes too much memory only loses, and nothing
// of it stays behind: no weights, memory, threads or compiled code.
//
// Plain steps stay unless a configuration is shown to be at least 3% faster, with its whole
// confidence interval. A loss that is NaN or infinite never wins.
//
// The trials take at most 2% of the training and at most 20 s. Before plain steps are measured,
// a step counts as no longer than what an earlier training has left in the cache, or than the
// fastest step known. If trials do not fit into that, there are none. The cache keeps
// measurements by model, shapes, options and machine.
//
// A [Plan] goes into Choose, a [Choice] comes out, and Choice.Configuration.Apply changes the
// options of the session. Main calls [Child] first, since trials run the same program.
package autotune
