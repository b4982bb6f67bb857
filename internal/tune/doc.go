// Package tune searches the settings of a training that decide its peak of memory and the time of a step:
// micro-batches, steps per execution, compiled signatures, cached features, the allocator, the precision,
// oneDNN, threads, and prefetching. The result is the front: the configurations for which no other one is
// both faster and needs less memory.
//
// Trials run in processes of their own on the real data (autotune.Trials). A model predicts the
// other configurations. It adds the effect of each setting to the logarithms of the time and of
// the memory that steps add. For micro-batches it fits lines: the time is linear in the number
// of micro-batches, and the memory in their size. Each trial corrects the model. A configuration is measured
// only if the prediction, with an allowance for its error, would improve the result.
//
// [Run] loads earlier trials from the cache of autotune, and each trial is stored at once. So a
// search that was interrupted continues where it stopped.
package tune
