package data

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Later batches do not overwrite a kept batch. They reuse the memory of batches that were not kept.
func TestKeptBatches(t *testing.T) {
	m := counted(t, 12)
	for name, ds := range map[string]Dataset{"memory": m, "prefetched": Prefetch(m, 2), "many": Prefetch(m, 20),
		"copied": Prefetch(struct{ Dataset }{m}, 2)} {
		t.Run(name, func(t *testing.T) {
			type kept struct {
				values []int64
				index  int
			}
			var all []kept
			for epoch := range 3 {
				for b, err := range ds.Batches(Pass{Batch: 2, Epoch: epoch}) {
					require.NoError(t, err)
					require.True(t, b.Borrowable(1))
					if b.Index%2 == 0 {
						values := b.Fields[1].Values.([]int64)
						for _, k := range all {
							require.NotSame(t, &k.values[0], &values[0])
						}
						all = append(all, kept{values, b.Index})
						b.Keep()
					}
				}
			}
			require.Len(t, all, 9)
			for _, k := range all {
				assert.Equal(t, []int64{int64(2 * k.index), int64(2*k.index + 1)}, k.values)
			}
		})
	}
}

// A pass also ends if the consumer keeps all batches, or leaves the loop after keeping one.
func TestKeepAll(t *testing.T) {
	m := counted(t, 400)
	ds := Prefetch(m, 16)
	for epoch := range 2 {
		batches := 0
		for b, err := range ds.Batches(Pass{Batch: 2, Epoch: epoch}) {
			require.NoError(t, err)
			b.Keep()
			batches++
		}
		require.Equal(t, 200, batches)
	}
	var left []int64
	for b, err := range ds.Batches(Pass{Batch: 2}) {
		require.NoError(t, err)
		b.Keep()
		left = b.Fields[1].Values.([]int64)
		break
	}
	for _, err := range ds.Batches(Pass{Batch: 2, Skip: 1}) {
		require.NoError(t, err)
	}
	assert.Equal(t, []int64{0, 1}, left)
}

func TestBorrowable(t *testing.T) {
	m := counted(t, 6)
	for b, err := range m.Batches(Pass{Batch: 4}) {
		require.NoError(t, err)
		assert.True(t, b.Borrowable(0))
		assert.False(t, b.Borrowable(len(b.Fields)))
		fewer := b
		fewer.Fields = b.Fields[:1]
		assert.False(t, fewer.Borrowable(1))
		b.Fields = []Field{{Name: b.Fields[0].Name, Array: Array{Shape: []int{4}, Values: []int64{1, 2, 3, 4}}}}
		assert.False(t, b.Borrowable(0), "somebody else's values")
		assert.False(t, b.Slice(0, 2).Borrowable(0))
	}
	assert.False(t, Batch{Fields: []Field{{}}, Size: 1}.Borrowable(0))
	Batch{}.Keep()
}
