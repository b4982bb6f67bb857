package observe

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"steadyfit/fit"
	"steadyfit/internal/tfproto"
	"steadyfit/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var at = time.Unix(1_700_000_000, 500_000_000)

func record(epoch int, loss float64) *fit.Record {
	return &fit.Record{Epoch: epoch, Step: int64(10 * epoch),
		Metrics: fit.Metrics{{Name: "loss", Value: loss}, {Name: "val_loss", Value: 2 * loss}}}
}

func epoch(n int) *fit.Observation {
	r := record(n, 1/float64(n))
	return &fit.Observation{Moment: fit.AtEpoch, Time: at, Step: r.Step, EpochsDone: n, Record: r, Metrics: r.Metrics}
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

// points returns the scalars of a folder in the order of its files. An event START drops all scalars
// before it whose step is not below its own.
func points(t *testing.T, dir string) (found []point) {
	t.Helper()
	paths, err := eventFiles(dir)
	require.NoError(t, err)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		for len(content) > 0 {
			n := binary.LittleEndian.Uint64(content)
			require.Equal(t, wire.Checksum(content[:8]), binary.LittleEndian.Uint32(content[8:]))
			record := content[12 : 12+n]
			require.Equal(t, wire.Checksum(record), binary.LittleEndian.Uint32(content[12+n:]))
			content = content[n+frameBytes:]
			found = append(found, parse(t, record, &found)...)
		}
	}
	return found
}

func parse(t *testing.T, record []byte, earlier *[]point) (found []point) {
	var event tfproto.Event
	require.NoError(t, proto.Unmarshal(record, &event))
	if session := event.GetSessionLog(); session != nil {
		require.Equal(t, tfproto.SessionLog_START, session.GetStatus())
		*earlier = slices.DeleteFunc(*earlier, func(p point) bool { return p.step >= event.GetStep() })
	}
	for _, v := range event.GetSummary().GetValue() {
		bits := binary.LittleEndian.Uint32(v.GetTensor().GetTensorContent())
		found = append(found, point{v.GetTag(), event.GetStep(), math.Float32frombits(bits)})
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
	tb := &TensorBoard{Dir: dir}
	observe(t, tb, start(fit.Observation{}), &fit.Observation{Moment: fit.AtStep}, epoch(1), epoch(2), end)
	require.Equal(t, []point{{"epoch_loss", 0, 1}, {"epoch_loss", 1, 0.5}}, points(t, filepath.Join(dir, "train")))
	require.Equal(t, []point{
		{"epoch_loss", 0, 2}, {"evaluation_loss_vs_iterations", 10, 2},
		{"epoch_loss", 1, 1}, {"evaluation_loss_vs_iterations", 20, 1},
	}, points(t, filepath.Join(dir, "validation")))

	// A new training in the folder replaces the events of the earlier one in TensorBoard, also those of a
	// validation that it has not reached.
	observe(t, tb, start(fit.Observation{}), end)
	require.Empty(t, points(t, filepath.Join(dir, "validation")))
	observe(t, tb, start(fit.Observation{}), epoch(1), end)
	require.Equal(t, []point{{"epoch_loss", 0, 1}}, points(t, filepath.Join(dir, "train")))
	require.Equal(t, []string{"1700000000", "1700000001", "1700000002"}, seconds(t, filepath.Join(dir, "train")))
}

// seconds returns the seconds in the names of the event files of a folder.
func seconds(t *testing.T, dir string) (found []string) {
	paths, err := eventFiles(dir)
	require.NoError(t, err)
	for _, p := range paths {
		found = append(found, strings.Split(filepath.Base(p), ".")[3])
	}
	return found
}

// A resumed training adds its events to those that are there, or to its earlier epochs.
func TestTensorBoardResumes(t *testing.T) {
	dir := t.TempDir()
	tb := &TensorBoard{Dir: dir}
	observe(t, tb, start(fit.Observation{}), epoch(1))
	for _, w := range tb.writers { // the process crashes
		require.NoError(t, w.file.Close())
	}
	resumed := start(fit.Observation{Resumed: true, Step: 10, EpochsDone: 1, Earlier: []fit.Record{*record(1, 1)}})
	observe(t, tb, resumed, epoch(2), end)
	want := []point{{"epoch_loss", 0, 1}, {"epoch_loss", 1, 0.5}}
	require.Equal(t, want, points(t, filepath.Join(dir, "train")))

	tb = &TensorBoard{Dir: t.TempDir()}
	observe(t, tb, resumed, epoch(2), end)
	require.Equal(t, want, points(t, filepath.Join(tb.Dir, "train")))
	require.Len(t, points(t, filepath.Join(tb.Dir, "validation")), 4)
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
	require.Equal(t, []point{{"epoch_loss", 1, 0.5}}, points(t, filepath.Join(file, "train")),
		"it begins when the folder can be used")

	tb = &TensorBoard{Dir: t.TempDir(), Graph: func() ([]byte, error) { return nil, errors.New("no graph") }}
	require.ErrorContains(t, tb.Observe(t.Context(), start(fit.Observation{})), "no graph")
	observe(t, tb, epoch(1), end)
	require.Len(t, points(t, filepath.Join(tb.Dir, "train")), 1)
}
