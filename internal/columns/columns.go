// Package columns keeps datasets in folders of .npy files, one for each field. The names of fields may
// be any text, such as paths, so the names of the files have numbers instead.
//
// The texts of a field are in a second file, one after the other. Its .npy file has two numbers per
// text: where the text begins and ends.
package columns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

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
	texts   []int64 // the sizes of the texts of each field so far
}

// NewWriter returns a Writer of a number of samples to the folder dir. The caller must call Finish.
func NewWriter(dir string, samples int) *Writer { return &Writer{dir: dir, samples: samples} }

// numbered returns the name of a field in the folder. With the suffix .npy or .texts, it is a file.
func numbered(field int) string { return "steadyfit-field-" + strconv.Itoa(field) }

// Write adds a batch. All batches have the same fields.
func (w *Writer) Write(b data.Batch) error {
	var names []string
	for _, f := range b.Fields {
		names = append(names, f.Name)
	}
	if w.Fields == nil {
		w.Fields, w.texts = names, make([]int64, len(names))
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
		if texts, ok := f.Values.([]string); ok {
			places, err := w.place(i, texts)
			if err != nil {
				return err
			}
			f.Array = data.Array{Shape: append(slices.Clone(f.Shape), 2), Values: places}
		}
		if err := w.arrays[i].Write(f); err != nil {
			return err
		}
	}
	return nil
}

// place appends texts to the file of a field, and returns where each begins and ends.
func (w *Writer) place(field int, texts []string) (places []int64, err error) {
	file, err := os.OpenFile(filepath.Join(w.dir, numbered(field)+".texts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString(strings.Join(texts, ""))
	for _, text := range texts {
		end := w.texts[field] + int64(len(text))
		places = append(places, w.texts[field], end)
		w.texts[field] = end
	}
	return places, errors.Join(err, file.Close())
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
		named, err := withTexts(ds, dir, numbered(i))
		if err == nil {
			named, err = named.Rename(numbered(i), field)
		}
		if err != nil {
			return nil, errors.Join(err, ds.Close())
		}
		ds = named
	}
	return ds, nil
}

// withTexts returns the dataset with the texts of a field in place of their positions, if it has texts.
func withTexts(ds *data.InMemory, dir, field string) (*data.InMemory, error) {
	content, err := os.ReadFile(filepath.Join(dir, field+".texts"))
	if errors.Is(err, fs.ErrNotExist) {
		return ds, nil
	}
	if err != nil {
		return nil, err
	}
	all, fields := string(content), ds.Fields()
	shape := fields[slices.IndexFunc(fields, func(f data.FieldSpec) bool { return f.Name == field })].Shape
	return data.Map(ds.Workers(1), field, "texts", shape[:len(shape)-1], func(_ data.Sample, dst []string, places []int64) error {
		for i := range dst {
			dst[i] = all[places[2*i]:places[2*i+1]]
		}
		return nil
	})
}
