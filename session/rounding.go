package session

import (
	"os"
	"strings"

	"steadyfit/gpuopts"
	"steadyfit/tfbind"
)

// Rounding has the options that make train steps round differently from plain ones. Plain
// steps run one by one, as exported, with TensorFlow's defaults. The zero value means plain
// steps. Options with the same Rounding run the same steps bit for bit, except for Device.XLA,
// which is not included.
//
// Measured with TensorFlow 2.21 on 2 cores: the variables after 50 to 200 steps of Adam, on
// the built-in float32 models with a train_n, an attention block and a dense 20-64-64-1 model.
// Several steps per execution, the single-threaded executor, the calling thread, the number of
// inter-op threads, and jemalloc keep the bits of plain steps, except as described below.
type Rounding struct {
	// Compiled is Options.Compiled.
	Compiled bool
	// Loop means several steps per execution in the single-threaded executor with oneDNN. That
	// executor runs the loop of train_n as a function, which TensorFlow does not rewrite to
	// the kernels of oneDNN, so the steps have the bits of plain steps without oneDNN. digits
	// and lstm were the same with both kernels; all others differed in the last digits. Before
	// a library is open, Loop assumes oneDNN unless the options or TF_ENABLE_ONEDNN_OPTS turn
	// it off.
	Loop bool
	// StepsPerExecution is Options.StepsPerExecution with Compiled or Loop, and 0 otherwise.
	// It decides which steps round differently: remaining single steps, such as those before a
	// checkpoint, do not.
	StepsPerExecution int
	// IntraThreads is Options.Device.IntraThreads, the number of threads that share an
	// operation; it changes the order of additions. Convolutions differed with batches of 32
	// (digits-cnn, image-224), matrix products with larger ones (dense-100-64-1, attention). 0
	// means one per core, so other machines may round differently too.
	IntraThreads int
	// Precision is Options.Device.Precision.
	Precision gpuopts.Precision
}

// Rounding returns the options that make train steps round differently from plain ones.
func (o Options) Rounding() Rounding {
	r := Rounding{Compiled: o.Compiled, IntraThreads: o.Device.IntraThreads, Precision: o.Device.Precision}
	r.Loop = o.StepsPerExecution > 1 && o.Device.Executor == gpuopts.SingleThreaded && o.oneDNN()
	if (r.Compiled || r.Loop) && o.StepsPerExecution > 1 {
		r.StepsPerExecution = o.StepsPerExecution
	}
	return r
}

// oneDNN reports whether steps are computed with oneDNN, according to the open library. If
// none is open, it is true unless the options or the environment turn oneDNN off.
func (o Options) oneDNN() bool {
	if on, known := tfbind.OneDNN(); known {
		return on
	}
	off := strings.ToLower(os.Getenv("TF_ENABLE_ONEDNN_OPTS"))
	return o.Device.OneDNN != gpuopts.Off && off != "0" && off != "false"
}
