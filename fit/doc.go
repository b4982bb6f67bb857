// Package fit trains a model with a small loop; hooks do everything else.
//
// A Loop gives the batches of a data.Dataset to a Session, which runs one train step on each.
// After every epoch it evaluates the validation data, adds a Record to the History, and calls
// the hooks: Progress, HistoryFile, Checkpoint, EarlyStop, ReduceOnPlateau, and your
// own. What a step computes is in the model. Nothing is printed unless a writer or a logger
// is given.
//
// Session.Train writes the scalars of a step to a reused slice. The loop adds them to float64
// sums, weighted by the number of samples of the batch; the means become the epoch's Record. A
// step does not allocate.
//
// # Resuming
//
// A run that was killed at any moment and is run again with Loop.Resume gives the same results as
// an uninterrupted one: the same history except for times and memory, and the same model, bit for
// bit. For this, a checkpoint contains the model and its optimizer, the position in the data, the
// sums of the current epoch, and the state of the hooks. The dataset and the session must depend
// only on the epoch, the position and the step, as the datasets and sessions of this module do.
//
// # Divergence
//
// A loss that is NaN or infinite ends the run at that step with ErrDiverged. The loss of a
// step is computed before the update, so a state is known to be good only once the next loss or
// a validation is finite. A checkpoint of a diverged state is removed. The one before it is kept until the
// newer one is known to be good.
package fit
