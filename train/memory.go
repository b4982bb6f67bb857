package train

import (
	"context"
	"math"

	"steadyfit/fit"
	"steadyfit/internal/autotune"
	"steadyfit/internal/budget"
	"steadyfit/internal/files"
)

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
		l.Hook(fit.Progress(t.Progress))
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
	if t.Budget.Limit != 0 {
		b := &budget.Budget{Limit: t.Budget.Limit, Layer: t.Budget.Layer, Batch: l.Batch,
			MicroBatches: t.Session.MicroBatches, Restart: restart, Log: l.Log}
		l.Hook(b.Hook(s))
	}
	if t.OnOutOfMemory == MicroBatch {
		l.Recover = budget.OnOutOfMemory(s, l.Batch)
		if t.Budget.Limit == 0 { // a budget sets the number of micro-batches
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
	c.Foreground = t.Budget.Limit != 0 // a copy of the variables would count
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
