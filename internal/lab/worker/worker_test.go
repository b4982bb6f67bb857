package worker

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/child"
	"steadyfit/internal/memlayer"
	"steadyfit/memory"
)

// piped returns a child whose messages the test reads and answers.
func piped(t *testing.T, spec Spec, answers int) (*Child, *os.File) {
	t.Helper()
	messages, out, err := os.Pipe()
	require.NoError(t, err)
	in, answer, err := os.Pipe()
	require.NoError(t, err)
	_, err = answer.WriteString(strings.Repeat(".", answers))
	require.NoError(t, err)
	require.NoError(t, answer.Close())
	sampler, err := memory.NewSampler(0, func(add func(memory.Layer, memory.Reading)) {
		add(memory.MallocUsed, memory.Known(4096))
		add(memlayer.GPUUsed, memory.Reading{})
	})
	require.NoError(t, err)
	c := &Child{Spec: spec, parent: &child.Parent{Messages: out, Requests: in}, sampler: sampler, used: map[string]bool{}}
	t.Cleanup(func() { c.Close(); messages.Close() })
	return c, messages
}

func read(t *testing.T, c *Child, messages *os.File) []Message {
	t.Helper()
	require.NoError(t, c.parent.Messages.Close())
	var all []Message
	for d := json.NewDecoder(messages); d.More(); {
		var m Message
		require.NoError(t, d.Decode(&m))
		all = append(all, m)
	}
	return all
}

func TestStepsAreSampledWhenDue(t *testing.T) {
	c, messages := piped(t, Spec{Every: 2}, 3)
	require.NoError(t, c.Phase(PhaseFirst))
	for step := 1; step <= 5; step++ {
		require.NoError(t, c.Step(step))
	}
	require.NoError(t, c.Done(nil, ""))
	all := read(t, c, messages)
	require.Len(t, all, 4)
	assert.Equal(t, PhaseFirst, all[0].Name)
	assert.Equal(t, []int{2, 4}, []int{all[1].Step, all[2].Step})
	assert.Positive(t, all[1].StepNS)
	assert.Equal(t, int64(4096), *all[1].Values[memory.MallocUsed])
	absent, there := all[1].Values[memlayer.GPUUsed]
	assert.True(t, there)
	assert.Nil(t, absent, "what is not known is null, not 0")
	assert.Equal(t, Message{Kind: KindEnd}, all[3])
}

// A divided batch has the same dataset. A Spec for the whole batch does not set Samples.
func TestSetSize(t *testing.T) {
	for _, c := range []struct {
		spec       Spec
		set, whole int
		text       string
	}{
		{Spec{Epoch: 128, Batch: 32}, 4096, 32, ""},
		{Spec{Epoch: 128, Batch: 16, Samples: 4096}, 4096, 32, `"samples":4096`},
		{Spec{Epoch: 128, Batch: 8, Samples: 4096}, 4096, 32, `"samples":4096`},
	} {
		assert.Equal(t, c.set, c.spec.SetSize())
		assert.Equal(t, c.whole, c.spec.WholeBatch())
		text, err := json.Marshal(c.spec)
		require.NoError(t, err)
		assert.Equal(t, c.text != "", strings.Contains(string(text), `"samples"`))
		assert.Contains(t, string(text), c.text)
	}
}

func TestASpecThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		"": "is not set", "{": "STEADYFIT_RUN",
	} {
		t.Setenv(Env, text)
		_, err := Start()
		require.ErrorContains(t, err, want)
	}
	for want, s := range map[string]Spec{
		"every 0": {Steps: 1, Epoch: 1},
		"10 samples: expected a multiple of the 3 steps": {Steps: 1, Every: 1, Epoch: 3, Samples: 10},
		"-3 samples": {Steps: 1, Every: 1, Epoch: 3, Samples: -3},
	} {
		require.ErrorContains(t, s.check(), want)
	}
}

func TestAParentThatIsGoneEndsTheChild(t *testing.T) {
	c, _ := piped(t, Spec{Every: 1}, 0)
	require.ErrorContains(t, c.Step(1), "the parent has ended")
}

func TestAParameterThatNobodyAsksForIsNotApplicable(t *testing.T) {
	c, messages := piped(t, Spec{Every: 1, Params: map[string]string{"prefetch": "4", "reset": "reload"}}, 0)
	assert.Equal(t, "reload", c.Param("reset", "none"))
	require.NoError(t, c.Done(nil, ""))
	all := read(t, c, messages)
	require.Len(t, all, 1)
	assert.Equal(t, NotApplicable, all[0].Failure)
	assert.Contains(t, all[0].Text, "prefetch=4")
}

func TestChoice(t *testing.T) {
	c, _ := piped(t, Spec{Every: 1, Params: map[string]string{"data": "cloud"}}, 0)
	assert.Equal(t, "none", c.Choice("reset", "none", "reload"))
	err := Caught(func() { c.Choice("data", "memory", "disk") })
	require.ErrorIs(t, err, ErrParameter)
	require.ErrorContains(t, err, "memory, disk")
}

func TestOnlyErrorsOfTheRunAreCaught(t *testing.T) {
	require.NoError(t, Caught(func() { Check(nil) }))
	require.ErrorIs(t, Caught(func() { Must(os.Open("")) }), os.ErrNotExist)
	require.PanicsWithValue(t, "a fault", func() { _ = Caught(func() { panic("a fault") }) })
}
