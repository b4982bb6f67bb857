package savedmodels

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// CheckUnchanged says whether the model can be loaded from its folder as it was when it
// was opened: nil if saved_model.pb has the content that Hash is of, and the weights and
// assets are there and can be read. Another saved_model.pb gives ErrChanged, a damaged
// folder ErrNotSavedModel, one that cannot be read the error of the file system.
//
// The weights may be others than before: who has a state of their own to write does not
// need them.
func (m *Model) CheckUnchanged() error {
	path := filepath.Join(m.Dir, modelFile)
	hash := sha256.New()
	if err := copyFile(hash, path); err != nil {
		return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
	}
	if now := hex.EncodeToString(hash.Sum(nil)); now != m.Hash {
		return fmt.Errorf("%s: %w: its SHA-256 was %.12s when it was opened, and is %.12s now; put back what was there, or begin a new training with this one",
			path, ErrChanged, m.Hash, now)
	}
	if err := m.checkVariables(); err != nil {
		return err
	}
	for _, folder := range []string{"variables", "assets"} {
		entries, err := os.ReadDir(filepath.Join(m.Dir, folder))
		if errors.Is(err, fs.ErrNotExist) {
			continue // checkVariables has asked for those that are needed
		}
		if err != nil {
			return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
		}
		for _, e := range entries {
			if !e.Type().IsRegular() {
				continue
			}
			f, err := os.Open(filepath.Join(m.Dir, folder, e.Name()))
			if err != nil {
				return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
			}
			f.Close()
		}
	}
	return nil
}

// copyFile writes a regular file to w, a part at a time: memory may be short.
func copyFile(w io.Writer, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
