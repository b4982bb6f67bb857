package memory

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBytesString(t *testing.T) {
	require.Equal(t, "1.2 GiB", (GiB + 200*MiB).String())
	require.Equal(t, "-3.0 KiB", (-3 * KiB).String())
}

func TestReadingString(t *testing.T) {
	require.Equal(t, "unknown", Reading{}.String())
	require.Equal(t, "0 B", Known(0).String())
}
