// Package rank has the interface between the session of a rank of a cluster and the loop that
// trains it.
package rank

import (
	"context"
	"errors"
)

// ErrDiffer means that the ranks have different weights. All ranks get it.
var ErrDiffer = errors.New("the ranks train differently")

// Group is this process as one of several ranks. All ranks must make the same calls of Share, Gather,
// CheckEqual and Leave, which wait for the others, and return supervise.ErrPeer if one is lost.
type Group interface {
	// Rank returns the index of this rank.
	Rank() int
	// Share returns, on all ranks, the data that the rank from passed as own.
	Share(own []byte, from int) ([]byte, error)
	// Gather returns the values of all ranks, in their order.
	Gather(value int64) ([]int64, error)
	// RequestStop makes Stopped return an error on all ranks after the next train step or evaluated
	// batch. Any goroutine may call it.
	RequestStop()
	// Stopped returns an error if a rank has requested a stop before the last step or batch. The
	// error is the same on all ranks, and matches context.Canceled.
	Stopped() error
	// CheckEqual returns ErrDiffer if the variables of a rank differ from those of the first, bit for
	// bit. Ranks compute the same update, but TensorFlow may round it differently with other
	// processors or numbers of threads.
	CheckEqual(ctx context.Context) error
	// Leave returns after all ranks have called it. Afterwards, their processes may end. It calls finished
	// as soon as this rank knows that all have called Leave.
	Leave(finished func()) error
	// Times returns the times of the train steps since the last call, which are equal on all ranks
	// except for rounding. ok is false if there was no step. On a GPU, work that is queued when an
	// operation returns may count as exchange.
	Times() (times Times, ok bool)
}

// Times describes the time of train steps of a cluster. From one exchange of gradients to the next,
// a rank works: it updates its weights, waits for its data, and computes gradients. Then it waits for
// the slowest rank, and exchanges the gradients with the others.
type Times struct {
	// Slowest is the rank that works longest.
	Slowest int
	// Exchange is the share of the time, from 0 to 1, from the end of the slowest rank's work to the
	// end of the exchange.
	Exchange float64
	// Wait is the share in which a rank waits for the slowest one, as a mean of all ranks.
	Wait float64
}
