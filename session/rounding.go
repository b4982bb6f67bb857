package session

import (
	"os"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/tfbind"
)

// Rounding has the options that make train steps round differently than plain ones, which
// run one by one, as exported, with TensorFlow's defaults. It is the zero value for plain
// steps. Options with the same Rounding run the same steps bit for bit, apart from
// Device.XLA, which is not in it.
//
// Measured with TensorFlow 2.21 on 2 cores, by the variables after 50 to 200 steps of Adam,
// on the built-in float32 models with a train_n, an attention block and a dense
// 20-64-64-1 model: several steps per execution, the single-threaded executor, the calling
// thread, the number of inter-op threads, and jemalloc keep the bits of plain steps, alone
// and together, except as described here.
type Rounding struct {
	// Compiled is Options.Compiled.
	Compiled bool
	// Loop is several steps per execution in the single-threaded executor with oneDNN. That
	// executor runs the loop of train_n as a function, which TensorFlow does not rewrite to
	// the kernels of oneDNN: the steps have the bits of plain steps without oneDNN. digits
	// and lstm were the same with both kernels, all others differed in last digits. Before
	// a library is open, Loop assumes oneDNN unless the options or TF_ENABLE_ONEDNN_OPTS
	// turn it off.
	Loop bool
	// StepsPerExecution is Options.StepsPerExecution with Compiled or Loop, and else 0. It
	// decides which steps are affected: remaining single steps, as before a checkpoint, are
	// not.
	StepsPerExecution int
	// IntraThreads is Options.Device.IntraThreads, the number of threads that share an
	// operation and add up in another order. Convolutions differed with batches of 32
	// (digits-cnn, image-224), matrix products with larger ones (dense-100-64-1,
	// attention). 0 is one per core, so another machine may round differently, too.
	IntraThreads int
	// Precision is that of Options.Device.
	Precision gpuopts.Precision
}

// Rounding returns the options that make train steps round differently than plain ones.
func (o Options) Rounding() Rounding {
	r := Rounding{Compiled: o.Compiled, IntraThreads: o.Device.IntraThreads, Precision: o.Device.Precision}
	r.Loop = o.StepsPerExecution > 1 && o.Device.Executor == gpuopts.SingleThreaded && o.oneDNN()
	if (r.Compiled || r.Loop) && o.StepsPerExecution > 1 {
		r.StepsPerExecution = o.StepsPerExecution
	}
	return r
}

// oneDNN reports whether steps are computed with oneDNN: as the open library says, or else
// unless the options or the environment turn it off.
func (o Options) oneDNN() bool {
	if on, known := tfbind.OneDNN(); known {
		return on
	}
	off := strings.ToLower(os.Getenv("TF_ENABLE_ONEDNN_OPTS"))
	return o.Device.OneDNN != gpuopts.Off && off != "0" && off != "false"
}
