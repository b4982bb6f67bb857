// Package autotune measures which configuration of a training runs fastest on this machine: one
// step per execution or several, the XLA-compiled signatures of the model, and settings of
// TensorFlow's executor, its threads, oneDNN and the allocator. [Live] chooses between
// TensorFlow's threads and the calling thread during the train steps themselves.
//
// No [Configuration] is always fastest (docs/explanation/speed.md), so [Choose] runs trials. A trial
// trains with one configuration on the first batches of the data, in a child process. Its rounds
// alternate with those of plain steps, in another child. A trial that crashes, hangs or takes too
// much memory only loses.
//
// Plain steps are chosen unless another configuration is at least 3% faster with its whole
// confidence interval. If time is left, its trial is repeated, and must show the same again. A
// configuration with a loss that is NaN or infinite is never chosen.
//
// The trials take at most 2% of the training and at most 20 s. Before plain steps are measured,
// their time is estimated by an earlier training's time in the cache, or by the fastest step
// known. If the trials would take longer, none are run. The cache identifies measurements by model,
// shapes, options and machine.
//
// Choose takes a [Plan] and returns a [Choice], and Choice.Configuration.Apply changes the
// options of the session. A trial is the same program, in
// which [Init], at the start of main, runs the trial.
package autotune
