//go:build galeone

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/internal/lab/program"
)

// A burst is the set of tensors that all goroutines create in a step.
const (
	burstTensors = 320
	burstLeast   = 64 << 10 // bytes
	burstMost    = 256 << 10
	// burstSurvives: one of this many tensors lives until the next step.
	burstSurvives = 10
)

// bursts creates tensors in several goroutines, each from a new slice, and drops them out of
// order. Some survive until the next step.
func bursts(j *job) *program.Loop {
	n := j.Int("goroutines", 8)
	if n < 1 || burstTensors%n != 0 {
		program.Check(fmt.Errorf("%d goroutines cannot share %d tensors", n, burstTensors))
	}
	makers := make([]*burster, n)
	for i := range makers {
		makers[i] = &burster{random: rand.New(rand.NewPCG(j.random.Uint64(), 0))}
	}
	errs := make([]error, n)
	return untrained(func(int) {
		var all sync.WaitGroup
		for i, m := range makers {
			all.Go(func() { errs[i] = program.Caught(func() { m.burst(burstTensors / n) }) })
		}
		all.Wait()
		program.Check(errors.Join(errs...))
	})
}

type burster struct {
	random *rand.Rand
	held   []*tf.Tensor
}

func (m *burster) burst(n int) {
	old := len(m.held)
	for range n {
		m.held = append(m.held, tensor(make([]float32, (burstLeast+m.random.IntN(burstMost-burstLeast+1))/4)))
	}
	m.held = slices.Delete(m.held, 0, old) // which sets them to nil
	but := n / burstSurvives
	m.random.Shuffle(len(m.held), func(i, k int) { m.held[i], m.held[k] = m.held[k], m.held[i] })
	for i := but; i < len(m.held); i++ {
		m.held[i] = nil
	}
	m.held = m.held[:min(but, len(m.held))]
}
