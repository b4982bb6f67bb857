package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A budget may need another process, and gets one where there is something to go on from.
func TestWhoTrains(t *testing.T) {
	for _, c := range []struct {
		name        string
		r           resilience
		checkpoints string
		given       bool
		child       bool
		deadline    time.Duration
		restarts    int
	}{
		{"plain", resilience{budgetOf: "rss"}, "ckpt", false, false, 0, 0},
		{"supervised", resilience{supervise: true, deadline: time.Minute, restarts: 3}, "ckpt", true, true, time.Minute, 3},
		{"supervised, without restarts", resilience{supervise: true}, "ckpt", true, true, 0, -1},
		{"budget", resilience{budget: "1GiB", budgetOf: "rss", deadline: time.Minute, restarts: 3}, "ckpt", false, true, 0, -1},
		{"budget without checkpoints", resilience{budget: "1GiB", budgetOf: "rss"}, "", false, false, 0, 0},
		{"budget, not supervised", resilience{budget: "1GiB", budgetOf: "rss"}, "ckpt", true, false, 0, 0},
		{"budget of a GPU", resilience{budget: "1GiB", budgetOf: budgetOfGPU}, "ckpt", false, false, 0, 0},
	} {
		s, ok := c.r.supervisor(c.checkpoints, c.given)
		assert.Equal(t, c.child, ok, c.name)
		assert.Equal(t, c.deadline, s.Deadline, c.name)
		assert.Equal(t, c.restarts, s.Restarts, c.name)
	}
}
