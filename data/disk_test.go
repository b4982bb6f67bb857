package data

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func fieldsOnDisk(m *InMemory) int {
	n := 0
	for _, c := range m.columns {
		if _, read := c.values.(vector); !read {
			n++
		}
	}
	return n
}

// Values on disk are the same as in memory. Values that need conversion are read into memory.
func TestOnDiskIsAsInMemory(t *testing.T) {
	dir := t.TempDir()
	for name, a := range map[string]Array{
		"x.npy": {[]int{50, 3}, func() []float32 {
			v := make([]float32, 150)
			for i := range v {
				v[i] = float32(i) / 7
			}
			return v
		}()},
		"y.npy": {[]int{50}, upTo(50)},
	} {
		var file bytes.Buffer
		require.NoError(t, writeNPY(&file, a))
		put(t, dir, name, file.Bytes())
	}
	for _, c := range []struct {
		path   string
		onDisk int
	}{
		{filepath.Join(dir, "x.npy"), 2},
		{dir, 2},
		{filepath.Join("testdata", "types_stored.npz"), 12}, // bools and big-endian arrays are read
		{filepath.Join("testdata", "types_deflated.npz"), 0},
		{filepath.Join("testdata", "fortran.npy"), 0},
		{filepath.Join("testdata", "extremes.npy"), 1},
		{filepath.Join("testdata", "version2.npy"), 1},
	} {
		read := opened(t, c.path, Options{})
		require.Empty(t, read.files)
		require.NoError(t, read.Close())
		stays := opened(t, c.path, Options{OnDisk: true})
		require.Equal(t, c.onDisk, fieldsOnDisk(stays), c.path)
		require.Equal(t, describe(read), describe(stays))
		for _, p := range []Pass{{Batch: 1}, {Batch: 7, Epoch: 2}, {Batch: math.MaxInt}, {Batch: 20, Skip: 1}} {
			require.Equal(t, copied(t, read, p), copied(t, stays, p))
			require.Equal(t, copied(t, read.Shuffle(4), p), copied(t, Prefetch(stays.Shuffle(4), 2), p))
		}
	}
	m := opened(t, dir, Options{OnDisk: true})
	require.NoError(t, Check(m, "y", Values{Classes: 50}))
	require.NoError(t, Check(m, "", finite))
	weighted, err := WithSampleWeights(m, "y", map[int64]float64{3: 2})
	require.NoError(t, err)
	doubled, err := mapField(weighted, "x", "double", []int{3}, func(dst, src []float32) {
		for i, v := range src {
			dst[i] = 2 * v
		}
	})
	require.NoError(t, err)
	b := copied(t, doubled, Pass{Batch: 50})[0]
	require.Equal(t, float32(2)*(float32(149)/7), b.Fields[0].Values.([]float32)[149])
	require.Equal(t, float32(2), b.Fields[2].Values.([]float32)[3])
	require.NoError(t, doubled.Close())
}

func TestOnDiskRefuses(t *testing.T) {
	var sound bytes.Buffer
	require.NoError(t, writeNPY(&sound, Array{[]int{4}, []float32{1, 2, 3, 4}}))
	for _, c := range []struct {
		name string
		raw  []byte
		kind error
		says string
	}{
		{"cut.npy", sound.Bytes()[:sound.Len()-1], ErrFormat, "the header states 16 bytes of values, the file has 15"},
		{"long.npy", append(bytes.Clone(sound.Bytes()), 0), ErrFormat, "more bytes"},
		{"header.npy", sound.Bytes()[:20], ErrFormat, "truncated in the header"},
		{"dates.npy", rawNPY(dictOf("<M8[s]", "(1,)"), make([]byte, 8)...), ErrUnsupported, "dates"},
		{"claim.npy", rawNPY(dictOf("<f8", "(2000000000000000000,)")), ErrFormat, "truncated"},
		{"none.npy", rawNPY(dictOf("<f8", "(0,)")), ErrFormat, "no values"},
		{"scalar.npy", rawNPY(dictOf("|u1", "()"), 1), ErrFormat, "single value"},
		{"not.npz", []byte("PK no archive"), ErrFormat, "not a .npz file"},
	} {
		path := write(t, c.name, c.raw)
		_, err := Open(path, Options{OnDisk: true})
		require.ErrorIs(t, err, c.kind, c.name)
		require.ErrorContains(t, err, c.says)
		require.ErrorContains(t, err, path)
		_, read := Open(path, Options{})
		require.EqualError(t, err, read.Error(), "on disk as in memory")
	}
}

func TestClosedOnDisk(t *testing.T) {
	path := write(t, "x.npy", nil)
	var file bytes.Buffer
	require.NoError(t, writeNPY(&file, Array{[]int{100}, make([]int32, 100)}))
	require.NoError(t, os.WriteFile(path, file.Bytes(), 0o644))
	m := opened(t, path, Options{OnDisk: true})
	part, _ := split(t, m, 0.5, 1)
	good := 0
	for _, err := range part.Batches(Pass{Batch: 10}) {
		if err != nil {
			require.ErrorIs(t, err, fs.ErrClosed)
			require.ErrorContains(t, err, path)
			break
		}
		if good++; good == 2 {
			require.NoError(t, m.Close())
		}
	}
	require.Equal(t, 2, good)
	require.NoError(t, m.Close())
	require.NoError(t, part.Close())
	for _, err := range Prefetch(m, 1).Batches(Pass{Batch: 10}) {
		require.ErrorIs(t, err, fs.ErrClosed)
	}
	require.ErrorIs(t, Check(m, "x", Values{Classes: 3}), fs.ErrClosed)

	// Close ends passes in progress.
	again := opened(t, path, Options{OnDisk: true})
	var passes sync.WaitGroup
	for range 4 {
		passes.Go(func() {
			for epoch := range 1000 {
				for _, err := range Prefetch(again.Shuffle(1), 1).Batches(Pass{Batch: 10, Epoch: epoch}) {
					if err != nil {
						if !errors.Is(err, fs.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			}
		})
	}
	require.NoError(t, again.Close())
	passes.Wait()
}

// Truncating a file gives an error in every goroutine.
func TestTruncatedOnDisk(t *testing.T) {
	const n = 1 << 16
	path := write(t, "x.npy", nil)
	for _, ahead := range []int{0, 2} {
		var file bytes.Buffer
		require.NoError(t, writeNPY(&file, Array{[]int{n}, make([]float64, n)}))
		require.NoError(t, os.WriteFile(path, file.Bytes(), 0o644))
		m := opened(t, path, Options{OnDisk: true})
		good := 0
		var failed error
		for _, err := range Prefetch(m, ahead).Batches(Pass{Batch: 1024}) {
			if failed = err; err != nil {
				break
			}
			if good++; good == 4 {
				require.NoError(t, os.Truncate(path, 128<<10))
			}
		}
		require.ErrorIs(t, failed, ErrFormat)
		require.ErrorContains(t, failed, path)
		require.ErrorContains(t, failed, "leave data alone during training")
		require.Less(t, good, 64)
		require.GreaterOrEqual(t, good, 4)
	}
}

// A file that another process writes again is an error, whatever the new values are.
func TestChangedOnDisk(t *testing.T) {
	var file bytes.Buffer
	require.NoError(t, writeNPY(&file, Array{[]int{64}, make([]float64, 64)}))
	path := write(t, "x.npy", file.Bytes())
	for _, shuffled := range []bool{false, true} {
		require.NoError(t, os.Chtimes(path, time.Time{}, time.Unix(1e9, 0)))
		m := opened(t, path, Options{OnDisk: true})
		if shuffled {
			m = m.Shuffle(1)
		}
		var failed error
		good := 0
		for _, err := range m.Batches(Pass{Batch: 8}) {
			if failed = err; err != nil {
				break
			}
			if good++; good == 4 {
				require.NoError(t, os.WriteFile(path, file.Bytes(), 0o666))
			}
		}
		require.Equal(t, 4, good)
		require.ErrorIs(t, failed, ErrFormat)
		require.ErrorContains(t, failed, path+": the file changed since it was opened; leave data alone during training")
	}
}
