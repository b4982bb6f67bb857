// Package wire has the checksum of TensorFlow's files.
package wire

import (
	"hash/crc32"
	"io"
)

// castagnoli is a polynomial for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the masked CRC32C that LevelDB and TFRecord files use. The mask keeps checksums
// useful for data that contains checksums.
func Checksum(b []byte) uint32 { return masked(crc32.Checksum(b, castagnoli)) }

// ChecksumOf returns the Checksum of everything that r reads, in pieces.
func ChecksumOf(r io.Reader) (uint32, error) {
	sum := crc32.New(castagnoli)
	_, err := io.Copy(sum, r)
	return masked(sum.Sum32()), err
}

func masked(sum uint32) uint32 { return (sum>>15 | sum<<17) + 0xa282ead8 }
