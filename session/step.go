package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"steadyfit/data"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Step is a prepared signature, which can run repeatedly. One goroutine at a time may use it. Steps of a session with
// Options.ReadOnly may run at the same time.
type Step struct {
	binding
	session *Session
	tf      *tfbind.Step
	outputs []savedmodels.Tensor
	steps   int     // steps per execution; 0 if inputs are not stacked
	seeds   []int64 // two for each step
	// common is the seed, equal on all ranks of a cluster, of the inputs with index commonFrom or
	// higher; nil if the session has no cluster.
	common     []int64
	commonFrom int
	feeds      int64 // number of successful Feeds
	ones       []float32
	// borrows reports whether inputs refer to the memory of a batch. keeps reports whether
	// TensorFlow still referred to a batch after a run.
	borrows, keeps bool
	// callerRuns is the value of Options.CallerRuns that was last set in TensorFlow's step.
	callerRuns bool
	ran        bool // at least once
}

// Prepare makes a Step of a signature, which fetches all outputs. The result must be closed.
func (s *Session) Prepare(signature string) (*Step, error) {
	sig, err := s.model.Signature(signature)
	if err != nil {
		return nil, err
	}
	step, err := s.prepare(s.tf, sig, sig.Outputs, nil)
	if o := s.opts.Only; errors.Is(err, tfbind.ErrNotFound) && o != nil && !slices.Contains(o, signature) {
		return nil, option.Errorf("signature %s was not loaded: add it to {Options.Only}", signature)
	}
	return step, err
}

// callerRuns is a serialized tensorflow.RunOptions with inter_op_thread_pool (field 3) = -1.
var callerRuns = protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), math.MaxUint64)

// prepare makes a Step. The feeds in more come after the inputs of the signature.
func (s *Session) prepare(tf *tfbind.Session, sig *savedmodels.Signature, fetch []savedmodels.Tensor,
	more []tfbind.Output, options ...tfbind.RunOptions) (*Step, error) {
	step := &Step{binding: newBinding(s.model, sig), session: s, outputs: fetch, seeds: make([]int64, 2)}
	var feeds, fetches []tfbind.Output
	for _, side := range []struct {
		word    string
		tensors []savedmodels.Tensor
		to      *[]tfbind.Output
	}{{"input", sig.Inputs, &feeds}, {"output", fetch, &fetches}} {
		for _, t := range side.tensors {
			o, err := tf.Graph().Output(t.Op)
			if err != nil {
				return nil, fmt.Errorf("signature %s, %s %s: %w", sig.Name, side.word, t.Name, err)
			}
			*side.to = append(*side.to, o)
		}
	}
	var err error
	if step.tf, err = tf.Prepare(append(feeds, more...), fetches, options...); err != nil {
		return nil, fmt.Errorf("signature %s: %w", sig.Name, err)
	}
	return step, nil
}

// Close frees the step's buffers. Closing twice does nothing.
func (st *Step) Close() error {
	if st == nil {
		return nil
	}
	return st.tf.Close()
}

// Run runs the signature once. The results are valid until the next run.
func (st *Step) Run(ctx context.Context) error {
	if err := st.setCaller(); err != nil {
		return err
	}
	var err error
	traces := st.session.traces
	if traces == nil {
		err = st.tf.Run(ctx)
	} else {
		var metadata []byte
		metadata, err = st.tf.Trace(ctx)
		*traces = append(*traces, metadata)
	}
	if err != nil {
		return fmt.Errorf("signature %s: %w", st.Signature.Name, err)
	}
	if !st.ran { // TensorFlow rewrote the graph, which takes more memory than most steps
		st.ran = true
		tfbind.TrimMalloc()
	}
	return nil
}

// setCaller applies Options.CallerRuns, which SetCallerRuns may have changed.
func (st *Step) setCaller() error {
	on := st.session.opts.CallerRuns
	if on == st.callerRuns {
		return nil
	}
	var options []byte
	if on {
		options = callerRuns
	}
	if err := st.tf.SetRunOptions(options); err != nil {
		return fmt.Errorf("signature %s: %w", st.Signature.Name, err)
	}
	st.callerRuns = on
	return nil
}

// Float returns a scalar output of the last run. It does not allocate.
func (st *Step) Float(name string) (float64, error) {
	i, err := st.output(name)
	if err != nil {
		return 0, err
	}
	return st.tf.Float(i)
}

// Read copies an output of the last run to an array, whose memory it reuses. Half-precision values become float32,
// without rounding.
func (st *Step) Read(name string, a *data.Array) error {
	i, err := st.output(name)
	if err != nil {
		return err
	}
	values, dims, err := st.tf.Read(i, a.Values)
	if err != nil {
		return fmt.Errorf("output %s: %w", name, err)
	}
	a.Values, a.Shape = values, a.Shape[:0]
	for _, d := range dims {
		a.Shape = append(a.Shape, int(d))
	}
	return nil
}

func (st *Step) output(name string) (int, error) {
	for i := range st.outputs {
		if st.outputs[i].Name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("signature %s has no output %q to read; it has %s", st.Signature.Name, name, names(st.outputs))
}

// runner is a step with its metrics.
type runner struct {
	*Step
	names      []string // names of the metrics, which are the first outputs
	every      []int    // indices of all metrics
	batch      int64    // see batchOf
	reductions []reduction
	part       []float64 // the metrics of a micro-batch
	// finite is the index of the output grads_finite; -1 if there is none.
	finite int
}

func (r *runner) Close() error {
	if r == nil {
		return nil
	}
	return r.Step.Close()
}

// runner prepares a signature. The result is nil after an error.
func (s *Session) runner(tf *tfbind.Session, signature string) (*runner, error) {
	sig, err := s.model.Signature(signature)
	if err != nil {
		return nil, err
	}
	r := &runner{finite: -1, batch: batchOf(sig, 0)}
	fetch := sig.Metrics()
	for i, m := range fetch {
		r.names, r.every = append(r.names, m.Name), append(r.every, i)
		r.reductions = append(r.reductions, reductionOf(s.model, m.Name))
	}
	if t := gradsFinite(sig); t != nil {
		r.finite = len(fetch)
		fetch = append(fetch, *t)
	}
	r.part = make([]float64, len(r.names))
	if r.Step, err = s.prepare(tf, sig, fetch, nil); err != nil {
		return nil, err
	}
	return r, nil
}

// on runs the signature on a batch and writes the metrics to out. It reads large inputs in
// place. applied is false for a skipped step.
func (r *runner) on(ctx context.Context, b data.Batch, out []float64) (applied bool, err error) {
	if err := r.feed(b, true); err != nil {
		return false, err
	}
	if err := errors.Join(r.Run(ctx), r.release(b)); err != nil {
		return false, err
	}
	return r.read(out)
}

// read reads the metrics and grads_finite of the last run. If there is no grads_finite, applied
// is true.
func (r *runner) read(out []float64) (applied bool, err error) {
	for i := range out {
		if out[i], err = r.tf.Float(i); err != nil {
			return false, err
		}
	}
	return r.isFinite(r.finite)
}

// isFinite reads the output grads_finite. If its index is negative, the result is true.
func (st *Step) isFinite(output int) (bool, error) {
	if output < 0 {
		return true, nil
	}
	v, err := st.tf.Float(output)
	return v != 0, err
}

func (r *runner) checkLen(out []float64, want []string) error {
	if len(out) == len(want) {
		return nil
	}
	return fmt.Errorf("signature %s: the slice has length %d, expected %d for the results %v", r.Signature.Name, len(out),
		len(want), want)
}

// find returns the index of each name in the runner's metrics; -1 for a missing name.
func (r *runner) find(names []string) []int {
	at := make([]int, len(names))
	for i, name := range names {
		at[i] = slices.Index(r.names, name)
	}
	return at
}
