package data

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The expected order comes from a second implementation, in Python. Resumed trainings depend on it.
func TestComputedOrderGolden(t *testing.T) {
	p := newPermutation(maxStored+1, 1, 2)
	var got []uint32
	for i := range uint32(6) {
		got = append(got, p.at(i))
	}
	require.Equal(t, []uint32{226112, 387200, 244432, 837058, 503436, 550530}, got)
}

func TestComputedOrderIsAPermutation(t *testing.T) {
	for n := 1; n < 300; n++ {
		p := newPermutation(n, 3, uint64(n))
		seen := make([]bool, n)
		for i := range uint32(n) {
			require.False(t, seen[p.at(i)], "%d of %d", i, n)
			seen[p.at(i)] = true
		}
	}
}

// The places of two neighbouring rows, and their distance, are uniform over the epochs.
func TestComputedOrderIsFair(t *testing.T) {
	const n, draws, cells = 1000, 20000, 20
	var first, second, distance [cells]int
	for epoch := range uint64(draws) {
		p := newPermutation(n, 3, epoch)
		a, b := int(p.at(500)), int(p.at(501))
		first[a*cells/n]++
		second[b*cells/n]++
		distance[(a-b+n)%n*cells/n]++
	}
	for name, counts := range map[string][cells]int{"first": first, "second": second, "distance": distance} {
		chi2 := 0.0
		for _, k := range counts {
			d := float64(k) - draws/cells
			chi2 += d * d / (draws / cells)
		}
		// With 19 degrees of freedom, a fair shuffle stays below 43.8 in 99.9% of cases.
		require.Less(t, chi2, 43.8, name)
	}
}

// With more than maxStored rows, passes and resumed passes compute the order instead of storing it.
func TestLargeOrdersAreComputed(t *testing.T) {
	const n = maxStored * 5 / 4
	rows := make([]uint32, n)
	for i := range rows {
		rows[i] = uint32(i)
	}
	m := dataset(t, "set", Field{"x", Array{[]int{n}, rows}})
	read := func(ds Dataset, p Pass) (rows []uint32) {
		for b, err := range ds.Batches(p) {
			require.NoError(t, err)
			rows = append(rows, b.Fields[0].Values.([]uint32)...)
		}
		return rows
	}
	sum := func(rows []uint32) (twice int) {
		return len(rows) - len(slices.Compact(slices.Sorted(slices.Values(rows))))
	}
	const batch = 10_000
	whole := read(m.Shuffle(1), Pass{Batch: batch, Epoch: 2})
	require.Len(t, whole, n)
	require.Zero(t, sum(whole), "rows that are read twice")
	require.False(t, slices.IsSorted(whole))
	require.Equal(t, whole[100*batch:], read(Prefetch(m.Shuffle(1).Workers(2), 2),
		Pass{Batch: batch, Epoch: 2, Skip: 100}))
	require.NotEqual(t, whole[:100], read(m.Shuffle(2), Pass{Batch: n, Epoch: 2})[:100])

	train, held := split(t, m, 0.9, 1)
	before := allocated()
	require.Nil(t, train.Shuffle(1).order(new([]uint32), 0).rows)
	require.Less(t, allocated()-before, uint64(1000))
	parts := append(read(train, Pass{Batch: batch}), read(held, Pass{Batch: batch})...)
	require.Zero(t, sum(parts))
	require.Len(t, parts, n)
	require.True(t, slices.IsSorted(parts[:train.Len()]) && slices.IsSorted(parts[train.Len():]))
	require.InDelta(t, 0.9*maxStored/2, slices.Index(parts, maxStored/2), 4000, "the parts are mixed")

	shuffled := read(train.Shuffle(7), Pass{Batch: batch})
	slices.Sort(shuffled)
	require.Equal(t, parts[:train.Len()], shuffled)
	half, _ := split(t, held, 0.5, 3)
	for _, row := range read(half, Pass{Batch: batch}) {
		_, found := slices.BinarySearch(parts[train.Len():], row)
		require.True(t, found)
	}
}
