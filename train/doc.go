// Package train fine-tunes a SavedModel with one call. It does all that the command
// "steadyfit fit" does.
//
//	result, err := train.Run(ctx, train.Config{
//		Model: "models/flowers",
//		Data:  train.Data{Path: "flowers"},
//		Loop:  fit.Loop{Batch: 32, Epochs: 10},
//		Out:   "models/flowers-trained",
//	})
//
// [Run] checks the options, the model and the data before TensorFlow is opened. Then it
// opens a session, trains it with a fit.Loop, saves the trained model, and closes all that
// it opened. The fields of [Config] are in groups: what is trained, how the session and the
// loop run, where results go, and what keeps a training alive. The last group has child
// processes that are started again after a crash (Config.Supervise), a memory budget
// (Config.Budget), resets (Config.Reset), and micro-batches when memory runs out
// (Config.OnOutOfMemory). What has no field is a hook of Config.Loop, such as fit.EarlyStop.
//
// Some options need environment variables that are read once in a process, such as those of
// Config.ReleaseMemory. Run then starts the program again from its beginning, with the same
// arguments. Under Config.Supervise it runs the program again as a child. With
// Config.Autotune the program is run to measure. So a program calls autotune.Child first in
// main, then Run, and does nothing before that must not be done twice.
package train
