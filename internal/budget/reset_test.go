package budget

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/option"
	"steadyfit/session"
)

// run trains with resets. The steps after which the session was reset are in m.resets.
func (m *machine) run(t *testing.T, p Resets, epochs, steps int, hooks ...fit.Hook) (*fit.History, error) {
	m.batch = 4
	loop := fit.Loop{Session: m, Batch: 4, Epochs: epochs}
	loop.Hook(p.hook(m))
	loop.Hook(hooks...)
	return loop.Run(t.Context(), samples(t, 4*steps))
}

func TestResets(t *testing.T) {
	stop := fit.Hook{Name: "stop", Epoch: func(_ context.Context, s *fit.State) error {
		if s.Epoch == 3 {
			s.Stop("early")
		}
		return nil
	}}
	for _, c := range []struct {
		name          string
		p             Resets
		epochs, steps int
		hooks         []fit.Hook
		want          []int
	}{
		{"zero value", Resets{}, 2, 10, nil, nil},
		{"none", Resets{Depth: "none", EverySteps: 1}, 2, 10, nil, nil},
		{"every steps", Resets{EverySteps: 5}, 2, 12, nil, []int{5, 10, 15, 20}},
		{"not after the last step", Resets{EverySteps: 4}, 2, 6, nil, []int{4, 8}},
		{"every epochs", Resets{EveryEpochs: 2}, 6, 5, nil, []int{10, 20}},
		{"once where both are due", Resets{EverySteps: 5, EveryEpochs: 1}, 3, 5, nil, []int{5, 10}},
		{"not when the run is stopped", Resets{EveryEpochs: 1}, 5, 5, []fit.Hook{stop}, []int{5, 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := behaviour{base: 100 * mib}.process()
			h, err := m.run(t, c.p, c.epochs, c.steps, c.hooks...)
			require.NoError(t, err)
			assert.Equal(t, c.want, m.resets)
			count := 0
			for _, record := range h.Records {
				count += record.Resets.Count
			}
			assert.Equal(t, len(c.want), count)
		})
	}
}

// A reset of the process stops the run, and is requested once.
func TestResetByProcess(t *testing.T) {
	var reasons []string
	m := &machine{}
	h, err := m.run(t, Resets{Depth: "process", EverySteps: 3, Restart: func(r string) { reasons = append(reasons, r) }},
		2, 5)
	require.NoError(t, err)
	assert.Equal(t, "resuming in a new process: after 3 steps", h.Stopped)
	assert.Equal(t, []string{"after 3 steps"}, reasons)
	assert.Equal(t, 3, m.trained)
}

// After a failed reset, there is a checkpoint of the last step, unless the session is lost.
func TestFailedResetKeepsWhatWasTrained(t *testing.T) {
	refused := errors.New("the model's folder is gone")
	lost := fmt.Errorf("no memory: %w", session.ErrLost)
	for _, c := range []struct {
		name string
		hook func(*machine) fit.Hook
		at   int // the step of the reset
	}{
		{"every steps", func(m *machine) fit.Hook { return Resets{EverySteps: 7}.hook(m) }, 7},
		{"every epochs", func(m *machine) fit.Hook { return Resets{EveryEpochs: 1, Depth: "restore"}.hook(m) }, 50},
	} {
		for _, failure := range []error{refused, lost} {
			t.Run(c.name, func(t *testing.T) {
				r := behaviour{batch: 4, base: 100 * mib, leak: 2 * mib, whole: true, unresettable: failure}.process()
				dir := t.TempDir()
				loop := fit.Loop{Session: r, Batch: 4, Epochs: 3}
				loop.Hook(fit.Checkpoint{Folder: dir, EveryEpochs: 3}.Hook(), c.hook(r))
				h, err := loop.Run(t.Context(), samples(t, 200))
				require.ErrorIs(t, err, failure)
				require.ErrorAs(t, err, new(*fit.HookError))
				require.False(t, h.Done)
				require.Equal(t, c.at, r.trained)
				if errors.Is(failure, session.ErrLost) {
					require.Empty(t, h.Checkpoint)
					return
				}
				require.ErrorContains(t, err, fmt.Sprintf("after step %d: ", c.at))
				require.Contains(t, h.Stopped, refused.Error())
				require.Equal(t, filepath.Join(dir, fmt.Sprintf("ckpt-%d", c.at)), h.Checkpoint)
				require.EqualValues(t, c.at, savedStep(t, h.Checkpoint))
			})
		}
	}
}

// If batches cannot be split any further, there is also a checkpoint of the last step.
func TestFailedSplitKeepsWhatWasTrained(t *testing.T) {
	refused := errors.New("no room for the step")
	m := behaviour{base: 300 * mib, perSample: 10 * mib}.process()
	m.afterStep = func(m *machine) {
		if m.trained == 3 {
			m.unsettable = refused
		}
	}
	h, err := attempt{epochs: 1, steps: 40, dir: t.TempDir()}.run(t, m, &Budget{Limit: 2000 * mib})
	require.ErrorIs(t, err, refused)
	require.Less(t, m.trained, 40)
	require.EqualValues(t, m.trained, savedStep(t, h.Checkpoint))
}

func TestResetOptions(t *testing.T) {
	for _, c := range []struct {
		p    Resets
		want string
	}{
		{Resets{Depth: "deep"}, "Reset.Depth deep: expected none, restore, reload or process"},
		{Resets{Depth: "process"}, "Reset.Depth process: it needs a supervisor"},
		{Resets{EverySteps: -1}, "Reset.EverySteps -1: expected at least 0"},
		{Resets{EveryEpochs: -1}, "Reset.EveryEpochs"},
	} {
		m := &machine{}
		_, err := m.run(t, c.p, 1, 2)
		require.ErrorContains(t, err, c.want)
		require.ErrorAs(t, err, new(*option.Error))
		require.Zero(t, m.trained)
	}
	require.ErrorContains(t, (&Budget{}).hook(nil, nil).Load(json.RawMessage("[]")), "state")
}
