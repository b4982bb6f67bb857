package data

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Blocks do not change the batches of a pass. Joined batches equal their parts.
func TestBlocksKeepOrder(t *testing.T) {
	for _, c := range []struct{ samples, batch, block, ahead, skip, workers int }{
		{40, 4, 5, 2, 0, 1}, {43, 4, 5, 2, 0, 2}, {43, 4, 5, 20, 3, 3}, {43, 4, 50, 64, 0, 2}, {7, 4, 3, 2, 0, 2}, {43, 4, 2, 1, 1, 2}, {3, 4, 2, 1, 0, 2},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			m := counted(t, c.samples).Shuffle(3).Workers(c.workers)
			ds := Prefetch(m, c.ahead)
			ds.SetBlock(c.block)
			for epoch := range 3 {
				p := Pass{Batch: c.batch, Epoch: epoch, Skip: c.skip}
				want := samples(t, m, p)
				assert.Equal(t, want, samples(t, ds, p))
				var first Batch
				joined, at, full := 0, 0, 0
				for b, err := range ds.Batches(p) {
					require.NoError(t, err)
					if b.Size == c.batch {
						full++
					}
					if at == joined { // all parts of the joined batch were checked
						first, joined, at = Batch{}, 0, 0
						for n := c.block; n > 0 && joined == 0; n-- {
							if j, ok := b.Join(n); ok {
								first, joined = j, n
							}
						}
						if left := c.samples/c.batch - b.Index; b.Size == c.batch {
							require.Equal(t, min(c.block, left), joined, "batch %d", b.Index)
						}
					}
					if joined == 0 {
						continue // a last batch that is not joined
					}
					require.True(t, b.IsPart(at, first))
					require.False(t, b.IsPart(at+1, first))
					if at++; at == joined {
						from := (b.Index - joined + 1 - c.skip) * c.batch
						require.Equal(t, want[from:from+joined*c.batch], first.Fields[1].Values)
						require.Equal(t, []int{joined * c.batch, 2}, first.Fields[0].Shape)
					}
				}
				require.Equal(t, max(c.samples/c.batch-c.skip, 0), full)
			}
		})
	}
}

// A pass holds two blocks, or more if the batches that are read ahead need more.
func TestBlocksAreBounded(t *testing.T) {
	for _, c := range []struct{ block, ahead, want int }{{5, 1, 10}, {5, 4, 10}, {5, 9, 10}, {5, 10, 15}, {5, 14, 15}, {30, 64, 90}, {1, 4, 5}} {
		synctest.Test(t, func(t *testing.T) {
			m := counted(t, 200)
			ds := Prefetch(m, c.ahead)
			ds.SetBlock(c.block)
			seen := map[*int64]bool{}
			for range 2 {
				for b, err := range ds.Batches(Pass{Batch: 2}) {
					require.NoError(t, err)
					synctest.Wait()
					seen[&b.Fields[1].Values.([]int64)[0]] = true
				}
			}
			assert.Equal(t, c.want, len(seen), "%v", c)
		})
	}
}

// A batch stays unchanged until the consumer asks for the first batch after its block.
func TestBlocksAreNotOverwritten(t *testing.T) {
	ds := Prefetch(counted(t, 400), 8)
	ds.SetBlock(4)
	var block [][]int64
	for b, err := range ds.Batches(Pass{Batch: 2}) {
		require.NoError(t, err)
		if b.Index%4 == 0 {
			block = nil
		}
		block = append(block, b.Fields[1].Values.([]int64))
		for i, values := range block {
			first := int64(2 * (b.Index - len(block) + 1 + i))
			require.Equal(t, []int64{first, first + 1}, values)
		}
	}
}

func TestPassBytes(t *testing.T) {
	for _, c := range []struct{ ahead, block int }{{0, 1}, {0, 4}, {1, 1}, {8, 1}, {8, 4}, {2, 50}, {2, 1000}} {
		ds := Prefetch(counted(t, 100), c.ahead)
		ds.SetBlock(c.block)
		held := ds.batchBytes(2)
		for _, err := range ds.Batches(Pass{Batch: 2}) {
			require.NoError(t, err)
			for _, r := range ds.rings {
				held = int64(len(r.slabs)*r.block) * ds.batchBytes(2)
			}
			break
		}
		require.Equal(t, held, ds.PassBytes(2), "%v", c)
	}
}

func TestSetAheadWithBlocks(t *testing.T) {
	m := counted(t, 1000)
	ds := Prefetch(m, 8)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		ds.SetBlock(1 + rng.IntN(6))
		next := int64(0)
		for b, err := range ds.Batches(Pass{Batch: 2}) {
			require.NoError(t, err)
			require.Equal(t, []int64{next, next + 1}, b.Fields[1].Values)
			next += 2
			ds.SetAhead(rng.IntN(30))
		}
		require.EqualValues(t, 1000, next)
		ds.SetAhead(8)
	}
}

func TestJoinOfOthers(t *testing.T) {
	m := counted(t, 12)
	ds := Prefetch(m, 2)
	ds.SetBlock(3)
	for b, err := range ds.Batches(Pass{Batch: 2}) {
		require.NoError(t, err)
		joined, ok := b.Join(2)
		require.True(t, ok)
		assert.False(t, b.Slice(0, 2).IsPart(0, joined))
		other := b
		other.Fields = []Field{b.Fields[0], {Name: "y", Array: Array{Shape: []int{2}, Values: []int64{1, 2}}}}
		assert.False(t, other.IsPart(0, joined), "somebody else's values")
		_, ok = other.Join(2)
		assert.False(t, ok, "somebody else's values")
		break
	}
	copied := Prefetch(struct{ Dataset }{m}, 2)
	copied.SetBlock(3)
	for _, from := range []Dataset{m, copied} {
		for b, err := range from.Batches(Pass{Batch: 2}) {
			require.NoError(t, err)
			_, ok := b.Join(2)
			assert.False(t, ok)
		}
	}
}
