package data

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// splitStream is the random stream of Split. It differs from every epoch, since epochs are not negative.
const splitStream = ^uint64(0)

// shuffleOrder fills order with a random permutation that depends only on the seed, the stream and the length. A
// resumed training needs the same order on any machine and with any version of Go. rand.Shuffle does not promise that,
// but the raw output of the generator does. TestOrderGolden checks the result.
func shuffleOrder(order []uint32, seed, stream uint64) {
	for i := range order {
		order[i] = uint32(i)
	}
	source := randomOf(seed, stream)
	for i := len(order) - 1; i > 0; i-- {
		j := below(source, uint64(i)+1)
		order[i], order[j] = order[j], order[i]
	}
}

// randomOf returns the random numbers of an order. The seed is mixed because seeds are often consecutive, and
// the first outputs of PCG are correlated for neighbouring states.
func randomOf(seed, stream uint64) *rand.PCG {
	high := mix(seed)
	return rand.NewPCG(high, mix(high+stream))
}

// maxStored is the maximum length of a random order that is stored. A longer order is computed
// (permutation), so that an order takes at most 4 MiB.
const maxStored = 1 << 20

// order has the rows of a pass by their positions.
type order struct {
	rows     []uint32     // stored rows; nil if they are computed
	shuffled *permutation // of the positions; nil for the order of the file
	of       []uint32     // the rows to which the positions refer, ascending; nil means all rows
}

// newOrder returns a random order of n rows, of a subset or of all. It reuses the memory of a slice.
func newOrder(n int, of []uint32, reused *[]uint32, seed, stream uint64) order {
	if n > maxStored {
		return order{shuffled: newPermutation(n, seed, stream), of: of}
	}
	if len(*reused) != n {
		*reused = make([]uint32, n)
	}
	rows := *reused
	shuffleOrder(rows, seed, stream)
	if of != nil {
		for i, at := range rows {
			rows[i] = of[at]
		}
	}
	return order{rows: rows}
}

// between returns the rows at the positions [from, to), or nil if each row equals its position. The slice is
// valid until the next call with the same slice.
func (o order) between(reused *[]uint32, from, to int) []uint32 {
	if o.rows != nil {
		return o.rows[from:to]
	}
	if o.shuffled == nil {
		if o.of != nil {
			return o.of[from:to]
		}
		return nil
	}
	rows := slices.Grow((*reused)[:0], to-from)
	for position := from; position < to; position++ {
		row := o.shuffled.at(uint32(position))
		if o.of != nil {
			row = o.of[row]
		}
		rows = append(rows, row)
	}
	*reused = rows
	return rows
}

// permutation computes a random permutation of the numbers below n. It is a Feistel network on the
// numbers below a power of four. The network is applied again to a result that is n or more.
type permutation struct {
	n    uint64
	half int // bits of a half of a number
	keys [8]uint64
}

func newPermutation(n int, seed, stream uint64) *permutation {
	p := &permutation{n: uint64(n), half: (bits.Len64(uint64(n-1)) + 1) / 2}
	source := randomOf(seed, stream)
	for i := range p.keys {
		p.keys[i] = source.Uint64()
	}
	return p
}

func (p *permutation) at(i uint32) uint32 {
	mask := uint64(1)<<p.half - 1
	for v := uint64(i); ; {
		left, right := v>>p.half, v&mask
		for _, key := range p.keys {
			left, right = right, left^mix(right+key)&mask
		}
		if v = left<<p.half | right; v < p.n {
			return uint32(v)
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
