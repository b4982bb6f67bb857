package fit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/bounded"
	"steadyfit/internal/checkpoint"
)

// perByte is the number of bytes that a reader may allocate for each byte of input.
const perByte = 512

// FuzzState changes a state.json, and a state with correct checksums.
func FuzzState(f *testing.F) {
	whole, err := checkpoint.Encode(savedState{Position: Position{Step: 4, EpochsDone: 2}, Sums: []metricSum{{"loss", 0.5}}, Logs: map[string]int64{"a": 1},
		Manifest: checkpoint.Manifest{Hooks: map[string]json.RawMessage{"h": json.RawMessage("{}")}, Files: []checkpoint.File{{Name: "variables.index", Bytes: 1, CRC: "00000000"}}}})
	require.NoError(f, err)
	f.Add(whole, []byte(`{"step":4,"epoch_sums":[{"name":"loss","sum":"NaN"}],"rescaled":[{"step":1,"scale":0.5}]}`))
	f.Add([]byte("{}"), []byte(`{"recovery":null,"session":[1],"hooks":{"a":null},"epoch_resets":{"each":[{"depth":"reload"}]}}`))
	f.Fuzz(func(t *testing.T, raw, inner []byte) {
		envelope := stateEnvelope{Format: "steadyfit checkpoint", Version: 1, CRC: checksum(inner), State: inner}
		envelope.Header = envelope.headerSum()
		sealed := fmt.Appendf(nil, `{"format":%q,"version":%d,"crc32c":%q,"header_crc32c":%q,"state":%s}`,
			envelope.Format, envelope.Version, envelope.CRC, envelope.Header, inner)
		for _, raw := range [][]byte{raw, sealed} {
			var state savedState
			var err error
			bounded.Allocates(t, 1<<20+perByte*len(raw), func() { err = checkpoint.Decode(raw, &state) })
			if err != nil {
				require.True(t, errors.Is(err, checkpoint.ErrTorn) || errors.Is(err, checkpoint.ErrForeign) || errors.Is(err, checkpoint.ErrFuture), "%v", err)
				continue
			}
			// Encoding is stable after the first time, when missing lists may become empty
			// ones.
			var written [3][]byte
			for i := range written {
				written[i], err = checkpoint.Encode(state)
				require.NoError(t, err)
				state = savedState{}
				err = checkpoint.Decode(written[i], &state)
				require.NoError(t, err)
			}
			require.Equal(t, string(written[1]), string(written[2]))
		}
	})
}

// FuzzHistory parses a history of a checkpoint, and aligns a history file.
func FuzzHistory(f *testing.F) {
	line, err := json.Marshal(fullRecord())
	require.NoError(f, err)
	f.Add(append(line, '\n'))
	f.Add([]byte("{\"epoch\":1,\"step\":2,\"loss\":null}\n{\"epoch\":2,\"step\":4,\"loss\":\"Infinity\"}\n{\"epoch\":1,\"step\":2}\n{\"epo"))
	f.Add([]byte("\n\nnothing\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var records []Record
		var err error
		bounded.Allocates(t, 1<<20+perByte*len(text), func() { records, err = parseHistory(text) })
		if err == nil {
			written := lines(t, records)
			records, err = parseHistory(written)
			require.NoError(t, err)
			require.Equal(t, string(written), string(lines(t, records)))
		}
		for _, from := range []string{"", "ckpt-2"} {
			l := historyLines("fuzz")
			l.name, l.step, l.done = "fuzz", 2, 1
			s := &State{History: &History{ResumedFrom: from}, run: &run{}}
			content, err := l.align(bytes.Clone(text), s)
			require.NoError(t, err)
			require.True(t, len(content) == 0 || bytes.HasSuffix(content, []byte("\n")), "%q", content)
			if from == "" {
				require.True(t, bytes.HasPrefix(content, text[:bytes.LastIndexByte(text, '\n')+1]), "%q", content)
			}
			again, err := l.align(bytes.Clone(content), s)
			require.NoError(t, err)
			require.Equal(t, string(content), string(again))
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
