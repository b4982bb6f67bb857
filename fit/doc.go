// Package fit trains a model for some epochs: a small loop, and hooks that do everything else.
//
// A Loop gives the batches of a data.Dataset to a Session, which runs one train step on each.
// After every epoch it evaluates the validation data, adds a Record to the History, and calls
// the hooks: Progress, HistoryFile, CSVLog, Checkpoint, EarlyStop, ReduceOnPlateau, and your
// own. What a step computes is in the model. Nothing is printed unless a writer or a logger
// is given.
//
// Session.Train writes the scalars of a step to a slice that is reused. They are added to
// float64 sums, weighted by the samples of the batch; the means become the epoch's Record. A
// step does not allocate.
//
// Package checkpoint has the files of checkpoints, and package budget the hooks that keep
// memory in bounds.
//
// # Resuming
//
// A run that was killed at any moment and is run again with Loop.Resume gives the same
// numbers as one that was never stopped: the same history except for times and memory, and
// the same model, bit for bit. A checkpoint therefore holds the model and its optimizer, the
// position in the data, the sums of the epoch in progress, and the state of the hooks. The
// results of the dataset and the session must depend on the epoch, the position and the step
// alone, as those of this module do.
//
// # Divergence
//
// A loss that is NaN or infinite ends the run at that step with a DivergedError. The loss of a
// step is computed before its update, so a state is known to be good only once the next loss
// or a validation is finite. A checkpoint of a diverged state is renamed to diverged-<step>,
// and the one before it is kept as long as that can happen.
package fit
