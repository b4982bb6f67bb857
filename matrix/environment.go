package matrix

import "steadyfit/internal/lab/machine"

// Environment describes the machine.
type Environment = machine.Environment

// finish adds the facts that the runs reported.
func finish(e *Environment, runs []RunResult) {
	e.LoadAfter = machine.LoadAverage()
	for _, run := range runs {
		if version, ok := run.Facts["tensorflow"]; ok {
			e.TensorFlow[run.Runtime] = version
		}
		if version, ok := run.Facts["keras"]; ok {
			e.Keras = version
		}
		if version, ok := run.Facts["python"]; ok {
			e.Python = version
		}
	}
}
