package session

import (
	"os"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/tfbind"
)

// Rounding is what in the way that train steps run makes them round differently than plain
// ones, which run one by one, as exported, with TensorFlow's defaults. Of plain steps it is
// the zero value. Options that round alike run the same steps bit for bit, if the rest is the
// same. Device.XLA is not in it.
//
// Measured with TensorFlow 2.21 on 2 cores, by the variables after 50 to 200 steps of Adam,
// on the built-in float32 models that have a train_n, an attention block and a dense
// 20-64-64-1 model: several steps in a call, the single-threaded executor, the calling
// thread, the number of threads that run operations side by side, and jemalloc leave the bits
// of plain steps, alone and together, but for what is here.
type Rounding struct {
	// Compiled: XLA twins.
	Compiled bool
	// Loop is several steps in a call of the single-threaded executor, with oneDNN. That
	// executor cannot run the loop of train_n as part of the graph, as TensorFlow's default
	// does, so the steps are a function, which TensorFlow does not rewrite to the kernels
	// of oneDNN: they have the bits of plain steps without oneDNN. digits and lstm were the
	// same with both kinds of kernels, all others differed in last digits. Without oneDNN
	// it is false. The open library says which it is (tfbind.OneDNN). Before one is open,
	// Loop is true unless the options or TF_ENABLE_ONEDNN_OPTS turn oneDNN off.
	Loop bool
	// StepsPerExecution is Options.StepsPerExecution with Compiled or Loop, and else 0: it decides which
	// steps go that way. What is left over as a single step, as before a checkpoint, does
	// not.
	StepsPerExecution int
	// IntraThreads is Options.Device.IntraThreads: the parts that threads share an
	// operation in are added up in another order. Of batches of 32, convolutions differed
	// (digits-cnn, image-224), and of larger ones products of matrices (dense-100-64-1,
	// attention). 0 is one per core, so another machine may round differently, too.
	IntraThreads int
	// Precision is that of Options.Device.
	Precision gpuopts.Precision
}

// Rounding says what of the options makes train steps round differently than plain ones.
func (o Options) Rounding() Rounding {
	r := Rounding{Compiled: o.Compiled, IntraThreads: o.Device.IntraThreads, Precision: o.Device.Precision}
	r.Loop = o.StepsPerExecution > 1 && o.Device.Executor == gpuopts.SingleThreaded && o.oneDNN()
	if (r.Compiled || r.Loop) && o.StepsPerExecution > 1 {
		r.StepsPerExecution = o.StepsPerExecution
	}
	return r
}

// oneDNN reports whether steps are computed with oneDNN. Before a library is open, it goes
// by the options and the environment, and else returns true.
func (o Options) oneDNN() bool {
	if on, known := tfbind.OneDNN(); known {
		return on
	}
	off := strings.ToLower(os.Getenv("TF_ENABLE_ONEDNN_OPTS"))
	return o.Device.OneDNN != gpuopts.Off && off != "0" && off != "false"
}
