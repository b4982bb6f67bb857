package runner

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"steadyfit/internal/files"
)

// Hash writes the names and contents of all files of a folder, or of one file, to a hash. It follows links to
// files, and path may be a link.
func Hash(sum hash.Hash, path string) error {
	root, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		fmt.Fprintln(sum, name, info.Size())
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(sum, f)
		return err
	})
}

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
