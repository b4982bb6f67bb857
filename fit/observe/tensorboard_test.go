package observe

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/framework/summary_go_proto"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"steadyfit/fit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var at = time.Unix(1_700_000_000, 500_000_000)

func record(epoch int, loss float64) *fit.Record {
	return &fit.Record{Epoch: epoch, Step: int64(10 * epoch), Metrics: fit.Metrics{{Name: "loss", Value: loss}, {Name: "val_loss", Value: 2 * loss}}}
}

func epoch(n int) *fit.Observation {
	r := record(n, 1/float64(n))
	return &fit.Observation{Moment: fit.AtEpoch, Time: at, Step: r.Step, EpochsDone: n, Record: r, Metrics: r.Metrics}
}

func step(n int64) *fit.Observation {
	return &fit.Observation{Moment: fit.AtStep, Time: at, Step: n, EpochStep: int(n % 10), StepsPerEpoch: 10, Metrics: fit.Metrics{{Name: "loss", Value: float64(n)}}}
}

func observe(t *testing.T, o fit.Observer, list ...*fit.Observation) {
	t.Helper()
	for _, one := range list {
		require.NoError(t, o.Observe(t.Context(), one))
	}
}

// point is a value of a tag at a step.
type point struct {
	tag   string
	step  int64
	value float32
}

// points returns the scalars of a folder in the order of its files. An event START drops all
// scalars before it.
func points(t *testing.T, dir string) (found []point) {
	t.Helper()
	paths, err := eventFiles(dir)
	require.NoError(t, err)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		for len(content) > 0 {
			b, size, ok := unframe(content)
			require.True(t, ok, "%s has an incomplete record", path)
			content = content[size:]
			e, values, err := parseEvent(b)
			require.NoError(t, err)
			if e.start {
				found = nil
			}
			for _, v := range values {
				found = append(found, point{v.Tag, e.step, math.Float32frombits(binary.LittleEndian.Uint32(v.GetTensor().TensorContent))})
			}
		}
	}
	return found
}

func start(o fit.Observation) *fit.Observation {
	o.Moment, o.Time = fit.AtStart, at
	return &o
}

var end = &fit.Observation{Moment: fit.AtEnd, Time: at}

func TestTensorBoard(t *testing.T) {
	dir := t.TempDir()
	tb := &TensorBoard{Dir: dir, EverySteps: 5}
	observe(t, tb, start(fit.Observation{}), step(3), step(5), epoch(1), epoch(2), end)
	require.Equal(t, []point{{"batch_loss", 5, 5}, {"epoch_loss", 0, 1}, {"epoch_loss", 1, 0.5}}, points(t, filepath.Join(dir, "train")))
	require.Equal(t, []point{
		{"epoch_loss", 0, 2}, {"evaluation_loss_vs_iterations", 10, 2},
		{"epoch_loss", 1, 1}, {"evaluation_loss_vs_iterations", 20, 1},
	}, points(t, filepath.Join(dir, "validation")))

	// A new training in the folder replaces the events of the earlier one in TensorBoard.
	observe(t, tb, start(fit.Observation{}), epoch(1), end)
	require.Equal(t, []point{{"epoch_loss", 0, 1}}, points(t, filepath.Join(dir, "train")))
	require.Equal(t, []string{"events.out.tfevents.1700000000", "events.out.tfevents.1700000001"}, prefixes(t, filepath.Join(dir, "train")))
}

func prefixes(t *testing.T, dir string) (found []string) {
	paths, err := eventFiles(dir)
	require.NoError(t, err)
	for _, p := range paths {
		found = append(found, filepath.Base(p)[:len("events.out.tfevents.1700000000")])
	}
	return found
}

// The events of a resumed training have each step once, with the values of the run that came last.
func TestTensorBoardResumes(t *testing.T) {
	dir := t.TempDir()
	tb := &TensorBoard{Dir: dir, EverySteps: 5}
	observe(t, tb, start(fit.Observation{}), epoch(1), epoch(2), end) // an earlier training
	observe(t, tb, start(fit.Observation{}), step(5), epoch(1), step(15), epoch(2), step(25), epoch(3))
	for _, w := range tb.writers { // the process crashes while it writes
		_, err := w.file.WriteAt(frame([]byte("x"))[:9], w.size)
		require.NoError(t, err)
		require.NoError(t, w.close())
	}
	resumed := start(fit.Observation{Resumed: true, Step: 10, EpochsDone: 1, Earlier: []fit.Record{*record(1, 1)}})
	observe(t, tb, resumed, step(15), epoch(2), step(25), epoch(3), end)
	require.Equal(t, []point{
		{"batch_loss", 5, 5}, {"epoch_loss", 0, 1}, {"batch_loss", 15, 15}, {"epoch_loss", 1, 0.5}, {"batch_loss", 25, 25}, {"epoch_loss", 2, float32(1. / 3)},
	}, points(t, filepath.Join(dir, "train")))
	require.Equal(t, []point{
		{"epoch_loss", 0, 2}, {"evaluation_loss_vs_iterations", 10, 2},
		{"epoch_loss", 1, 1}, {"evaluation_loss_vs_iterations", 20, 1},
		{"epoch_loss", 2, float32(2. / 3)}, {"evaluation_loss_vs_iterations", 30, float32(2. / 3)},
	}, points(t, filepath.Join(dir, "validation")))

	// In another folder, the events of earlier epochs are added.
	other := t.TempDir()
	tb = &TensorBoard{Dir: other}
	resumed = start(fit.Observation{Resumed: true, Step: 20, EpochsDone: 2, Earlier: []fit.Record{*record(1, 1), *record(2, 0.5)}})
	observe(t, tb, resumed, epoch(3), end)
	require.Equal(t, []point{{"epoch_loss", 0, 1}, {"epoch_loss", 1, 0.5}, {"epoch_loss", 2, float32(1. / 3)}}, points(t, filepath.Join(other, "train")))
}

// A run that resumes in the folder of another training keeps the files of that training. TensorBoard
// shows the run, with its earlier epochs.
func TestTensorBoardResumesBesideAnotherTraining(t *testing.T) {
	const losses = "epoch_loss"
	for name, o := range map[string]fit.Observation{
		"other values":  {Resumed: true, Step: 10, EpochsDone: 1, Earlier: []fit.Record{*record(1, 9)}},
		"no epoch":      {Resumed: true, Step: 5},
		"its own epoch": {Resumed: true, Step: 10, EpochsDone: 1, Earlier: []fit.Record{*record(1, 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tb := &TensorBoard{Dir: dir, EverySteps: 5}
			observe(t, tb, start(fit.Observation{}), step(5), epoch(1), epoch(2), end)
			content := func() (all []byte) {
				for _, run := range []string{"train", "validation"} {
					paths, err := eventFiles(filepath.Join(dir, run))
					require.NoError(t, err)
					b, err := os.ReadFile(paths[0])
					require.NoError(t, err)
					all = append(all, b...)
				}
				return all
			}
			before := content()
			observe(t, tb, start(o), end)
			got := points(t, filepath.Join(dir, "train"))
			if name == "its own epoch" {
				require.NotEqual(t, before, content())
				require.Equal(t, []point{{"batch_loss", 5, 5}, {losses, 0, 1}}, got)
				return
			}
			require.Equal(t, before, content())
			var want []point
			for _, r := range o.Earlier {
				want = append(want, point{losses, 0, float32(r.Metrics[0].Value)})
			}
			require.Equal(t, want, got)
		})
	}
	// If the first epoch is not complete, there are no values to compare, and the training counts
	// as the same.
	dir := t.TempDir()
	tb := &TensorBoard{Dir: dir, EverySteps: 5}
	observe(t, tb, start(fit.Observation{}), step(5), step(10), end)
	observe(t, tb, start(fit.Observation{Resumed: true, Step: 5}), step(10), end)
	require.Equal(t, []point{{"batch_loss", 5, 5}, {"batch_loss", 10, 10}}, points(t, filepath.Join(dir, "train")))
}

// A training that ends before its first validation and resumes keeps the files of an earlier training.
func TestTensorBoardKeepsEarlierValidations(t *testing.T) {
	dir := t.TempDir()
	tb := &TensorBoard{Dir: dir}
	observe(t, tb, start(fit.Observation{}), epoch(1), epoch(2), end)
	paths, err := eventFiles(filepath.Join(dir, "validation"))
	require.NoError(t, err)
	before, err := os.ReadFile(paths[0])
	require.NoError(t, err)
	observe(t, tb, start(fit.Observation{}), end)
	observe(t, tb, start(fit.Observation{Resumed: true, Step: 1}), epoch(1), end)
	after, err := os.ReadFile(paths[0])
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Equal(t, []point{{"epoch_loss", 0, 2}, {"evaluation_loss_vs_iterations", 10, 2}}, points(t, filepath.Join(dir, "validation")))
}

// Files of other programs stay as they are, also those that are newer.
func TestTensorBoardKeepsOtherFiles(t *testing.T) {
	dir := t.TempDir()
	observe(t, &TensorBoard{Dir: dir}, start(fit.Observation{}), end)
	keras := filepath.Join(dir, "train", "events.out.tfevents.1800000000.host.1.0.v2")
	summary, err := proto.Marshal(&pb.Summary{Value: []*pb.Summary_Value{scalar("epoch_loss", 1)}})
	require.NoError(t, err)
	content := frame(event(at, 9, message(nil, eventSummary, summary)))
	require.NoError(t, os.WriteFile(keras, content, 0o666))
	tb := &TensorBoard{Dir: dir}
	observe(t, tb, start(fit.Observation{Resumed: true, Step: 10, EpochsDone: 1}), end)
	after, err := os.ReadFile(keras)
	require.NoError(t, err)
	require.Equal(t, content, after)
}

func TestTensorBoardReportsErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	tb := &TensorBoard{Dir: file}
	err := tb.Observe(t.Context(), start(fit.Observation{}))
	require.ErrorContains(t, err, "event files for TensorBoard in "+file)
	require.Error(t, tb.Observe(t.Context(), epoch(1)))
	require.NoError(t, os.Remove(file))
	observe(t, tb, epoch(2), end)
	require.Equal(t, []point{{"epoch_loss", 1, 0.5}}, points(t, filepath.Join(file, "train")), "it begins when the folder can be used")

	tb = &TensorBoard{Dir: t.TempDir(), Graph: func() ([]byte, error) { return nil, errors.New("no graph") }}
	require.ErrorContains(t, tb.Observe(t.Context(), start(fit.Observation{})), "no graph")
	observe(t, tb, epoch(1), end)
	require.Len(t, points(t, filepath.Join(tb.Dir, "train")), 1)
}
