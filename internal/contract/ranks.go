package contract

import (
	"context"
	"errors"
)

// ErrRanksDiffer means that the ranks have different weights. All ranks get it.
var ErrRanksDiffer = errors.New("the ranks train differently")

// RankGroup is this process as one of several ranks. All ranks must make the same calls of Share, Gather,
// CheckEqual and Leave. These calls wait for the other ranks, and return supervise.ErrPeer if one is
// lost.
type RankGroup interface {
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
	// CheckEqual returns ErrRanksDiffer if the weights of a rank differ from those of the first, bit for
	// bit. Ranks compute the same update, but TensorFlow may round it differently with other
	// processors or numbers of threads.
	CheckEqual(ctx context.Context) error
	// Leave returns after all ranks have called it. Afterwards, their processes may end. It calls finished
	// as soon as this rank knows that all have called Leave.
	Leave(finished func()) error
}
