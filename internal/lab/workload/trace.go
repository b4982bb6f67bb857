package workload

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/lab/cell"
	"steadyfit/internal/native"
	"steadyfit/memory"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// tracer is a job whose step can be traced.
type tracer interface {
	// trace has the steps that follow write a tensorflow.RunMetadata to into; of
	// several runs in a step, the last one that trains.
	trace(into *[]byte)
}

// tracing is embedded by what runs steps that can be traced.
type tracing struct{ into *[]byte }

func (t *tracing) trace(into *[]byte) { t.into = into }

// run runs a step, traced if it is to be.
func (t *tracing) run(ctx context.Context, st *session.Step) (err error) {
	if t.into == nil {
		return st.Run(ctx)
	}
	*t.into, err = st.Trace(ctx)
	return err
}

// runOptions are those of a run that is not prepared.
func (t *tracing) runOptions() (o tfbind.RunOptions, err error) {
	if t.into != nil {
		o.Metadata = t.into
		o.Proto, err = proto.Marshal(&pb.RunOptions{TraceLevel: pb.RunOptions_SOFTWARE_TRACE})
	}
	return o, err
}

// trace does one more step, and tells what TensorFlow's allocators held in it and
// what rewriting did to its graph. It comes after all that is measured, since a
// trace itself takes memory.
func (r *run) trace(ctx context.Context, j job, t tracer) error {
	var metadata []byte
	t.trace(&metadata)
	if _, err := j.step(ctx, r.done+1); err != nil {
		return fmt.Errorf("traced step: %w", err)
	}
	if metadata == nil {
		return nil // it has a variant that runs otherwise
	}
	seen, err := native.ReadTrace(metadata)
	if err != nil {
		return err
	}
	var values []memory.Value
	for name, use := range seen.Allocators {
		used := memory.TFUsed
		if strings.HasPrefix(name, "GPU_") {
			used = memory.GPUAllocator
		}
		values = append(values, memory.Value{Layer: used.Of(name), Reading: use.InUse}, memory.Value{Layer: memory.TFPeak.Of(name), Reading: use.Peak})
	}
	if err := r.c.Phase(cell.PhaseTraced, values...); err != nil {
		return err
	}
	matrix := 0
	for _, count := range seen.Matrix {
		matrix += count
	}
	for _, fact := range []struct {
		name  string
		count int
	}{
		{cell.FactOperations, seen.Operations}, {cell.FactBFloat16, seen.BFloat16Casts}, {cell.FactFloat16, seen.Float16Casts},
		{cell.FactRecomputed, seen.Recomputed}, {cell.FactClusters, seen.XLAClusters}, {cell.FactOneDNN, seen.OneDNN}, {cell.FactCalls, seen.Calls},
		{cell.FactMatrix, matrix}, {cell.FactMatrixBFloat16, seen.Matrix[tfbind.BFloat16]}, {cell.FactMatrixFloat16, seen.Matrix[tfbind.Float16]},
	} {
		if err := r.c.Fact(fact.name, strconv.Itoa(fact.count)); err != nil {
			return err
		}
	}
	return nil
}
