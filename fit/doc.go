// Package fit trains a model for some epochs: a small loop, and hooks that do
// everything else.
//
// A Loop draws batches from a data.Dataset and gives them to a Session, which
// runs one train step on each. After every epoch it runs the validation, adds a
// Record to the History, and calls the hooks: Progress, HistoryFile, CSVLog,
// Checkpoint, EarlyStop, ReduceOnPlateau, and your own.
//
// It is not a trainer: what a step computes is in the model. The loop drives any
// Session; only what keeps memory in bounds (ResetPolicy, Budget, OnOutOfMemory)
// is made for those of package session. It prints nothing unless it is given a
// writer or a logger to print to.
//
// A value flows through it like this: a data.Batch goes to Session.Train, which
// writes the step's scalars to a slice that is reused; they are added to float64
// sums, weighted by the samples of the batch; the means become the epoch's
// Record. A step costs no allocation.
//
// # Resuming
//
// A run that was killed at any moment, and is run again with Loop.Resume, gives
// the same numbers as one that was never stopped: the same history except for
// times and memory, and the same model, bit for bit. For that, a checkpoint
// holds everything that the future of a run depends on: the model and its
// optimizer, the position in the data, the sums of the epoch in progress, and
// what the hooks remember. What the dataset and the session compute has to
// depend on the epoch, the position and the step alone; those of this module
// do.
//
// # Memory
//
// A ResetPolicy resets the session every so often, or when memory gets short; a
// Budget keeps the process under a limit, by splitting batches and what else
// helps; OnOutOfMemory goes back and splits the batch when TensorFlow has no
// memory for a step. None of them changes what is learnt, but for the order in
// which a split batch adds its gradients.
//
// # Divergence
//
// A loss that is NaN or infinite ends the run at that step with a
// DivergedError. The loss of a step is computed before its update, so the state
// after a step is only known to be good once the next loss is finite, or a
// validation of it was. A checkpoint that turns out to hold a diverged state is
// put aside under the name diverged-<step>, and the one before it is kept for
// as long as that can happen.
package fit
