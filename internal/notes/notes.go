// Package notes reads and changes the exporter's notes of a SavedModel, a file of JSON in its folder.
package notes

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"steadyfit/internal/files"
)

// File is the name of the notes in the folder of a model, with a slash.
const File = "assets.extra/steadyfit.json"

// MaxBytes is the maximum size of the notes.
const MaxBytes = 1 << 20

// Read returns the notes of the model in a folder. The error matches fs.ErrNotExist if there are none.
func Read(dir string) ([]byte, error) {
	return files.Read(filepath.Join(dir, filepath.FromSlash(File)), MaxBytes)
}

// Record writes the fields of a record to the notes of the model in a folder, which it makes if
// there are none. It does nothing if the record is empty, or if the notes cannot be read, or would
// become too large to read.
func Record(dir string, record any) error {
	fields, err := json.Marshal(record)
	if err != nil || string(fields) == "{}" {
		return err
	}
	notes := map[string]any{} // keeps names that savedmodels.Metadata does not have
	text, err := Read(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil, json.Unmarshal(text, &notes) != nil:
		return nil //nolint:nilerr // opening the model has warned about them
	}
	if err := json.Unmarshal(fields, &notes); err != nil {
		return err
	}
	if text, err = json.MarshalIndent(notes, "", " "); err != nil || len(text) > MaxBytes {
		return err
	}
	path := filepath.Join(dir, filepath.FromSlash(File))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return files.Replace(path, text)
}
