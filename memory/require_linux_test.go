package memory

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder is a testingT that records messages.
type recorder struct {
	logs, errors []string
	failed       bool
}

func (r *recorder) Helper()                      {}
func (r *recorder) Logf(format string, a ...any) { r.logs = append(r.logs, fmt.Sprintf(format, a...)) }
func (r *recorder) Errorf(format string, a ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, a...))
}
func (r *recorder) FailNow() { r.failed = true }

// take maps and touches memory outside the Go runtime.
func take(t *testing.T, size Bytes) []byte {
	t.Helper()
	block, err := syscall.Mmap(-1, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	for i := 0; i < len(block); i += page {
		block[i] = 1
	}
	return block
}

func TestRequireFlatFindsALeakOfKnownSize(t *testing.T) {
	const size = 256 * KiB
	var held [][]byte
	defer func() {
		for _, block := range held {
			require.NoError(t, syscall.Munmap(block))
		}
	}()
	leak := func(int) { held = append(held, take(t, size)) }

	v, err := runFlat(64*KiB, mostSteps, leak)
	require.NoError(t, err)
	require.Equal(t, Leak, v.Kind, v)
	require.InEpsilon(t, float64(size), v.Slope.Estimate, 0.05, v)
	require.Contains(t, v.String(), "KiB/step")
	t.Log(v)

	var r recorder
	RequireFlat(&r, 64*KiB, leak)
	require.True(t, r.failed)
	// The message has a rounded amount; the lines above check the exact one.
	require.Regexp(t, `^memory is not flat: leak: \+2[56]\d KiB/step`, r.errors[0])
}

func TestRequireFlatPassesALoopWithoutALeak(t *testing.T) {
	var r recorder
	RequireFlat(&r, 64*KiB, func(int) { require.NoError(t, syscall.Munmap(take(t, 256*KiB))) })
	require.False(t, r.failed, r.errors)
	require.Len(t, r.logs, 1)
	t.Log(r.logs[0])
}

// With large random changes, a few steps cannot show whether memory grows by more than the budget.
func TestRequireFlatSaysHowManyStepsItNeeds(t *testing.T) {
	m := newMaker(1, 8)
	var held [][]byte
	noise := func(int) {
		for len(held) > 0 {
			require.NoError(t, syscall.Munmap(held[len(held)-1]))
			held = held[:len(held)-1]
		}
		for range m.IntN(16) {
			held = append(held, take(t, MiB))
		}
	}
	v, err := runFlat(KiB, 200, noise)
	require.NoError(t, err)
	require.Equal(t, Inconclusive, v.Kind, v)
	require.Positive(t, v.More)
	var r recorder
	report(&r, v, nil, KiB)
	require.True(t, r.failed)
	require.Regexp(t, `^after 200 steps, it is undecided whether memory grows by more than 1\.0 KiB/step; about \d{3,} steps would decide: inconclusive`, r.errors[0])
	for _, block := range held {
		require.NoError(t, syscall.Munmap(block))
	}
}

func TestRequireFlatWhereNothingIsMeasured(t *testing.T) {
	var r recorder
	report(&r, Verdict{}, ErrUnavailable, KiB)
	require.True(t, r.failed)
	require.Contains(t, r.errors[0], "memory cannot be measured here")
}
