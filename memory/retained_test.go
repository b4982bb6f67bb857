package memory

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
)

// fragmented returns a series in which malloc's free memory varies and slowly grows.
func fragmented(n int, used, other, free func(int) float64) *Series {
	return layered(n, map[Layer]func(int) float64{
		MallocUsed: used, MallocFree: free,
		Anon: func(i int) float64 { return 60*mib + used(i) + other(i) + free(i) },
	})
}

func none(int) float64 { return 0 }

func grows(slope float64) func(int) float64 {
	return func(i int) float64 { return 100*mib + slope*float64(i) }
}

func TestFragmentationIsLeftOut(t *testing.T) {
	for seed := range 20 {
		noise := newMaker(seed, 96).noise("gaussian", 28, 20*mib)
		swings := func(i int) float64 { return 80*mib + math.Abs(noise[i]) }

		v := fragmented(28, grows(0), none, swings).Judge(Criteria{Budget: 256 * KiB})
		require.Contains(t, []Kind{Flat, Plateau, Jump}, v.Kind, "%v", v)
		require.NotNil(t, v.Net)
		require.Less(t, v.Net.High, float64(256*KiB))

		// Growth inside or outside malloc is a leak.
		v = fragmented(28, grows(40*mib), none, swings).Judge(Criteria{Budget: 256 * KiB})
		require.Equal(t, Leak, v.Kind, "%v", v)
		require.InEpsilon(t, 40*mib, v.Slope.Estimate, 0.1)
		require.Nil(t, v.Net)
		v = fragmented(28, grows(0), grows(mib), swings).Judge(Criteria{Budget: 256 * KiB})
		require.NotContains(t, []Kind{Flat, Plateau, Jump}, v.Kind, "%v", v)
	}
}

// Objects that fill a pool from malloc are not fragmentation.
func TestFragmentationHidesNoObjects(t *testing.T) {
	noise := newMaker(1, 200).noise("gaussian", 200, 20*mib)
	layers := map[Layer]func(int) float64{
		MallocUsed:         func(int) float64 { return 800 * mib },
		MallocFree:         func(i int) float64 { return 80*mib + math.Abs(noise[i]) },
		memlayer.LiveBytes: func(i int) float64 { return 4 * mib * float64(i) },
	}
	layers[Anon] = func(i int) float64 { return 60*mib + layers[MallocUsed](i) + layers[MallocFree](i) }
	v := layered(200, layers).Judge(Criteria{Budget: MiB})
	require.Equal(t, Inconclusive, v.Kind, "%v", v)
	require.Contains(t, v.Reason, "the level is constant, but live native bytes grows by +4.0 MiB/step")
}
