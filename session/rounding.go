package session

import (
	"os"

	"steadyfit/gpuopts"
	"steadyfit/internal/tfenv"
	"steadyfit/internal/tfprocess"
)

// Rounding has the options that change how train steps round. The zero value is for steps that
// run one by one, as exported, with TensorFlow's defaults ("plain steps"). Two sessions with
// equal Rounding give the same results bit for bit, unless Device.XLA differs.
//
// Measured with TensorFlow 2.21 on 2 cores, for 50 to 200 steps of Adam on the built-in float32
// models with a train_n, an attention block and a dense 20-64-64-1 model: except as described
// below, results do not depend on steps per execution, the executor, CallerRuns, inter-op
// threads or jemalloc.
type Rounding struct {
	// Compiled is Options.Compiled.
	Compiled bool
	// Loop reports several steps per execution in the single-threaded executor with oneDNN.
	// TensorFlow does not rewrite the loop of train_n to oneDNN kernels there, so the results are
	// those of plain steps without oneDNN. They differ from those with oneDNN in the last digits,
	// except for digits and lstm. Before TensorFlow is open, Loop is based on the options and
	// TF_ENABLE_ONEDNN_OPTS.
	Loop bool
	// StepsPerExecution is Options.StepsPerExecution with Compiled or Loop, otherwise 0. It
	// determines which steps run alone, such as the last steps before a checkpoint. Steps that run
	// alone round like plain steps.
	StepsPerExecution int
	// IntraThreads is Options.Device.IntraThreads, the number of threads per operation, which
	// changes the order of additions. Results differed for convolutions at batch size 32
	// (digits-cnn, image-224) and for matrix products at larger ones (dense-100-64-1,
	// attention). 0 means one thread per core, so another machine may round differently.
	IntraThreads int
	// OneDNN is Options.Device.OneDNN: the kernels of oneDNN add in another order.
	OneDNN string
	// Precision is Options.Device.Precision.
	Precision gpuopts.Precision
	// MicroBatches is Options.MicroBatches: micro-batches add up gradients in another order. 0
	// means whole batches.
	MicroBatches int
}

// Rounding returns the options that change how train steps round.
func (o Options) Rounding() Rounding {
	r := Rounding{Compiled: o.Compiled, IntraThreads: o.Device.IntraThreads, OneDNN: o.Device.OneDNN, Precision: o.Device.Precision}
	r.Loop = o.StepsPerExecution > 1 && o.Device.Executor == gpuopts.SingleThreaded && o.oneDNN()
	if o.MicroBatches > 1 {
		r.MicroBatches = o.MicroBatches
	}
	if (r.Compiled || r.Loop) && o.StepsPerExecution > 1 {
		r.StepsPerExecution = o.StepsPerExecution
	}
	return r
}

// oneDNN reports whether steps use oneDNN. It returns the setting of the options, or else that of
// the open library. If no library is open, it reports whether the environment leaves oneDNN on.
func (o Options) oneDNN() bool {
	if set := o.Device.OneDNN; set != "" {
		return set == "on"
	}
	if on, known := tfprocess.OneDNN(); known {
		return on
	}
	on, set := tfenv.Bool(os.Getenv("TF_ENABLE_ONEDNN_OPTS"))
	return on || !set
}
