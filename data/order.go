package data

import (
	"math/bits"
	"math/rand/v2"
)

// splitStream is the stream that Split draws from. Epochs are not negative, so
// no pass draws from it.
const splitStream = ^uint64(0)

// shuffleOrder sets order to a random permutation of 0 ... len(order)-1 that depends on the seed,
// the stream and the length alone. A resumed run must see the same order, on any machine and
// with any version of Go, so the permutation is computed here: the raw output of the generator
// is fixed, and rand.Shuffle is not. TestOrderGolden compares it.
func shuffleOrder(order []int, seed, stream uint64) {
	for i := range order {
		order[i] = i
	}
	// PCG's first outputs are related for neighbouring states, and seeds and epochs are
	// neighbours (1, 2, 3 ...), hence the mixing.
	high := mix(seed)
	source := rand.NewPCG(high, mix(high+stream))
	for i := len(order) - 1; i > 0; i-- {
		j := below(source, uint64(i)+1)
		order[i], order[j] = order[j], order[i]
	}
}

// below draws a uniform number from 0 ... n-1: as many low bits as n-1 has, again until they are
// below n, which takes two draws at most on average.
func below(source *rand.PCG, n uint64) uint64 {
	mask := uint64(1)<<bits.Len64(n-1) - 1
	for {
		if v := source.Uint64() & mask; v < n {
			return v
		}
	}
}

// mix is the output function of SplitMix64, a bijection that hides the relation of its inputs.
func mix(v uint64) uint64 {
	v += 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}
