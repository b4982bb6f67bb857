package texts

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// BinaryUnits lists the binary units above a byte, largest first.
var BinaryUnits = []struct {
	Name string
	Size float64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

var units = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

// FormatBytes formats a size with one decimal in the largest unit that fits: "512 B", "1.2 GiB", "-3.0 KiB".
func FormatBytes(bytes int64) string {
	size := math.Abs(float64(bytes))
	for _, u := range BinaryUnits {
		// The next unit is used from 1023.95 on, which would be printed as 1024.0.
		if size >= u.Size-u.Size/2048 {
			return fmt.Sprintf("%.1f %s", float64(bytes)/u.Size, u.Name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}

// ParseBytes parses a size such as "600MiB", "1.5 GiB", "2G", "300MB" or "4096". K, M, G, T, KiB, MiB, GiB and
// TiB are powers of 1024; KB, MB, GB and TB are powers of 1000. Case does not matter. Other texts and
// negative sizes are an error.
func ParseBytes[T ~int64](text string) (T, error) {
	trimmed := strings.TrimSpace(text)
	end := strings.IndexFunc(trimmed, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(trimmed)
	}
	unit, known := units[strings.ToLower(strings.TrimSpace(trimmed[end:]))]
	number, err := strconv.ParseFloat(trimmed[:end], 64)
	size := math.Round(number * unit)
	if !known || err != nil || size >= math.MaxInt64 {
		return 0, fmt.Errorf("%q: not a size: expected a number and a unit, such as 600MiB, 1.5GiB or 4096", text)
	}
	return T(size), nil
}
