// Package columns keeps datasets in folders of .npy files, one for each field. The names of fields may
// be any text, such as paths, so the files have numbers.
package columns

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"steadyfit/data"
)

// Writer writes batches to a folder.
type Writer struct {
	// Fields are the names of the fields, in the order of their files. Write sets them.
	Fields []string

	dir     string
	samples int
	files   []*os.File
	arrays  []data.Writer
}

// NewWriter returns a Writer of that many samples. It must be closed.
func NewWriter(dir string, samples int) *Writer { return &Writer{dir: dir, samples: samples} }

func numbered(field int) string { return "steadyfit-field-" + strconv.Itoa(field) }

// Write adds a batch. All batches have the same fields.
func (w *Writer) Write(b data.Batch) error {
	for i, f := range b.Fields {
		if i == len(w.arrays) {
			file, err := os.Create(filepath.Join(w.dir, numbered(i)+".npy"))
			if err != nil {
				return err
			}
			w.files, w.Fields = append(w.files, file), append(w.Fields, f.Name)
			w.arrays = append(w.arrays, data.NewNPYWriter(file, w.samples))
		}
		if err := w.arrays[i].Write(f); err != nil {
			return err
		}
	}
	return nil
}

// Close completes the files.
func (w *Writer) Close() (err error) {
	for i, a := range w.arrays {
		err = errors.Join(err, a.Flush(), w.files[i].Close())
	}
	return err
}

// Open opens the folder of a Writer with these fields.
func Open(dir string, fields []string, onDisk bool) (*data.InMemory, error) {
	ds, err := data.Open(dir, data.Options{OnDisk: onDisk})
	if err != nil {
		return nil, err
	}
	for i, field := range fields {
		renamed, err := ds.Rename(numbered(i), field)
		if err != nil {
			return nil, errors.Join(err, ds.Close())
		}
		ds = renamed
	}
	return ds, nil
}
