package data

import (
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
func shuffleOrder(order []int, seed, stream uint64) {
	for i := range order {
		order[i] = i
	}
	// The seed is mixed because seeds are often consecutive, and the first outputs of PCG are
	// correlated for neighbouring states.
	high := mix(seed)
	source := rand.NewPCG(high, mix(high+stream))
	for i := len(order) - 1; i > 0; i-- {
		j := below(source, uint64(i)+1)
		order[i], order[j] = order[j], order[i]
	}
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
