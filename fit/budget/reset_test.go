package budget

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/fit"
	"steadyfit/memory"
	"steadyfit/option"
	"steadyfit/session"
)

// resets is a machine whose resets set its memory to the level that the function back returns. It
// is also the gauge of the machine.
type resets struct {
	*machine
	back   func(before memory.Bytes) memory.Bytes
	at     []int // steps after which the session was reset
	closed int
}

func (r *resets) reset(ctx context.Context, depth string) (session.Reset, error) {
	r.at = append(r.at, r.trained)
	r.leaked = r.back(r.leaked)
	return r.machine.reset(ctx, depth)
}

func (r *resets) Read() memory.Reading { return r.level() }

func (r *resets) Close() error {
	r.closed++
	return nil
}

func (r *resets) run(t *testing.T, p ResetPolicy, epochs, steps int, dir string, hooks ...fit.Hook) (*fit.History, error) {
	l := newFake()
	l.onTrain = func(int64) error { r.train(); return nil }
	loop := fit.Loop{Session: l, Batch: 4, Epochs: epochs, Resume: dir}
	if dir != "" {
		loop.Hook(fit.Checkpoint{Folder: dir}.Hook())
	}
	opened := 0
	loop.Hook(p.hook(r, func(memory.Layer) (layerGauge, error) { opened++; return r, nil }))
	loop.Hook(hooks...)
	h, err := loop.Run(t.Context(), samples(t, 4*steps))
	require.Equal(t, opened, r.closed, "what was opened is closed")
	return h, err
}

func all(memory.Bytes) memory.Bytes       { return 0 }
func nothing(b memory.Bytes) memory.Bytes { return b }

// A limit that is exceeded before the first step causes a warning at the start.
func TestResetForALimitThatIsTooLow(t *testing.T) {
	for limit, said := range map[memory.Bytes]int{111 * mib: 1, 112 * mib: 0} {
		var log strings.Builder
		r := &resets{machine: &machine{base: 100 * mib}, back: all}
		loop := fit.Loop{Session: newFake(), Batch: 4, Epochs: 1, Log: slog.New(slog.NewTextHandler(&log, nil))}
		loop.Hook(ResetPolicy{Limit: limit}.hook(r, func(memory.Layer) (layerGauge, error) { return r, nil }))
		_, err := loop.Run(t.Context(), samples(t, 8))
		require.NoError(t, err)
		assert.Equal(t, said, strings.Count(log.String(), `now="100.0 MiB" reset_at="99.9 MiB" limit="111.0 MiB" of=rss`), "%s", &log)
		assert.Equal(t, said, strings.Count(log.String(), "level=WARN"), "%s", &log)
	}
}

func TestResetPolicy(t *testing.T) {
	stopAfter := func(epoch int) fit.Hook {
		return fit.Hook{Name: "stop", Epoch: func(_ context.Context, s *fit.State) error {
			if s.Epoch == epoch {
				s.Stop("early")
			}
			return nil
		}}
	}
	for _, c := range []struct {
		name          string
		p             ResetPolicy
		back          func(memory.Bytes) memory.Bytes
		leak          memory.Bytes // leak per step, from 100 MiB
		epochs, steps int
		hooks         []fit.Hook
		want          []int
	}{
		{"zero value", ResetPolicy{}, all, 0, 2, 10, nil, nil},
		{"none", ResetPolicy{Depth: "none", EverySteps: 1, Limit: mib}, all, 0, 2, 10, nil, nil},
		{"every steps", ResetPolicy{EverySteps: 5}, all, 0, 2, 12, nil, []int{5, 10, 15, 20}},
		{"not after the last step", ResetPolicy{EverySteps: 4}, all, 0, 2, 6, nil, []int{4, 8}},
		{"every epochs", ResetPolicy{EveryEpochs: 2}, all, 0, 6, 5, nil, []int{10, 20}},
		{"once where both are due", ResetPolicy{EverySteps: 5, EveryEpochs: 1}, all, 0, 3, 5, nil, []int{5, 10}},
		{"not when the run is stopped", ResetPolicy{EveryEpochs: 1}, all, 0, 5, 5, []fit.Hook{stopAfter(3)}, []int{5, 10}},
		// 90% of 200 MiB are 80 MiB above the base.
		{"limit", ResetPolicy{Limit: 200 * mib}, all, 2 * mib, 1, 100, nil, []int{40, 80}},
		{"of no use", ResetPolicy{Limit: 200 * mib}, nothing, 2 * mib, 1, 400, nil, []int{40, 56, 88, 152, 280}},
		{"of use for a moment", ResetPolicy{Limit: 200 * mib}, func(b memory.Bytes) memory.Bytes { return b - 4*mib }, 2 * mib, 1, 100, nil, []int{40, 42, 58, 90}},
		{"of use again", ResetPolicy{Limit: 200 * mib}, func(b memory.Bytes) memory.Bytes {
			if b < 110*mib {
				return b
			}
			return 0
		}, 2 * mib, 1, 130, nil, []int{40, 56, 96, 112}},
		// The forecast needs 64 steps.
		{"before the limit", ResetPolicy{Limit: 400 * mib, Within: 50}, all, 2 * mib, 1, 180, nil, []int{81, 162}},
		{"not before the limit", ResetPolicy{Limit: 400 * mib}, all, 2 * mib, 1, 140, nil, []int{130}},
		{"before the limit, of no use", ResetPolicy{Limit: 1000 * mib, Within: 1000}, nothing, 2 * mib, 1, 200, nil, []int{64, 128, 192}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &resets{machine: &machine{base: 100 * mib, leak: c.leak}, back: c.back}
			h, err := r.run(t, c.p, c.epochs, c.steps, "", c.hooks...)
			require.NoError(t, err)
			assert.Equal(t, c.want, r.at)
			count := 0
			for _, record := range h.Records {
				count += record.Resets.Count
			}
			assert.Equal(t, len(c.want), count)
			for _, record := range h.Records {
				for _, one := range record.Resets.Each {
					assert.Equal(t, "reload", one.Depth)
				}
			}
		})
	}
}

// Restarts that do not help are followed by longer and longer waits.
func TestResetPolicyAcrossProcesses(t *testing.T) {
	for _, c := range []struct {
		name string
		leak memory.Bytes
		want []int // the steps of each process
	}{
		{"of use", 2 * mib, []int{40, 40, 40, 40, 40, 40, 40, 40, 40, 40}},
		{"of no use", 90 * mib, []int{1, 1, 16, 32, 64, 128, 158}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			var have []int
			for again := true; again; {
				again = false
				r := &resets{machine: &machine{base: 100 * mib, leak: c.leak}, back: all}
				h, err := r.run(t, ResetPolicy{Depth: "process", Limit: 200 * mib, Restart: func(string) { again = true }}, 4, 100, dir)
				require.NoError(t, err)
				assert.Equal(t, again, h.Stopped != "")
				have = append(have, r.trained)
			}
			assert.Equal(t, c.want, have)
		})
	}
}

// After a failed reset, there is a checkpoint of the last step, unless the session is lost.
func TestFailedResetKeepsWhatWasTrained(t *testing.T) {
	refused := errors.New("the model's folder is gone")
	lost := fmt.Errorf("no memory: %w", session.ErrLost)
	for _, c := range []struct {
		name string
		hook func(*resets) fit.Hook
		at   int // the step of the reset
	}{
		{"every steps", func(r *resets) fit.Hook {
			return ResetPolicy{EverySteps: 7}.hook(r, nil)
		}, 7},
		{"near a limit", func(r *resets) fit.Hook {
			return ResetPolicy{Limit: 200 * mib}.hook(r, func(memory.Layer) (layerGauge, error) { return r, nil })
		}, 40},
		{"every epochs", func(r *resets) fit.Hook {
			return ResetPolicy{EveryEpochs: 1, Depth: "restore"}.hook(r, nil)
		}, 50},
		{"budget", func(r *resets) fit.Hook {
			return (&Budget{Limit: 200 * mib, Batch: 4}).hook(r, r.open)
		}, 48},
	} {
		for _, failure := range []error{refused, lost} {
			t.Run(c.name, func(t *testing.T) {
				r := &resets{machine: &machine{base: 100 * mib, leak: 2 * mib, whole: true, unresettable: failure}, back: nothing}
				dir := t.TempDir()
				l := newFake()
				l.onTrain = func(int64) error { r.train(); return nil }
				loop := fit.Loop{Session: l, Batch: 4, Epochs: 3}
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
	m := &machine{base: 300 * mib, perSample: 10 * mib}
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

func TestResetPolicyOptions(t *testing.T) {
	again := func(string) {}
	for _, c := range []struct {
		p    ResetPolicy
		want string
	}{
		{ResetPolicy{Depth: "deep"}, "ResetPolicy.Depth deep: expected none, restore, reload or process"},
		{ResetPolicy{Depth: "process"}, "ResetPolicy.Restart: missing"},
		{ResetPolicy{EverySteps: -1}, "ResetPolicy.EverySteps -1: expected at least 0"},
		{ResetPolicy{EveryEpochs: -1}, "ResetPolicy.EveryEpochs"},
		{ResetPolicy{Limit: -1}, "ResetPolicy.Limit"},
		{ResetPolicy{Within: 3}, "ResetPolicy.Within 3: there is no limit to forecast; set ResetPolicy.Limit"},
		{ResetPolicy{Depth: "process", Restart: again, Limit: 111 * mib}, "ResetPolicy.Limit 111.0 MiB: 100.0 MiB of rss are in use before the first step, and a new process is due at 99.9 MiB, 90% of the limit; raise the limit"},
	} {
		r := &resets{machine: &machine{base: 100 * mib}, back: all}
		l := newFake()
		loop := fit.Loop{Session: l, Batch: 4, Epochs: 1}
		loop.Hook(c.p.hook(r, func(memory.Layer) (layerGauge, error) { return r, nil }))
		_, err := loop.Run(t.Context(), samples(t, 8))
		require.ErrorContains(t, err, c.want)
		require.ErrorAs(t, err, new(*option.Error))
		require.Zero(t, l.trained)
	}
	r := &resets{machine: &machine{}, back: all}
	_, err := r.run(t, ResetPolicy{Limit: mib, Layer: memory.MallocUsed}, 1, 1, "")
	require.NoError(t, err, "the fake reads all layers")
	loop := fit.Loop{Session: newFake(), Batch: 4, Epochs: 1}
	loop.Hook(ResetPolicy{Limit: mib, Layer: memory.MallocUsed}.Hook(nil))
	_, err = loop.Run(t.Context(), samples(t, 8))
	require.ErrorContains(t, err, "ResetPolicy.Layer malloc")
	require.ErrorAs(t, err, new(*option.Error))
}

// The saved state of a hook can be loaded, and an invalid state is an error.
func TestResetPolicyState(t *testing.T) {
	h := ResetPolicy{}.hook(nil, nil)
	require.ErrorContains(t, h.Load("", json.RawMessage("[]")), "state")
	require.NoError(t, h.Load("", json.RawMessage(`{"wait":32,"near":true}`)))
	state, err := h.Save("")
	require.NoError(t, err)
	assert.JSONEq(t, `{"wait":32,"near":true}`, string(state))
	require.NoError(t, h.Load("", nil))
	state, err = h.Save("")
	require.NoError(t, err)
	assert.Nil(t, state)
	b := (&Budget{}).hook(nil, nil)
	require.ErrorContains(t, b.Load("", json.RawMessage("[]")), "state")
}
