package gpuopts_test

import (
	"fmt"

	"steadyfit/gpuopts"
)

// A contradiction with the environment is reported before TensorFlow is opened.
func ExampleOptions_Check() {
	options := gpuopts.Options{MemoryGrowth: true, IntraThreads: 2}
	warnings, err := options.Check([]string{"TF_FORCE_GPU_ALLOW_GROWTH=false", "TF_NUM_INTRAOP_THREADS=8"})
	fmt.Println(err)
	for _, w := range warnings {
		fmt.Println(w)
	}
	// Output:
	// Options.MemoryGrowth true: TF_FORCE_GPU_ALLOW_GROWTH is "false" in the environment, and TensorFlow obeys the variable; unset it, or leave the option out
	// TF_NUM_INTRAOP_THREADS: 8 is not used: Options.IntraThreads 2 overrides it (process_util.cc, local_device.cc)
}

// TensorFlow reads some settings only from environment variables.
func ExampleOptions_Environment() {
	variables, err := gpuopts.Options{VisibleGPUs: []int{1}}.Environment()
	if err != nil {
		fmt.Println(err)
		return
	}
	env, _, err := gpuopts.With([]string{"HOME=/home/me"}, variables)
	fmt.Println(env, err)
	// Output:
	// [HOME=/home/me CUDA_DEVICE_ORDER=PCI_BUS_ID] <nil>
}
