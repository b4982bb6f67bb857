// Package observe shows a training in other programs. Its types are observers for fit.Observers:
// [TensorBoard] writes event files, and [Prometheus] serves metrics over HTTP.
//
// An observer is used by one run at a time. It opens files and ports at the start of the run and closes
// them at its end.
package observe
