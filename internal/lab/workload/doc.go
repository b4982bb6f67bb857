// Package workload is what the children of the matrix do on this project's own
// packages: the workloads of the runtime "go".
//
// It is not for training models: some of what it does is what users are told not
// to do, such as tensors that are never closed, on purpose and counted.
//
// A value flows through it like this. A child process starts a cell.Child and
// calls [Run], which finds the job for the Spec's workload, loads TensorFlow, does
// the steps one by one with a sample where one is due, frees everything, and
// compares the binding's counters with what the workload leaves behind on purpose.
// The knobs gc and trim are for every job; each job asks for its own when it is
// made, before anything else, so that a knob that it lacks costs no run.
package workload
