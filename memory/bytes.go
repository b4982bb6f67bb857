package memory

import "steadyfit/internal/bytesize"

// Bytes is a number of bytes.
type Bytes int64

// Units in powers of 1024.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

// String formats the size with one decimal in the largest unit that fits: "512 B", "1.2 GiB",
// "-3.0 KiB".
func (b Bytes) String() string { return bytesize.Format(int64(b)) }
