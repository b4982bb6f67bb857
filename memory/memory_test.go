package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBytesString(t *testing.T) {
	for _, c := range []struct {
		bytes Bytes
		want  string
	}{
		{0, "0 B"},
		{1, "1 B"},
		{1023, "1023 B"},
		{1024, "1.0 KiB"},
		{1536, "1.5 KiB"},
		{-3 * KiB, "-3.0 KiB"},
		{MiB - 1, "1.0 MiB"},
		{600 * MiB, "600.0 MiB"},
		{GiB - 1, "1.0 GiB"},
		{GiB + 200*MiB, "1.2 GiB"},
		{3 * tebibyte, "3.0 TiB"},
		{2048 * tebibyte, "2048.0 TiB"},
	} {
		require.Equal(t, c.want, c.bytes.String())
	}
}

func TestParseBytes(t *testing.T) {
	for _, c := range []struct {
		text string
		want Bytes
	}{
		{"4096", 4096},
		{"0", 0},
		{"600MiB", 600 * MiB},
		{"600 mib", 600 * MiB},
		{"1.5GiB", GiB + 512*MiB},
		{"2G", 2 * GiB},
		{"64k", 64 * KiB},
		{"300MB", 300_000_000},
		{"1TB", 1_000_000_000_000},
		{" 12 B ", 12},
		{"1T", tebibyte},
	} {
		got, err := ParseBytes(c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, got, c.text)
	}
	for _, text := range []string{"", "MiB", "-1", "-1MiB", "1.2.3", "12 parsecs", "1e3", "99999999TiB", "0x10", "1 GiB2"} {
		_, err := ParseBytes(text)
		require.ErrorIs(t, err, errSize, text)
		require.ErrorContains(t, err, text)
	}
}

func TestReadingString(t *testing.T) {
	require.Equal(t, "unknown", Reading{}.String())
	require.Equal(t, "0 B", Known(0).String())
}
