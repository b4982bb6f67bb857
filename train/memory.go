package train

import (
	"context"
	"fmt"
	"math"
	"os"

	"steadyfit/fit"
	"steadyfit/internal/autotune"
	"steadyfit/internal/budget"
	"steadyfit/internal/files"
	"steadyfit/memory"
)

// limitPool makes TensorFlow enforce a budget of GPU memory. A step that needs more fails, and
// is repeated in micro-batches.
func (t *training) limitPool() error {
	if !t.Budget.ofGPU() {
		return nil
	}
	o := &t.Session.Device
	size := t.Budget.Limit / memory.MiB // TensorFlow counts in MiB
	if len(o.VirtualGPUs) > 0 {
		return refuse("Budget.Layer", t.Budget.Layer, "the GPUs are already divided into devices of %v MiB; use only one "+
			"of the two options, since both limit TensorFlow's pool", o.VirtualGPUs)
	}
	o.VirtualGPUs = [][]int{{int(size)}}
	if _, err := o.Check(os.Environ()); err != nil {
		return wrong("Budget.Layer", t.Budget.Layer, fmt.Errorf("a virtual GPU of %d MiB: %w", size, err))
	}
	return nil
}

func (t *training) arrange() {
	l, s := &t.Loop, t.session
	rank, _ := t.ranked()
	l.Session = s
	switch {
	case t.Profile != Profile{} && rank == 0:
		t.profiled = &profiled{Session: s, t: t}
		l.Session = t.profiled
	case t.tunesLive():
		l.Session = autotune.NewLive(s, l.Batch)
	}
	if l.Alive == nil {
		l.Alive = t.worker.Alive
	}
	if t.Resume {
		l.Resume = t.Checkpoints.Folder
	}
	if t.Progress != nil {
		l.Hook(fit.Progress(t.worker.Terminal(t.Progress)))
	}
	t.arrangeObservers()
	t.arrangeRestart()
	var restart func(reason string) // nil if there is no supervision
	if t.worker != nil {
		restart = func(reason string) { t.restartErr = t.worker.Restart(reason) }
	}
	if t.resets() {
		l.Hook(t.resetHook(restart).Hook(s))
	}
	if t.Budget.ofProcess() {
		b := &budget.Budget{Limit: t.Budget.Limit, Layer: t.Budget.Layer, Batch: l.Batch,
			MicroBatches: t.Session.MicroBatches, Restart: restart, Log: l.Log}
		l.Hook(b.Hook(s))
	}
	if t.splits() {
		l.Recover = budget.OnOutOfMemory(s, l.Batch)
		if !t.Budget.ofProcess() { // a process budget sets the number of micro-batches
			l.Hook(budget.SplitAfterCrashes(s, l.Batch, t.worker.Status().MemoryCrashes))
		}
	}
}

func (t *training) arrangeCheckpoints() (err error) {
	c := t.Checkpoints
	switch {
	case c.Folder == "" && c.RestoreBest:
		if c.Folder, t.removeBest, err = files.Scratch("steadyfit-best-"); err != nil {
			return err
		}
		c.Keep, c.EveryEpochs, c.Temporary = 1, math.MaxInt, true
	case c.Folder == "":
		return nil
	}
	if c.Best == "" && t.validates() {
		c.Best = "val_loss"
	}
	c.Foreground = t.Budget.ofProcess() // a copy of the variables would count
	t.Loop.Hook(c.Hook())
	return nil
}

// arrangeRestart logs why this process resumes the training of an earlier one.
func (t *training) arrangeRestart() {
	status := t.worker.Status()
	if status.Reason == "" || t.Worker != nil {
		return
	}
	t.Loop.Hook(fit.Hook{Name: "supervised", Start: func(_ context.Context, st *fit.State) error {
		t.resumed = true
		t.Loop.Log.Info(status.Reason)
		if status.Crashed {
			st.Event("restart")
		}
		return nil
	}})
}
