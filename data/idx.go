package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"steadyfit/internal/dtype"
)

// openIDX reads a folder in the layout of MNIST. The part "train" (also for "") is in the files train-images-idx3-ubyte
// and train-labels-idx1-ubyte, and the part "test" in files whose names start with t10k. Files may be compressed with
// gzip (.gz). The field x is uint8 and has the shape in the file ([28 28] for MNIST); y is int64.
func openIDX(dir, split string) (*InMemory, error) {
	prefix := "train"
	if split == "test" {
		prefix = "t10k"
	}
	images, imagesFile, err := readIDXFile(dir, prefix+"-images", "idx3-ubyte")
	if err != nil {
		return nil, err
	}
	labels, labelsFile, err := readIDXFile(dir, prefix+"-labels", "idx1-ubyte")
	if err != nil {
		return nil, err
	}
	switch n := len(images.Shape); {
	case n < 2:
		return nil, fmt.Errorf("%s: images have %d dimensions, expected at least 2: %w", imagesFile, n, ErrFormat)
	case len(labels.Shape) != 1:
		return nil, fmt.Errorf("%s: labels have %d dimensions, expected 1: %w", labelsFile, len(labels.Shape), ErrFormat)
	}
	var y []int64
	for _, class := range labels.Values.([]uint8) {
		y = append(y, int64(class))
	}
	m := &InMemory{name: dir}
	if err := m.addArray("x", images, imagesFile); err != nil {
		return nil, err
	}
	return m, m.add("y", array{labels.Shape, vec[int64](y)}, labelsFile)
}

// readIDXFile reads the images or the labels from a file with one of the usual names.
func readIDXFile(dir, stem, kind string) (Array, string, error) {
	for _, name := range []string{stem + "-" + kind, stem + "." + kind} {
		for _, ext := range []string{"", ".gz"} {
			path := filepath.Join(dir, name+ext)
			r, err := openPlain(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return Array{}, "", err
			}
			defer r.Close()
			a, err := readIDX(r)
			if err != nil {
				return Array{}, "", fmt.Errorf("%s: %w", path, err)
			}
			return a, path, nil
		}
	}
	return Array{}, "", fmt.Errorf("%s: %w: %s-%s, plain or .gz", dir, fs.ErrNotExist, stem, kind)
}

// readIDX reads one array of bytes up to the end of r. The header is two zero bytes, the type, the number of
// dimensions, and each dimension as a big-endian uint32.
func readIDX(r io.Reader) (Array, error) {
	var magic [4]byte
	if n, err := io.ReadFull(r, magic[:]); err != nil {
		return Array{}, fmt.Errorf("it has %d bytes, too few for an IDX header: %w", n, corrupt(err))
	}
	if [3]byte(magic[:3]) != [3]byte{0, 0, 8} {
		return Array{}, fmt.Errorf("not an IDX file of bytes: it starts with % x, expected 00 00 08 and the number of "+
			"dimensions: %w", magic, ErrFormat)
	}
	if magic[3] == 0 {
		return Array{}, fmt.Errorf("an IDX file without dimensions: %w", ErrFormat)
	}
	dims := make([]uint32, magic[3])
	if err := binary.Read(r, binary.BigEndian, dims); err != nil {
		return Array{}, fmt.Errorf("truncated in the header: %w", corrupt(err))
	}
	shape := make([]int, len(dims))
	for i, d := range dims {
		shape[i] = int(d)
	}
	values, err := io.ReadAll(r) // their number is not known before they are decompressed
	if err != nil {
		return Array{}, corrupt(err)
	}
	return readArray(bytes.NewReader(values), int64(len(values)), fileType{kind: dtype.For[uint8](), size: 1,
		order: binary.BigEndian}, shape, false)
}
