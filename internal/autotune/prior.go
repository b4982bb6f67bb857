package autotune

import (
	"os"
	"runtime"

	"golang.org/x/sys/cpu"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/gpu"
	"steadyfit/internal/tfenv"
	"steadyfit/savedmodels"
)

const (
	// largeConvolution is the least number of floating-point operations of a step's first
	// convolution and its gradients for which oneDNN is chosen without a measurement.
	largeConvolution = 1e9
	// poolBytes is the memory that must be available for each value in a batch, since oneDNN
	// keeps memory that malloc would return: 170 bytes for each pixel value on
	// builtin:image-224.
	poolBytes = 256
)

// Prior returns a configuration to begin with, for trainings that are too short for trials: with
// oneDNN, if TensorFlow would leave it off and the model has large convolutions. Otherwise it
// returns plain. Steps with oneDNN round differently than without it, so the limits must allow
// that. The configuration costs no time if the caller sets the variables of
// Configuration.Environment before it opens TensorFlow.
func (p *Plan) Prior() Configuration {
	on := Configuration{OneDNN: "on"}
	_, err := on.Apply(p.Options).Device.Check(nil)
	left := cgroup.Available()
	switch {
	case err != nil, !p.Limits.under(p.Options).OneDNN, p.Options.Device.OneDNN != "", oneDNNByDefault(), p.convolution() < largeConvolution,
		left.Known() && float64(left.Bytes) < poolBytes*batchSize(p.Data, p.Batch, 1), hasGPU():
		return Configuration{}
	}
	return on
}

// hasGPU reports whether the kernel's driver shows a GPU, which then computes the convolutions.
func hasGPU() bool { return len(gpu.Kernel(os.DirFS("/"))) > 0 }

// oneDNNByDefault reports whether TensorFlow computes with oneDNN if no option says otherwise:
// the variable decides or, without it, the processor (DefaultOneDnnPolicy in
// tensorflow/core/util/port.cc). It is true on processors other than amd64.
func oneDNNByDefault() bool {
	if on, set := tfenv.Bool(os.Getenv("TF_ENABLE_ONEDNN_OPTS")); set {
		return on
	}
	x := &cpu.X86
	return runtime.GOARCH != "amd64" || x.HasAVX512VNNI || x.HasAVX512BF16 || x.HasAVXVNNI || x.HasAMXTile || x.HasAMXInt8 || x.HasAMXBF16
}

// convolution returns the floating-point operations of the first convolution of a train step
// and of its gradients, for a stride of 1. It is 0 if the data has no images, or no weight is a
// kernel for their channels.
func (p *Plan) convolution() (flops float64) {
	for _, f := range p.Data.Fields() {
		if len(f.Shape) != 3 {
			continue
		}
		pixels := float64(p.Batch * f.Shape[0] * f.Shape[1])
		for _, v := range p.Model.Variables {
			if kernel(v, f.Shape[2]) {
				flops = max(flops, 6*pixels*float64(v.Bytes())/float64(max(v.DType.Size(), 1)))
			}
		}
	}
	return flops
}

// kernel reports whether a variable can be the kernel of a convolution of images with that many
// channels.
func kernel(v savedmodels.Variable, channels int) bool {
	return v.Weight && len(v.Shape) == 4 && v.Shape[2] == int64(channels)
}
