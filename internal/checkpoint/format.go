// Package checkpoint reads and writes the checkpoints of a training. The public package of the
// same name describes their files.
package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"

	"steadyfit/internal/files"
)

// The names of files in a checkpoint.
const (
	// Variables is the prefix of the files of the model.
	Variables = "variables"
	// History is the file with the history, one fit.Record per line.
	History = "history.jsonl"

	stateFile    = "state.json"
	stateFormat  = "steadyfit checkpoint"
	stateVersion = 1
	// maxStateBytes is the maximum size of state.json and other small files.
	maxStateBytes = 64 << 20
)

// Manifest is the part of state.json that this package uses. The state of a training embeds it,
// and also has the fields step, epoch and finite_loss_seen.
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
	Step       int64 `json:"step"`
	Epochs     int   `json:"epoch"`
	FiniteLoss bool  `json:"finite_loss_seen"`

	raw json.RawMessage
}

// bytes returns the size of the checkpoint without state.json.
func (m *Manifest) bytes() int64 {
	var sum int64
	for _, f := range m.Files {
		sum += f.Bytes
	}
	return sum
}

// envelope is the content of state.json. All versions have the same fields except State.
type envelope struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Writer  string `json:"writer"` // the program that wrote the file
	// CRC is the checksum of State as compact JSON.
	CRC string `json:"crc32c"`
	// Header is the checksum of the preceding fields. Early versions did not write it.
	Header string          `json:"header_crc32c"`
	State  json.RawMessage `json:"state"`
}

// castagnoli is a polynomial for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func hexSum(sum uint32) string { return fmt.Sprintf("%08x", sum) }

func checksum(text []byte) string { return hexSum(crc32.Checksum(text, castagnoli)) }

func (e *envelope) headerSum() string {
	return checksum(fmt.Appendf(nil, "%q %d %q %q", e.Format, e.Version, e.Writer, e.CRC))
}

var program = sync.OnceValue(func() string {
	const name = "steadyfit"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
			if m.Path == name && m.Version != "" {
				return name + " " + m.Version
			}
		}
	}
	return name + " of an unknown version"
})

// Encode returns the content of state.json for the state of a training.
func Encode(state any) ([]byte, error) {
	inner, err := json.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	e := envelope{Format: stateFormat, Version: stateVersion, Writer: program(), CRC: checksum(inner), State: inner}
	e.Header = e.headerSum()
	content, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile, err)
	}
	return append(content, '\n'), nil
}

// Decode reads the content of state.json. Its errors are ErrTorn, ErrForeign or ErrFuture.
func Decode(text []byte, into any) error {
	raw, err := open(text)
	if err == nil {
		if err = json.Unmarshal(raw, into); err != nil {
			err = fmt.Errorf("%w: %s: %w", ErrTorn, stateFile, err)
		}
	}
	return err
}

// open verifies the checksums of state.json and returns the field state.
func open(text []byte) (json.RawMessage, error) {
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrTorn, stateFile, err)
	}
	// Because of this checksum, a flipped bit does not make a damaged checkpoint look like a
	// checkpoint of another program or version.
	if sum := e.headerSum(); e.Header != "" && sum != e.Header {
		return nil, fmt.Errorf("%w: the header of %s has the checksum %s, expected %s", ErrTorn, stateFile, sum, e.Header)
	}
	if e.Format != stateFormat {
		return nil, fmt.Errorf("%w: %s has format %q, expected %q", ErrForeign, stateFile, e.Format, stateFormat)
	}
	if e.Version != stateVersion {
		kind := ErrForeign
		if e.Version > stateVersion {
			kind = ErrFuture
		}
		return nil, fmt.Errorf("%w: %s has version %d, written by %s; this is %s, which reads version %d",
			kind, stateFile, e.Version, cmp.Or(e.Writer, "an unknown program"), program(), stateVersion)
	}
	var inner bytes.Buffer
	if err := json.Compact(&inner, e.State); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrTorn, stateFile, err)
	}
	if sum := checksum(inner.Bytes()); sum != e.CRC {
		return nil, fmt.Errorf("%w: %s has the checksum %s, expected %s", ErrTorn, stateFile, sum, e.CRC)
	}
	return inner.Bytes(), nil
}

func readState(path string) (*state, error) {
	text, err := files.Read(filepath.Join(path, stateFile), maxStateBytes)
	if errors.Is(err, fs.ErrNotExist) {
		kind := ErrForeign
		if exists(filepath.Join(path, History)) {
			kind = ErrTorn
		}
		return nil, fmt.Errorf("%w: there is no %s", kind, stateFile)
	}
	if err != nil {
		return nil, readError(err)
	}
	s := &state{}
	if s.raw, err = open(text); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(s.raw, s); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrTorn, stateFile, err)
	}
	return s, nil
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
			return nil, fmt.Errorf("%w: %s lists %q, which is outside the checkpoint", ErrForeign, stateFile, want.Name)
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
	return File{Bytes: n, CRC: hexSum(hash.Sum32())}, nil
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
