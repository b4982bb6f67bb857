// Package checkpoint reads and writes the checkpoints of a training.
//
// A checkpoint is a folder ckpt-<step> with the files of the model (variables.*), the history
// (history.jsonl), and state.json. state.json has the position of the training, and the
// sizes and checksums of all other files. A checkpoint is written under a temporary name, synced file by
// file, and renamed. Older checkpoints are removed only then, so a crash of the process or the machine
// never leaves fewer good checkpoints than before.
package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"steadyfit/internal/files"
)

// The names of files in a checkpoint.
const (
	// Variables is the prefix of the files of the model.
	Variables = "variables"
	// History is the file with the history, one fit.Record per line.
	History = "history.jsonl"

	stateFile   = "state.json"
	stateFormat = "steadyfit checkpoint 1"
	// maxStateBytes is the maximum size of state.json and other small files.
	maxStateBytes = 64 << 20
)

// Manifest is the part of state.json that this package uses. The state of a training embeds it,
// and also has the fields step and epoch.
type Manifest struct {
	// Written is the time of writing, in RFC 3339.
	Written string `json:"written"`
	// Identity has the values that a run must match to resume.
	Identity map[string]string `json:"identity"`
	// Hooks are the states of hooks by name.
	Hooks map[string]json.RawMessage `json:"hooks,omitempty"`
	// Files are the other files of the checkpoint. Folder.Write sets them.
	Files []File `json:"files"`
}

// File is the name, the size and the checksum of a file.
type File struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	CRC   string `json:"crc32c"`
}

type state struct {
	Manifest
	Step   int64 `json:"step"`
	Epochs int   `json:"epoch"`

	raw json.RawMessage
}

// envelope is the content of state.json.
type envelope struct {
	Format string `json:"format"`
	// CRC is the checksum of State as compact JSON.
	CRC   string          `json:"crc32c"`
	State json.RawMessage `json:"state"`
}

// castagnoli is a polynomial for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(text []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(text, castagnoli)) }

// Encode returns the content of state.json for the state of a training.
func Encode(state any) ([]byte, error) {
	inner, err := json.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	content, err := json.MarshalIndent(envelope{stateFormat, checksum(inner), inner}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	return append(content, '\n'), nil
}

// Decode reads the content of state.json, and also returns the state as compact JSON. Its error is ErrTorn.
func Decode(text []byte, into any) (raw json.RawMessage, err error) {
	if raw, err = open(text); err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrTorn, stateFile, err)
	}
	return raw, nil
}

// open verifies the checksum of state.json and returns the field state as compact JSON.
func open(text []byte) (json.RawMessage, error) {
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, err
	}
	if e.Format != stateFormat {
		return nil, fmt.Errorf("its format is %q, expected %q", e.Format, stateFormat)
	}
	var inner bytes.Buffer
	if err := json.Compact(&inner, e.State); err != nil {
		return nil, err
	}
	if sum := checksum(inner.Bytes()); sum != e.CRC {
		return nil, fmt.Errorf("it has the checksum %s, expected %s", sum, e.CRC)
	}
	return inner.Bytes(), nil
}

func readState(path string) (*state, error) {
	text, err := files.Read(filepath.Join(path, stateFile), maxStateBytes)
	if err != nil {
		return nil, readError(err)
	}
	s := &state{}
	s.raw, err = Decode(text, s)
	return s, err
}

// verify reads state.json and verifies all files that it lists.
func verify(path string) (*state, error) {
	s, err := readState(path)
	if err != nil {
		return nil, err
	}
	for _, want := range s.Files {
		name := filepath.FromSlash(want.Name)
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%w: %s lists %q, which is outside the checkpoint", ErrTorn, stateFile, want.Name)
		}
		got, err := sumFile(filepath.Join(path, name))
		if err != nil {
			return nil, readError(err)
		}
		if got.Bytes != want.Bytes || got.CRC != want.CRC {
			return nil, fmt.Errorf("%w: %s has %d bytes with the checksum %s, expected %d bytes with %s",
				ErrTorn, want.Name, got.Bytes, got.CRC, want.Bytes, want.CRC)
		}
	}
	return s, nil
}

func sumFile(path string) (File, error) {
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	hash := crc32.New(castagnoli)
	n, err := io.Copy(hash, f)
	if err != nil {
		return File{}, fmt.Errorf("reading %s: %w", path, err)
	}
	return File{Bytes: n, CRC: fmt.Sprintf("%08x", hash.Sum32())}, nil
}

// readError turns the error of a missing or irregular file into ErrTorn. Other errors, such as
// missing permissions, a failing disk or too many open files, do not mean damage.
func readError(err error) error {
	for _, gone := range []error{fs.ErrNotExist, syscall.ENOTDIR, syscall.EISDIR, files.ErrTooLarge} {
		if errors.Is(err, gone) {
			return fmt.Errorf("%w: %w", ErrTorn, err)
		}
	}
	return err
}
