// Package wire has the checksum of TensorFlow's files.
package wire

import "hash/crc32"

// castagnoli is a polynomial for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the masked CRC32C that LevelDB and TFRecord files use. The mask keeps checksums
// useful for data that contains checksums.
func Checksum(b []byte) uint32 {
	sum := crc32.Checksum(b, castagnoli)
	return (sum>>15 | sum<<17) + 0xa282ead8
}
