//go:build galeone

// Command baseline is the training loop as people write it today on the Go
// bindings that exist: galeone's maintained fork of TensorFlow's own, and tfgo
// on top of it. Each step makes tensors from the batch with NewTensor, runs the
// session, reads the loss, and closes nothing, since there is nothing to close:
// finalizers free the tensors when the Go heap gets around to it.
//
//	baseline -impl galeone|tfgo -input nested|flat -model DIR -data DIR
//	         -feed TENSOR=FIELD ... -fetch TENSOR ... -batch N -steps N -epochs N
//
// -input nested hands NewTensor slices of slices, one level per dimension, which
// is the form in the binding's documentation; flat makes the tensor from a flat
// slice and reshapes it, which the binding does much faster.
//
// It links libtensorflow and is built under the tag galeone only, with the
// settings in bench/galeone.env. Data, loop and result are those of internal/measure.
package main
