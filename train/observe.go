package train

import (
	"cmp"
	"slices"

	"steadyfit/fit"
	"steadyfit/fit/observe"
	"steadyfit/memory"
)

func (c *Config) checkObservers() error {
	if c.MetricsListen == "" {
		return nil
	}
	return wrong("Config.MetricsListen", c.MetricsListen, observe.CheckListen(c.MetricsListen))
}

func (t *training) arrangeObservers() {
	o := fit.Observers{
		List: slices.Clone(t.Observers), Restarts: max(t.worker.Status().Attempt-1, 0),
		Budget: t.Budget.Limit, BudgetLayer: cmp.Or(t.Budget.Layer, memory.RSS),
	}
	if t.TensorBoard != "" {
		o.List = append(o.List, &observe.TensorBoard{Dir: t.TensorBoard, Graph: t.model.Graph})
	}
	if t.MetricsListen != "" {
		o.List = append(o.List, &observe.Prometheus{Listen: t.MetricsListen})
	}
	if len(o.List) > 0 {
		t.Loop.Hook(o.Hook())
	}
}
