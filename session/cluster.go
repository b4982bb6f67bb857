package session

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"steadyfit/cluster"
	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/tfprocess"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/supervise"
	"steadyfit/tfbind"
)

// A session of a cluster runs on a server of TensorFlow's distributed runtime in this process.
// Train takes the whole batch on each rank, and runs the step of savedmodels.Parallel on the rank's
// part. The step's output has the results of all ranks. Each rank combines the results like those
// of micro-batches: the same numbers in the same order. The first rank evaluates alone.

// ranked is the part of a session that belongs to a cluster.
type ranked struct {
	*cluster.Cluster
	server string // the address of its server
	watch  *watch
	// stop is true after RequestStop. stopped is the rank that requested a stop; -1 if none.
	stop    atomic.Bool
	stopped int
	flags   []float32 // buffer for the flags of a step
	stuck   bool      // a run has not ended, so the session cannot be closed
}

// rankNative is the part of ranked that TensorFlow holds.
type rankNative struct {
	*update           // nil without a cluster; the step of its field apply runs the signature gradients, too
	shares  []float32 // the shares of all ranks in the last step
	sum     *tfbind.Step
}

// A share contains the number of the step modulo stepModulus, which float32 represents exactly.
const stepModulus = 1 << 20

// rankOptions is a serialized tensorflow.RunOptions with experimental (8).collective_graph_key
// (1) = 1, which all ranks must set alike.
var rankOptions = []byte{8<<3 | 2, 2, 1 << 3, 1}

// checkCluster compiles Options.Cluster.
func (p *Plan) checkCluster() error {
	c := p.opts.Cluster
	if c == nil {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return &option.Error{Option: "Options.Cluster", Reason: fmt.Sprintf(format, args...)}
	}
	if err := c.Check(); err != nil {
		return err
	}
	switch {
	case p.opts.ReadOnly:
		return refuse("the session was opened read-only")
	case p.opts.Only != nil:
		return refuse("a rank loads all signatures, and {Options.Only} names some")
	case p.opts.StepsPerExecution > 1:
		return refuse("ranks exchange gradients after each step, so they cannot run {Options.StepsPerExecution %d}",
			p.opts.StepsPerExecution)
	case p.opts.Compiled:
		return refuse("ranks train with the signatures gradients and apply, which {Options.Compiled true} does not have")
	}
	err := p.CheckSplit()
	if sig, missing := p.model.Signature(p.roles.Gradients); err == nil && missing == nil && len(c.Workers) > 1 &&
		batchOf(sig, 0) >= 0 {
		return refuse("signature %s has the fixed batch size %d, and each rank takes a part of a batch; export the model "+
			"with an open batch size", sig.Name, batchOf(sig, 0))
	}
	if err == nil {
		p.parallel, err = p.model.Parallel(savedmodels.ParallelOptions{
			Rank: c.Rank, Ranks: len(c.Workers), Inexact: p.opts.AllowInexactSplit,
		})
	}
	if err != nil {
		return &option.Error{Option: "Options.Cluster", Reason: err.Error(), Err: err}
	}
	return nil
}

// oneServer is locked by the session of a cluster that starts a server, and never unlocked: a
// process has one server, which TensorFlow cannot stop.
var oneServer sync.Mutex

// startServer starts the server of this rank and waits for the servers of the other ranks.
func (s *Session) startServer(ctx context.Context) error {
	c := s.opts.Cluster
	if c == nil {
		return nil
	}
	if !oneServer.TryLock() {
		return &option.Error{Option: "Options.Cluster", Reason: "this process has been a rank of a cluster before, and " +
			"TensorFlow cannot stop a server; train in a new process"}
	}
	if err := c.AwaitPort(ctx); err != nil {
		oneServer.Unlock() // there is no server yet
		return err
	}
	r := &ranked{Cluster: c, stopped: -1, flags: make([]float32, contract.ShareFlags)}
	device := fmt.Sprintf("/job:worker/replica:0/task:%d", c.Rank)
	s.config = slices.Clone(s.config)
	s.config = appendText(s.config, 4, device) // device_filters
	s.config = appendText(s.config, 16, string(appendText(nil, 1, "/job:worker/replica:0/task:0")))
	var err error
	if r.server, err = tfprocess.StartServer(serverDef(c, s.config)); err != nil {
		oneServer.Unlock()
		return fmt.Errorf("rank %d of the cluster: %w", c.Rank, err)
	}
	if r.watch, err = startWatch(ctx, c); err != nil {
		return err
	}
	s.rank = r
	return nil
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}

// serverDef returns the serialized tensorflow.ServerDef of a rank.
func serverDef(c *cluster.Cluster, config []byte) []byte {
	job := appendText(nil, 1, "worker")
	for rank, address := range c.Workers {
		task := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(rank))
		job = appendText(job, 2, string(appendText(task, 2, address)))
	}
	def := appendText(nil, 1, string(appendText(nil, 1, string(job))))
	def = appendText(def, 2, "worker")
	def = protowire.AppendVarint(protowire.AppendTag(def, 3, protowire.VarintType), uint64(c.Rank))
	def = appendText(def, 4, string(config)) // default_session_config, which has the collective leader
	return appendText(def, 5, "grpc")
}

// close ends the watch. stuck reports that TensorFlow's session cannot be closed.
func (r *ranked) close() (stuck bool) {
	if r == nil {
		return false
	}
	r.watch.close()
	return r.stuck
}

// prepareRanks adds the operations of a rank to the loaded model.
func (s *Session) prepareRanks(n *native) (err error) {
	if s.rank == nil {
		return nil
	}
	sums, err := s.sumGraph()
	if err != nil {
		return err
	}
	// The concatenation of two messages is their merge, with the version of the second.
	if err := n.tf.Graph().Import(slices.Concat(sums, s.parallel.Graph), ""); err != nil {
		return fmt.Errorf("operations of a rank: %w", err)
	}
	tf, form := n.tf, s.parallel
	gradients, err := s.runner(tf, s.roles.Gradients)
	if err != nil {
		return err
	}
	flags, err := tf.Graph().Output(form.Flags)
	var step *Step
	if err == nil {
		step, err = s.prepare(tf, &form.Signature, form.Signature.Outputs, []tfbind.Output{flags},
			tfbind.RunOptions{Abort: true, Proto: rankOptions})
	}
	if err != nil {
		return errors.Join(err, gradients.Close())
	}
	step.common, step.commonFrom = make([]int64, 2), form.Own
	step.strict = gradients.strict
	u := newUpdate(gradients, step, n.train.names)
	for i, name := range n.train.names {
		if slices.Contains(runningMetrics(s.model), name) {
			u.after[i] = step.index(name)
		}
	}
	n.rank.update = u
	n.rank.shares = make([]float32, len(s.rank.Workers)*(contract.ShareResults+len(gradients.names)))
	n.rank.sum, err = prepareSum(tf)
	return err
}

// join waits until all ranks have loaded the model.
func (s *Session) join(ctx context.Context) error {
	if s.rank == nil {
		return nil
	}
	// A rank that was given up while it loaded the model must not take part: the others may have
	// begun without it.
	if err := causeOf(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { s.rank.watch.cancel(context.Cause(ctx)) })
	_, err := group{s}.Gather(0)
	if !stop() && err == nil {
		err = causeOf(ctx)
	}
	s.rank.watch.joined.Store(err == nil)
	if errors.As(err, new(*tfbind.Error)) && !errors.Is(err, supervise.ErrPeer) {
		return lostRank("another rank", err) // for example because a rank has ended meanwhile
	}
	return err
}

// run runs a step that exchanges values with the other ranks. It returns an error when a rank is
// lost.
func (r *ranked) run(step *tfbind.Step) error {
	for attempt := 0; ; attempt++ {
		err := r.once(step)
		if err == nil {
			return nil
		}
		if lost := context.Cause(r.watch.ctx); lost != nil {
			return lost
		}
		var failed *tfbind.Error
		if !errors.As(err, &failed) {
			return err
		}
		// The server gives each run a random number (GetUniqueRequestId), and refuses a run whose
		// number is among the last 100,000. It does so before anything runs, so the step may run
		// again. If other ranks waited for the run, they fail, and all ranks need new processes.
		if strings.Contains(failed.Message, "request was received twice") && attempt < 3 {
			continue
		}
		select { // a rank that was lost makes runs fail before watch notices it
		case <-r.watch.ctx.Done():
			return context.Cause(r.watch.ctx)
		case <-time.After(time.Second):
		}
		if failedElsewhere(failed) {
			return lostRank("another rank", err)
		}
		return err
	}
}

// failedElsewhere reports whether the cause of a failed run is another rank or the connection to it.
func failedElsewhere(err *tfbind.Error) bool {
	return slices.Contains([]string{"UNAVAILABLE", "ABORTED", "CANCELLED", "DEADLINE_EXCEEDED"}, err.Code) ||
		// A new process of the rank started before the other ranks noticed the end of the old one.
		strings.Contains(err.Message, "incarnation doesn't match") ||
		// The exchange itself failed, such as with "Delete called on non-empty BufRendezvous" after
		// the run of another rank was refused. Errors of the model and of memory have other codes.
		err.Code == "INTERNAL" && strings.Contains(err.Message, "Collective ops is aborted")
}

// grace is the time that an exchange has to end after a rank was lost.
const grace = time.Second

// once runs a step a single time, for at most Cluster.Start. A run that does not end is abandoned,
// since closing a session while an exchange fails may block forever in TensorFlow 2.21 (this
// happened after one of 25 kills of a rank). The process can no longer train anyway.
func (r *ranked) once(step *tfbind.Step) error {
	ended := make(chan error, 1)
	go func() { ended <- step.Run(r.watch.ctx) }()
	limit := time.NewTimer(cmp.Or(r.Start, defaultStart))
	defer limit.Stop()
	select {
	case err := <-ended:
		return err
	case <-limit.C:
		r.watch.cancel(lostRank("another rank", option.Errorf("it did not take part in an exchange for %v; give all ranks "+
			"the same options, or raise {Cluster.Start}", cmp.Or(r.Start, defaultStart))))
	case <-r.watch.ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(grace):
		r.stuck = true
		return context.Cause(r.watch.ctx)
	}
}

// Ranks returns this process as one of several ranks; nil if it trains alone.
func (s *Session) Ranks() contract.RankGroup {
	if s.rank == nil || len(s.rank.Workers) == 1 {
		return nil
	}
	return group{s}
}

// group implements contract.RankGroup.
type group struct{ s *Session }

func (g group) Rank() int    { return g.s.rank.Rank }
func (g group) RequestStop() { g.s.rank.stop.Store(true) }

func (g group) Stopped() error {
	if by := g.s.rank.stopped; by >= 0 {
		return interrupted(by)
	}
	return nil
}

// interrupted is the rank that requested a stop, as an error.
type interrupted int

func (r interrupted) Error() string        { return fmt.Sprintf("rank %d was interrupted", int(r)) }
func (r interrupted) Is(target error) bool { return target == context.Canceled }

func (g group) CheckEqual(ctx context.Context) error {
	p, err := g.s.Snapshot(ctx)
	if err != nil {
		return err
	}
	sum := sha256.New()
	for i, v := range p.values {
		if !g.s.state.variables[i].Weight {
			continue // such as metrics, which an evaluation changes on the first rank
		}
		raw, rawErr := v.Raw()
		err = errors.Join(err, rawErr)
		sum.Write(raw)
	}
	if err := errors.Join(err, p.Close()); err != nil {
		return err
	}
	all, err := g.Gather(int64(binary.LittleEndian.Uint64(sum.Sum(nil))))
	if err != nil {
		return err
	}
	for other, hash := range all {
		if hash != all[0] {
			return option.Errorf("%w: rank %d computes other weights than rank 0; use machines with the same processor, and "+
				"the same {Options.IntraThreads} and TF_ENABLE_ONEDNN_OPTS", contract.ErrRanksDiffer, other)
		}
	}
	return nil
}

func (g group) Leave(finished func()) error {
	if _, err := g.Gather(0); err != nil {
		return err
	}
	finished()
	// All ranks have called Leave, but some may not have received the sum yet, and need this
	// process for that. A second sum, whose value does not matter, waits for these ranks.
	_, _ = g.Gather(0)
	return nil
}

// trainRank runs a step on this rank's part of a batch.
func (s *Session) trainRank(ctx context.Context, step int64, b data.Batch, out []float64) (applied bool, err error) {
	r, n, ranks := s.rank, &s.native.rank, len(s.rank.Workers)
	if b.Size < ranks {
		return false, fmt.Errorf("%w: a batch has %d samples, and each of the %d ranks needs one", ErrData, b.Size, ranks)
	}
	if err := causeOf(ctx); err != nil {
		return false, err
	}
	st := n.apply
	st.setSeeds(partSeed(s.opts.Seed, r.Rank), step)
	st.common[0], st.common[1] = s.opts.Seed, step
	// The inputs are copies, since an abandoned run could still read them after the batch has
	// changed.
	if err := st.feed(partOf(b, r.Rank, ranks), false); err != nil {
		return false, err
	}
	r.flags[0], r.flags[1] = float32(step%stepModulus), 0
	if r.stop.Load() {
		r.flags[1] = 1
	}
	if err := st.tf.Set(len(st.inputs), r.flags, contract.ShareFlags); err != nil {
		return false, err
	}
	if err := r.run(st.tf); err != nil {
		return false, fmt.Errorf("signature %s: %w", st.Signature.Name, err)
	}
	values, _, err := st.tf.Read(0, n.shares)
	if err != nil {
		return false, err
	}
	n.shares = values.([]float32)
	if applied, err = r.combine(n, b, out); err != nil {
		return false, err
	}
	return n.finish(applied, out)
}

// evaluateRank evaluates a batch on the first rank, in as many micro-batches as there are ranks, and
// sends the results to the others, which wait. It evaluates the whole batch if the exporter's notes do
// not say that the metrics of parts can be combined.
func (s *Session) evaluateRank(ctx context.Context, b data.Batch, out []float64) error {
	if err := causeOf(ctx); err != nil {
		return err
	}
	r := s.rank
	values := make([]int64, len(out)+len(r.Workers)) // the results, and which rank requested a stop
	if r.Rank == 0 {
		parts := s.evaluateIn(len(r.Workers), b.Size)
		if m := s.model.Metadata; m == nil || m.LossReduction == "" {
			parts = 1
		}
		if _, err := s.evaluate.inParts(ctx, b, parts, 0, 0, s.evaluate.every, out); err != nil {
			return err
		}
		for i, v := range out {
			values[i] = int64(math.Float64bits(v))
		}
	}
	if r.stop.Load() {
		values[len(out)+r.Rank] = 1
	}
	if err := s.sum(values); err != nil {
		return err
	}
	for i := range out {
		out[i] = math.Float64frombits(uint64(values[i]))
	}
	if by := slices.Index(values[len(out):], 1); by >= 0 && r.stopped < 0 {
		r.stopped = by
	}
	return nil
}

// combine combines the shares of the ranks.
func (r *ranked) combine(n *rankNative, b data.Batch, out []float64) (applied bool, err error) {
	applied = true
	size := len(n.shares) / len(r.Workers)
	err = n.gradients.combine(b, len(r.Workers), n.metrics, out, func(rank int, _ data.Batch) error {
		share := n.shares[rank*size:][:size]
		if share[0] != r.flags[0] {
			return fmt.Errorf("rank %d is not at the same step: %d and %d, modulo %d", rank, int(share[0]),
				int(r.flags[0]), stepModulus)
		}
		if share[1] != 0 && r.stopped < 0 {
			r.stopped = rank
		}
		applied = applied && share[contract.ShareFlags] != 0
		for i := range n.gradients.part {
			n.gradients.part[i] = float64(share[contract.ShareResults+i])
		}
		return nil
	})
	return applied, err
}

// index returns the index of an output; -1 if there is none.
func (st *Step) index(output string) int {
	return slices.IndexFunc(st.outputs, func(t savedmodels.Tensor) bool { return t.Name == output })
}
