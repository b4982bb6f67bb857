// Package train fine-tunes a SavedModel with one call. It can do everything that the command
// "steadyfit fit" does.
//
//	result, err := train.Run(ctx, train.Config{
//		Model: "models/flowers",
//		Data:  train.Data{Path: "flowers"},
//		Loop:  fit.Loop{Batch: 32, Epochs: 10},
//		Out:   "models/flowers-trained",
//	})
//
// [Run] checks the options, the model and the data before it opens TensorFlow. Then it opens a
// session, trains it with a fit.Loop, saves the trained model, and closes everything. The
// fields of [Config] are grouped: data and model, session and loop, results, and memory and
// recovery. The last group configures child processes that are restarted after a crash
// (Config.Supervise), a memory budget (Config.Budget), resets (Config.Reset), and micro-batches
// when memory runs out (Config.OnOutOfMemory). Features without a field are hooks of
// Config.Loop, such as fit.EarlyStop.
//
// Some options, such as Config.ReleaseMemory, need environment variables that a process reads
// only once. Run then restarts the program from its beginning, with the same arguments. With
// Config.Supervise it also runs the program as a child, and with Config.Autotune as trials. So
// main calls autotune.Child first, then Run, and before Run does nothing that must not be
// repeated. Under supervision, Run returns in the child and then in the parent, so the code
// after it runs twice: Result.InChild tells them apart.
package train
