package train

import (
	"cmp"
	"context"
	"encoding/binary"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"steadyfit/adapter"
	"steadyfit/fit"
	"steadyfit/fit/observe"
	"steadyfit/internal/half"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

func (c *Config) checkObservers() error {
	switch b := c.TensorBoard; {
	case b.Folder == "" && b.EverySteps != 0:
		return refuse("TensorBoard.EverySteps", b.EverySteps, "needs {TensorBoard.Folder}, the folder for the values")
	case b.Folder == "" && b.Histograms != 0:
		return refuse("TensorBoard.Histograms", b.Histograms, "needs {TensorBoard.Folder}, the folder for the histograms")
	case c.MetricsListen == "":
		return nil
	}
	return wrong("Config.MetricsListen", c.MetricsListen, observe.CheckListen(c.MetricsListen))
}

func (t *training) arrangeObservers() {
	b := t.TensorBoard
	o := fit.Observers{
		List: slices.Clone(t.Observers), EverySteps: b.EverySteps, Restarts: max(t.worker.Status().Attempt-1, 0),
		Budget: t.Budget.Limit, BudgetLayer: cmp.Or(t.Budget.Layer, memory.RSS),
	}
	if b.Folder != "" {
		o.List = append(o.List, &observe.TensorBoard{Dir: b.Folder, EverySteps: b.EverySteps, Graph: t.model.Graph})
	}
	if b.Histograms > 0 {
		o.Weights, o.HistogramsEvery = t.weights, b.Histograms
	}
	if t.MetricsListen != "" {
		o.List = append(o.List, &observe.Prometheus{Listen: t.MetricsListen})
	}
	if len(o.List) > 0 {
		t.Loop.Hook(o.Hook())
	}
}

// weights returns the values of the trained weights. Their names are those in Keras's callback: the
// paths of the variables under "model", where the exporter keeps a Keras model.
func (t *training) weights(ctx context.Context) (iter.Seq2[string, []float64], error) {
	a, err := t.session.Adapter(ctx)
	if err != nil {
		return nil, err
	}
	return func(yield func(string, []float64) bool) {
		for _, name := range slices.Sorted(maps.Keys(a.Weights)) {
			values := floats(a.Weights[name])
			if values != nil && !yield(strings.ReplaceAll(strings.TrimPrefix(name, "model/"), ":", "_"), values) {
				return
			}
		}
	}, nil
}

// floats returns the values of a weight; nil if they are no floating-point numbers.
func floats(w adapter.Weight) []float64 {
	of := func(size int, value func([]byte) float64) []float64 {
		values := make([]float64, 0, len(w.Data)/size)
		for b := range slices.Chunk(w.Data, size) {
			values = append(values, value(b))
		}
		return values
	}
	switch w.DType {
	case tfbind.Float32:
		return of(4, func(b []byte) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))) })
	case tfbind.Float64:
		return of(8, func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) })
	case tfbind.Float16:
		return of(2, func(b []byte) float64 { return float64(half.Float16(binary.LittleEndian.Uint16(b)).Float32()) })
	case tfbind.BFloat16:
		return of(2, func(b []byte) float64 { return float64(half.BFloat16(binary.LittleEndian.Uint16(b)).Float32()) })
	}
	return nil
}
