package data

import (
	"errors"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// boundedCodec is a codec of the Parquet library that refuses a page whose content is larger than the header
// of the page states. The library itself allocates the size in the compressed bytes: in a file of a few
// hundred bytes, up to 4 GiB for Snappy and 64 GiB for zstd.
type boundedCodec struct {
	compress.Codec
	compress.StreamingCodec
	decode func(dst, src []byte) ([]byte, error)
}

// The library has one table of codecs, which a program changes in its init functions. So other users of the
// library in a program refuse these pages, too.
func init() {
	boundCodec(compress.Codecs.Snappy, decodeSnappy)
	if decoder, err := zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true)); err == nil {
		boundCodec(compress.Codecs.Zstd, func(dst, src []byte) ([]byte, error) { return decoder.DecodeAll(src, dst[:0]) })
	}
}

func boundCodec(id compress.Compression, decode func(dst, src []byte) ([]byte, error)) {
	codec, err := compress.GetCodec(id)
	streams, ok := codec.(compress.StreamingCodec)
	if err == nil && ok {
		compress.RegisterCodec(id, boundedCodec{codec, streams, decode})
	}
}

// DecodeWithError implements compress.ErrorCodec. dst has the size that the header of the page states.
func (c boundedCodec) DecodeWithError(dst, src []byte) ([]byte, error) {
	return c.decode(dst, src)
}

func decodeSnappy(dst, src []byte) ([]byte, error) {
	n, err := s2.DecodedLen(src)
	if err == nil && n > len(dst) {
		err = errors.New("the content of a page is larger than its header states")
	}
	if err != nil {
		return nil, err
	}
	return s2.Decode(dst, src)
}
