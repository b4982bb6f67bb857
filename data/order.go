package data

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
)

// splitStream is the random stream of Split. It differs from every epoch, since epochs are not
// negative.
const splitStream = ^uint64(0)

// shuffleOrder fills order with a random permutation that depends only on the seed, the stream and
// the length. A resumed training needs the same order on any machine and with any version of Go.
// rand.Shuffle does not promise that, but the raw output of the generator does. TestOrderGolden
// checks the result.
//
// The numbers are drawn in blocks before the elements are swapped, since the processor then waits for
// several elements of a large order at a time.
func shuffleOrder(order []uint32, seed, stream uint64) {
	for i := range order {
		order[i] = uint32(i)
	}
	// The seed is mixed because seeds are often consecutive, and the first outputs of PCG are
	// correlated for neighbouring states.
	high := mix(seed)
	source := rand.NewPCG(high, mix(high+stream))
	var drawn [512]uint32
	for i := len(order) - 1; i > 0; {
		block := drawn[:min(i, len(drawn))]
		for k := 0; k < len(block); {
			// As below, but a rejected number is overwritten, which costs less than a branch.
			last := uint64(i - k)
			v := source.Uint64() & (uint64(1)<<bits.Len64(last) - 1)
			block[k] = uint32(v)
			if v <= last {
				k++
			}
		}
		for _, j := range block {
			order[i], order[j] = order[j], order[i]
			i--
		}
	}
}

// maxSamples is the maximum length of an order, whose row numbers have 32 bits.
const maxSamples = math.MaxUint32

func checkSamples(n int) error {
	if uint64(n) > maxSamples {
		return fmt.Errorf("%d samples, expected at most %d; divide the data: %w", n, uint64(maxSamples), ErrUnsupported)
	}
	return nil
}

// below returns a uniform number from 0 to n-1, by rejection: two draws on average at most.
func below(source *rand.PCG, n uint64) uint64 {
	mask := uint64(1)<<bits.Len64(n-1) - 1
	for {
		if v := source.Uint64() & mask; v < n {
			return v
		}
	}
}

// mix is the output function of SplitMix64, a bijection that removes correlations.
func mix(v uint64) uint64 {
	v += 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}
