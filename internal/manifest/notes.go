package manifest

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"steadyfit/internal/files"
)

// NotesFile is the name of the notes in the folder of a model, with a slash.
const NotesFile = "assets.extra/steadyfit.json"

// MaxNotes is the maximum size of the notes.
const MaxNotes = 1 << 20

// ReadNotes returns the exporter's notes, JSON, of the model in a folder. The error matches
// fs.ErrNotExist if there are none.
func ReadNotes(dir string) ([]byte, error) {
	return files.Read(filepath.Join(dir, filepath.FromSlash(NotesFile)), MaxNotes)
}

// RecordNotes adds the fields of a record to the notes of the model in a folder, or makes the notes.
// It does nothing if the record is nil or empty, if the notes cannot be read, or if they would
// become too large to read.
func RecordNotes(dir string, record any) error {
	fields, err := json.Marshal(record)
	if err != nil || string(fields) == "{}" || string(fields) == "null" {
		return err
	}
	notes := map[string]any{} // keeps names that savedmodels.Metadata does not have
	text, err := ReadNotes(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil, json.Unmarshal(text, &notes) != nil:
		return nil //nolint:nilerr // opening the model has warned about them
	}
	if err := json.Unmarshal(fields, &notes); err != nil {
		return err
	}
	if text, err = json.MarshalIndent(notes, "", " "); err != nil || len(text) > MaxNotes {
		return err
	}
	path := filepath.Join(dir, filepath.FromSlash(NotesFile))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return files.Replace(path, text)
}
