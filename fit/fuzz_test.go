package fit

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/checkpoint"
	"steadyfit/internal/testkit"
)

// perByte is the number of bytes that a reader may allocate for each byte of input.
const perByte = 512

// FuzzState changes a state.json, and a state with correct checksums.
func FuzzState(f *testing.F) {
	whole, err := checkpoint.Encode(savedState{Position: Position{Step: 4, EpochsDone: 2},
		Sums: []metricSum{{"loss", 0.5}},
		Manifest: checkpoint.Manifest{Hooks: map[string]json.RawMessage{"h": json.RawMessage("{}")},
			Files: []checkpoint.File{{Name: "variables.index", Bytes: 1, CRC: "00000000"}}}})
	require.NoError(f, err)
	f.Add(whole, []byte(`{"step":4,"epoch_sums":[{"name":"loss","sum":"NaN"}],"rescaled":[{"step":1,"scale":0.5}]}`))
	f.Add([]byte("{}"), []byte(`{"recovery":null,"session":[1],"hooks":{"a":null},"epoch_resets":{"each":[{"depth":"reload"}]}}`))
	f.Fuzz(func(t *testing.T, raw, inner []byte) {
		sealed := fmt.Appendf(nil, `{"format":"steadyfit checkpoint 1","crc32c":%q,"state":%s}`, checksum(inner), inner)
		for _, raw := range [][]byte{raw, sealed} {
			var state savedState
			var err error
			testkit.Allocates(t, 1<<20+perByte*len(raw), func() { _, err = checkpoint.Decode(raw, &state) })
			if err != nil {
				require.ErrorIs(t, err, checkpoint.ErrTorn)
				continue
			}
			// Encoding is stable after the first time, when missing lists may become empty
			// ones.
			var written [3][]byte
			for i := range written {
				written[i], err = checkpoint.Encode(state)
				require.NoError(t, err)
				state = savedState{}
				_, err = checkpoint.Decode(written[i], &state)
				require.NoError(t, err)
			}
			require.Equal(t, string(written[1]), string(written[2]))
		}
	})
}

// FuzzHistory parses a history of a checkpoint.
func FuzzHistory(f *testing.F) {
	line, err := json.Marshal(fullRecord())
	require.NoError(f, err)
	f.Add(append(line, '\n'))
	f.Add([]byte("{\"epoch\":1,\"step\":2,\"loss\":null}\n{\"epoch\":2,\"step\":4,\"loss\":\"Infinity\"}\n{\"epoch\":1,\"step\":2}\n{\"epo"))
	f.Add([]byte("\n\nnothing\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var records []Record
		var err error
		testkit.Allocates(t, 1<<20+perByte*len(text), func() { records, err = parseHistory(text) })
		if err == nil {
			written := lines(t, records)
			records, err = parseHistory(written)
			require.NoError(t, err)
			require.Equal(t, string(written), string(lines(t, records)))
		}
	})
}

func lines(t *testing.T, records []Record) []byte {
	var text []byte
	for _, r := range records {
		line, err := json.Marshal(r)
		require.NoError(t, err)
		text = append(append(text, line...), '\n')
	}
	return text
}
