package runner

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"steadyfit/internal/files"
)

// ReadGzip reads a file that may be compressed with gzip. most limits the decompressed size, too.
func ReadGzip(path string, most int64) ([]byte, error) {
	text, err := files.Read(path, most)
	if err != nil || !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
		return text, err
	}
	r, err := gzip.NewReader(bytes.NewReader(text))
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(r, most+1))
	}
	if err == nil && int64(len(text)) > most {
		err = files.ErrTooLarge
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return text, nil
}
