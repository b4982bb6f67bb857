// Package observe shows a training in other programs. Its types are observers for fit.Observers:
// [TensorBoard] writes event files, [Prometheus] serves metrics over HTTP, and [Kubeflow] reports the
// progress of a TrainJob.
//
// An observer is used by one run at a time. It opens files and ports at the start of the run and closes
// them at its end.
package observe
