package texts

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
	tib = 1 << 40
)

func TestFormatBytes(t *testing.T) {
	for _, c := range []struct {
		bytes int64
		want  string
	}{
		{0, "0 B"},
		{1, "1 B"},
		{1023, "1023 B"},
		{1024, "1.0 KiB"},
		{1536, "1.5 KiB"},
		{-3 * kib, "-3.0 KiB"},
		{mib - 1, "1.0 MiB"},
		{600 * mib, "600.0 MiB"},
		{gib - 1, "1.0 GiB"},
		{gib + 200*mib, "1.2 GiB"},
		{3 * tib, "3.0 TiB"},
		{2048 * tib, "2048.0 TiB"},
	} {
		require.Equal(t, c.want, FormatBytes(c.bytes))
	}
}

func TestParseBytes(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
	}{
		{"4096", 4096},
		{"0", 0},
		{"600MiB", 600 * mib},
		{"600 mib", 600 * mib},
		{"1.5GiB", gib + 512*mib},
		{"2G", 2 * gib},
		{"64k", 64 * kib},
		{"300MB", 300_000_000},
		{"1TB", 1_000_000_000_000},
		{" 12 B ", 12},
		{"1T", tib},
	} {
		got, err := ParseBytes[int64](c.text)
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, got, c.text)
	}
	for _, text := range []string{"", "MiB", "-1", "-1MiB", "1.2.3", "12 parsecs", "1e3", "99999999TiB", "0x10",
		"1 GiB2"} {
		_, err := ParseBytes[int64](text)
		require.ErrorContains(t, err, strconv.Quote(text)+": not a size")
	}
}
