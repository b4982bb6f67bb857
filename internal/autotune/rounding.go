package autotune

import (
	"os"

	"steadyfit/gpuopts"
	"steadyfit/internal/tfprocess"
	"steadyfit/session"
)

// Rounding has the options of a session that change how train steps round. The zero value is for steps
// that run one by one, as exported, with TensorFlow's defaults. Two sessions with equal Rounding give the
// same results bit for bit, unless Device.XLA or Device.Precision differs. Measured with TensorFlow 2.21 on 2
// cores: other options, such as the number of inter-op threads, do not change results.
type Rounding struct {
	Compiled bool
	// Loop reports several steps per execution in the single-threaded executor with oneDNN.
	// TensorFlow does not rewrite the loop of train_n to oneDNN kernels there, so the results are
	// those of plain steps without oneDNN.
	Loop bool
	// StepsPerExecution is copied from the options if Compiled or Loop is set; otherwise 0. It
	// determines which steps run alone, such as the last steps before a checkpoint, and round like
	// plain steps.
	StepsPerExecution int
	// IntraThreads changes the order of additions. 0 means one thread per core.
	IntraThreads int
	// OneDNN is Device.OneDNN: the kernels of oneDNN add in another order.
	OneDNN string
	// MicroBatches add up gradients in another order. 0 means whole batches.
	MicroBatches int
}

// RoundingOf returns the options that change how train steps round.
func RoundingOf(o session.Options) Rounding {
	r := Rounding{Compiled: o.Compiled, IntraThreads: o.Device.IntraThreads, OneDNN: o.Device.OneDNN}
	r.Loop = o.StepsPerExecution > 1 && o.Device.Executor == gpuopts.SingleThreaded && usesOneDNN(o.Device.OneDNN)
	if o.MicroBatches > 1 {
		r.MicroBatches = o.MicroBatches
	}
	if (r.Compiled || r.Loop) && o.StepsPerExecution > 1 {
		r.StepsPerExecution = o.StepsPerExecution
	}
	return r
}

// usesOneDNN reports whether steps use oneDNN: by the option, or else by the open library, or else by the
// environment.
func usesOneDNN(set string) bool {
	if set != "" {
		return set == "on"
	}
	if on, known := tfprocess.OneDNN(); known {
		return on
	}
	on, isSet := tfprocess.ParseBool(os.Getenv("TF_ENABLE_ONEDNN_OPTS"))
	return on || !isSet
}
