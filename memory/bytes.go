package memory

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a number of bytes.
type Bytes int64

// Units in powers of 1024.
const (
	KiB      Bytes = 1 << 10
	MiB      Bytes = 1 << 20
	GiB      Bytes = 1 << 30
	tebibyte Bytes = 1 << 40
)

// ErrSize means that a text is not a size.
var errSize = errors.New("not a size")

var binaryUnits = []struct {
	name string
	size Bytes
}{{"TiB", tebibyte}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}}

// units lists the units of ParseBytes.
var units = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

// String formats the size with one decimal in the largest unit that fits: "512 B", "1.2 GiB",
// "-3.0 KiB".
func (b Bytes) String() string {
	size := math.Abs(float64(b))
	for _, u := range binaryUnits {
		// The next unit is used from 1023.95 on, which would be printed as 1024.0.
		if size >= float64(u.size)-float64(u.size)/2048 {
			return fmt.Sprintf("%.1f %s", float64(b)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", int64(b))
}

// ParseBytes parses a size such as "600MiB", "1.5 GiB", "2G", "300MB" or "4096". K, M, G, T, KiB,
// MiB, GiB and TiB are powers of 1024; KB, MB, GB and TB are powers of 1000. Case does not matter.
// Other texts and negative sizes are ErrSize.
func ParseBytes(text string) (Bytes, error) {
	trimmed := strings.TrimSpace(text)
	end := strings.IndexFunc(trimmed, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(trimmed)
	}
	unit, known := units[strings.ToLower(strings.TrimSpace(trimmed[end:]))]
	number, err := strconv.ParseFloat(trimmed[:end], 64)
	size := math.Round(number * unit)
	if !known || err != nil || size >= math.MaxInt64 {
		return 0, fmt.Errorf("%q: %w: expected a number and a unit, such as 600MiB, 1.5GiB or 4096", text, errSize)
	}
	return Bytes(size), nil
}
