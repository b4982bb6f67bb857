// Package columns keeps datasets in folders of .npy files, one for each field. The names of fields may
// be any text, such as paths, so the names of the files have numbers instead.
package columns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// NewWriter returns a Writer of a number of samples to the folder dir. The caller must call Finish.
func NewWriter(dir string, samples int) *Writer { return &Writer{dir: dir, samples: samples} }

func numbered(field int) string { return "steadyfit-field-" + strconv.Itoa(field) }

// Write adds a batch. All batches have the same fields.
func (w *Writer) Write(b data.Batch) error {
	var names []string
	for _, f := range b.Fields {
		names = append(names, f.Name)
	}
	if w.Fields == nil {
		w.Fields = names
		for i := range names {
			file, err := os.Create(filepath.Join(w.dir, numbered(i)+".npy"))
			if err != nil {
				return err
			}
			array, err := data.NewWriter(file, ".npy", w.samples)
			if err != nil {
				return errors.Join(err, file.Close())
			}
			w.files, w.arrays = append(w.files, file), append(w.arrays, array)
		}
	}
	if !slices.Equal(names, w.Fields) {
		return fmt.Errorf("batch %d has the fields %q, and the first one has %q: %w", b.Index, names, w.Fields, data.ErrField)
	}
	for i, f := range b.Fields {
		if err := w.arrays[i].Write(f); err != nil {
			return err
		}
	}
	return nil
}

// Finish completes the files if err is nil, and closes the files in any case. It returns err joined
// with the errors of closing and completing.
func (w *Writer) Finish(err error) error {
	errs := []error{err}
	for i, a := range w.arrays {
		if err == nil {
			errs = append(errs, a.Flush())
		}
		errs = append(errs, w.files[i].Close())
	}
	return errors.Join(errs...)
}

// Open opens a folder that a Writer with these fields has written. onDisk is data.Options.OnDisk.
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
