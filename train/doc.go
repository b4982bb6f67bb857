// Package train fine-tunes a SavedModel in one function. It has all features of the command "steadyfit fit".
//
//	result, err := train.Run(ctx, train.Config{
//		Model: "models/flowers",
//		Data:  train.Data{Path: "flowers"},
//		Loop:  fit.Loop{Batch: 32, Epochs: 10},
//		Out:   "models/flowers-trained",
//	})
//
// [Run] checks the options, the model and the data before it opens TensorFlow. It then opens a session, trains it with
// a fit.Loop, saves the trained model, and closes everything. [Config] also configures child processes that are
// restarted after a crash (Supervise), a memory budget (Budget), resets (Reset), and micro-batches when memory runs out
// (OnOutOfMemory). Other features are hooks of the loop:
//
//	config.Loop.Hook(fit.EarlyStop{Metric: "val_loss", Patience: 3}.Hook())
//
// # Child processes
//
// Run trains in this process. Some options need a child process: supervision, resets by process, measurements
// (Config.Autotune), and environment variables that a process reads once (Config.Allocator). A program allows child
// processes by calling [Init] at the start of main. In a child, Init runs the training and ends the process, so nothing
// else of main runs again. Without Init, such an option is an *option.Error.
//
// TensorFlow logs to stderr. Run makes it log only warnings and errors, unless the program or its environment sets
// TF_CPP_MIN_LOG_LEVEL or Options.LogLevel of Config.Session.Device, or has opened TensorFlow before.
package train
