package data

import (
	"math/bits"
	"math/rand/v2"
)

// splitStream is the random stream for Split. Epochs are not negative, so no pass uses it.
const splitStream = ^uint64(0)

// shuffleOrder sets order to a random permutation of 0 ... len(order)-1 that depends only on
// the seed, the stream and the length. A resumed run must get the same order on any machine
// and with any version of Go. The permutation is therefore computed here: the raw output of
// the generator is stable, but that of rand.Shuffle is not. TestOrderGolden compares it.
func shuffleOrder(order []int, seed, stream uint64) {
	for i := range order {
		order[i] = i
	}
	// Seeds and epochs are often consecutive (1, 2, 3 ...), and PCG's first outputs are
	// related for neighbouring states, so the seed is mixed.
	high := mix(seed)
	source := rand.NewPCG(high, mix(high+stream))
	for i := len(order) - 1; i > 0; i-- {
		j := below(source, uint64(i)+1)
		order[i], order[j] = order[j], order[i]
	}
}

// below draws a uniform number from 0 ... n-1. It draws as many low bits as n-1 has until they
// are below n, which takes at most two draws on average.
func below(source *rand.PCG, n uint64) uint64 {
	mask := uint64(1)<<bits.Len64(n-1) - 1
	for {
		if v := source.Uint64() & mask; v < n {
			return v
		}
	}
}

// mix is the output function of SplitMix64, a bijection that hides relations between its
// inputs.
func mix(v uint64) uint64 {
	v += 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}
