package tune

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"steadyfit/data"
	"steadyfit/internal/native"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// Env is the environment variable that makes a process a child of a race.
const Env = "STEADYFIT_TUNE"

// spec is what a child is to run. It is the first line on its standard input; each
// further line is a round.
type spec struct {
	Library string `json:"library"`
	// Model is the folder of the SavedModel, and Hash that of its graph.
	Model     string          `json:"model"`
	Hash      string          `json:"hash"`
	Loss      string          `json:"loss"` // savedmodels.Model.LossOutput
	Options   session.Options `json:"options"`
	Candidate Candidate       `json:"candidate"`
	Data      []string        `json:"data"` // .npy files, one per field
	// Fields are the names of their fields.
	Fields []string `json:"fields"`
	Batch  int      `json:"batch"`
	// LearningRate is fed where the model takes one; 0 is not to set it.
	LearningRate float64 `json:"learning_rate"`
}

// round asks for steps for that long, and one call at least.
type round struct {
	Seconds float64 `json:"seconds"`
}

// answer is a line of the child's standard output: one when it has warmed up, and one for
// each round.
type answer struct {
	// Step is the time of a step, and Call that of a call, in seconds.
	Step float64 `json:"step"`
	Call float64 `json:"call"`
	// Finite is false once a loss was NaN or infinite.
	Finite bool         `json:"finite"`
	Peak   memory.Bytes `json:"peak"`
	Anon   memory.Bytes `json:"anon"`
	Base   memory.Bytes `json:"base"`
	// Failure says why there is no more to come. Lasting is that it would fail again at
	// another time.
	Failure string `json:"failure,omitempty"`
	Lasting bool   `json:"lasting,omitempty"`
}

// lasting are errors of a model that cannot run in some way; others, such as a lack of
// memory, may pass.
func lasting(err error) bool {
	for _, kind := range []error{tfbind.ErrInvalidArgument, tfbind.ErrFailedPrecondition, &tfbind.Error{Code: tfbind.Unimplemented}, session.ErrStack, session.ErrNoSignature, session.ErrData} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Child is the first call of main in a program that calls Choose. In a child of a race it
// does what the race asks for, and returns true at the end of it: main then returns, with
// an exit code that is not 0 if there is an error. In any other process it returns false
// at once.
func Child(ctx context.Context) (bool, error) {
	if os.Getenv(Env) == "" {
		return false, nil
	}
	// Should memory get short, this process is the one to end. Where that cannot be said,
	// the kernel decides.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	out := json.NewEncoder(os.Stdout)
	err := compete(ctx, listen(os.Stdin), out)
	if err != nil {
		err = errors.Join(err, out.Encode(answer{Failure: err.Error(), Lasting: lasting(err)}))
	}
	return true, err
}

// line is a line of standard input, or the error of reading it.
type line struct {
	text []byte
	err  error
}

// listen reads what is asked. A parent that is gone ends this process at once, whatever it
// does: TensorFlow may be compiling, or far from the end of a call, and nobody waits for it.
func listen(from io.Reader) <-chan line {
	asked := make(chan line, 1)
	go func() {
		for in := bufio.NewReader(from); ; {
			text, err := in.ReadBytes('\n')
			if errors.Is(err, io.EOF) {
				os.Exit(0) // lint:allow exit: the process is the race's own, and has nothing to save
			}
			asked <- line{text, err}
			if err != nil {
				return
			}
		}
	}()
	return asked
}

// compete runs the rounds that it is asked for. It returns with an error, or not at all.
func compete(ctx context.Context, asked <-chan line, out *json.Encoder) (err error) {
	var s spec
	if err := next(asked, &s); err != nil {
		return err
	}
	r, err := begin(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	var a answer
	for range warmUp {
		if a, err = r.run(ctx, 0); err != nil {
			return err
		}
	}
	for {
		if err := out.Encode(a); err != nil {
			return err
		}
		var ask round
		if err := next(asked, &ask); err != nil {
			return err
		}
		if a, err = r.run(ctx, ask.Seconds); err != nil {
			return err
		}
	}
}

// next waits for a line.
func next(asked <-chan line, into any) error {
	l := <-asked
	if l.err != nil {
		return fmt.Errorf("race: %w", l.err)
	}
	if err := json.Unmarshal(l.text, into); err != nil {
		return fmt.Errorf("race: what was asked: %w", err)
	}
	return nil
}

// warmUp is how many calls come before the first round: TensorFlow rewrites and compiles
// graphs in the first, and settles its buffers in the second.
const warmUp = 3

// runner trains on the same few batches again and again.
type runner struct {
	session *session.Session
	data    *data.InMemory
	fields  []string
	next    func() (data.Batch, error, bool)
	stop    func()
	steps   int // in a call
	done    int64
	out     []float64
	finite  bool
	base    memory.Bytes
}

func begin(ctx context.Context, s spec) (*runner, error) {
	if _, err := tfbind.Load(s.Library); err != nil {
		return nil, err
	}
	if want := s.Candidate.Allocator; want != "" && native.Allocator() != want {
		return nil, fmt.Errorf("race: the allocator is %s, and was to be %s", native.Allocator(), want)
	}
	base := ownMemory()
	model, err := savedmodels.Open(s.Model)
	if err != nil {
		return nil, err
	}
	if model, err = model.WithLoss(s.Loss); err != nil {
		return nil, err
	}
	if model.Hash != s.Hash {
		return nil, fmt.Errorf("%w: %s has another graph than when the race began", savedmodels.ErrChanged, s.Model)
	}
	r := &runner{fields: s.Fields, finite: true, base: base}
	if r.data, err = data.OpenNPY(s.Data...); err != nil {
		return nil, err
	}
	if have := len(r.data.Fields()); have != len(s.Fields) || r.data.Len() < s.Batch {
		return nil, errors.Join(fmt.Errorf("race: %d samples of %d fields of data, expected a batch of %d with %d", r.data.Len(), have, s.Batch, len(s.Fields)), r.close())
	}
	o := s.Candidate.Apply(s.Options)
	plan, err := session.Compile(model, o)
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	if r.session, err = session.Open(ctx, plan); err != nil {
		return nil, errors.Join(err, r.close())
	}
	if s.LearningRate > 0 {
		if err := r.session.SetLearningRate(s.LearningRate); err != nil {
			return nil, errors.Join(err, r.close())
		}
	}
	r.steps = r.session.Stackable(max(o.StepsPerExecution, 1), s.Batch)
	if n := s.Candidate.StepsPerExecution; n > 1 && n != r.steps {
		return nil, errors.Join(fmt.Errorf("%w: expected %d, and %d do", session.ErrStack, n, r.steps), r.close())
	}
	// As in a training: what is read ahead takes memory and time, too.
	ahead := data.Prefetch(r.data, data.AheadFor(r.data, s.Batch))
	ahead.SetBlock(r.steps)
	whole := r.data.Len() / s.Batch
	if whole > r.steps {
		whole -= whole % r.steps // so that calls end with a pass
	}
	r.next, r.stop = iter.Pull2(passes(ahead, s.Batch, whole))
	r.out = make([]float64, len(r.session.TrainMetrics()))
	if n := len(r.session.EvaluateMetrics()); n > 0 && (o.Device.Executor != "" || o.CallerRuns) {
		// An executor cannot run all graphs, and a training must not fail at its first validation.
		for b, err := range r.data.Batches(data.Pass{Batch: s.Batch}) {
			if err == nil {
				err = r.session.Evaluate(ctx, r.named(b), make([]float64, n))
			}
			if err != nil {
				return nil, errors.Join(err, r.close())
			}
			break
		}
		if err := r.session.ResetMetrics(ctx); err != nil {
			return nil, errors.Join(err, r.close())
		}
	}
	return r, nil
}

// passes walks the first n batches of a dataset, which has some, again and again.
func passes(ds data.Dataset, batch, n int) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		for {
			for b, err := range ds.Batches(data.Pass{Batch: batch}) {
				if !yield(b, err) || err != nil {
					return
				}
				if b.Index == n-1 {
					break
				}
			}
		}
	}
}

// named is a batch with the names of the fields in the data of the training.
func (r *runner) named(b data.Batch) data.Batch {
	b.Fields = slices.Clone(b.Fields)
	for i, name := range r.fields {
		b.Fields[i].Name = name
	}
	return b
}

// run makes calls for so many seconds, and one at least.
func (r *runner) run(ctx context.Context, seconds float64) (answer, error) {
	calls := 0
	start := time.Now()
	var took float64
	for calls == 0 || took < seconds {
		if err := r.call(ctx); err != nil {
			return answer{}, err
		}
		calls++
		took = time.Since(start).Seconds()
	}
	usage, err := memory.Read()
	if err != nil {
		return answer{}, err
	}
	// What is not known is 0.
	return answer{
		Step: took / float64(calls*r.steps), Call: took / float64(calls), Finite: r.finite,
		Peak: usage.Peak.Bytes, Anon: usage.Anon.Bytes, Base: r.base,
	}, nil
}

func (r *runner) close() error {
	if r.stop != nil {
		r.stop()
	}
	return errors.Join(r.session.Close(), r.data.Close())
}

// call runs the steps of one call, on the batches that come next.
func (r *runner) call(ctx context.Context) error {
	for i := range r.steps {
		b, err, _ := r.next()
		switch {
		case err != nil:
			return err
		case r.steps > 1:
			err = r.session.Stack(i, r.steps, r.named(b))
		default:
			err = r.session.Train(ctx, r.done, r.named(b), r.out)
		}
		if err != nil {
			return err
		}
	}
	if r.steps > 1 {
		if err := r.session.TrainN(ctx, r.done, r.steps, r.out); err != nil {
			return err
		}
	}
	r.done += int64(r.steps)
	r.finite = r.finite && finite(r.out[:1]) // the loss; a metric may be NaN for want of a class
	return nil
}

// sampleBytes is about how much of the data a race runs on, in bytes: enough for the
// steps of a call to be on different batches, and little beside what the race takes.
const sampleBytes = 64 << 20

// sample writes the first batches of a dataset to .npy files in a folder, for the children
// of a race to read: as many as a call has steps as a rule, but no more than fit into
// sampleBytes and can be read in about so much time, and one at least. There is an error
// if there is no whole batch. The fields are those that the train signature is fed; the
// files have numbers for names, since a field's may be anything.
func sample(m *savedmodels.Model, o session.Options, ds data.Dataset, batch int, dir string, within time.Duration) (paths, fields []string, err error) {
	plan, err := session.Compile(m, o)
	if err != nil {
		return nil, nil, err
	}
	pass := data.Pass{Batch: batch, DropRemainder: true}
	fed, err := session.CheckData(m, plan.Roles().Train, ds, pass)
	if err != nil {
		return nil, nil, err
	}
	start, read := time.Now(), 0
	for _, err := range ds.Batches(pass) {
		if err != nil {
			return nil, nil, err
		}
		if read++; read == 2 {
			break
		}
	}
	each := max(time.Since(start)/time.Duration(max(read, 1)), 1)
	count := max(min(usualFuse, ds.Len()/batch, int(sampleBytes/max(batchBytes(ds, batch), 1)), int(within/each)), 1)
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
	}()
	var arrays []data.Writer
	wanted := slices.Collect(maps.Values(fed))
	var at []int // in a batch
	for i, f := range ds.Fields() {
		if !slices.Contains(wanted, f.Name) {
			continue
		}
		file, err := os.Create(filepath.Join(dir, strconv.Itoa(i)+".npy"))
		if err != nil {
			return nil, nil, err
		}
		files, at = append(files, file), append(at, i)
		paths, fields = append(paths, file.Name()), append(fields, f.Name)
		arrays = append(arrays, data.NewNPYWriter(file, count*batch))
	}
	written := 0
	for b, err := range ds.Batches(pass) {
		if err != nil {
			return nil, nil, err
		}
		for i, a := range arrays {
			if err := a.Write(b.Fields[at[i]]); err != nil {
				return nil, nil, err
			}
		}
		if written++; written == count {
			break
		}
	}
	for _, a := range arrays {
		if err := a.Flush(); err != nil {
			return nil, nil, err
		}
	}
	return paths, fields, nil
}
