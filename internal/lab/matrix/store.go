package matrix

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"steadyfit/internal/files"
	"steadyfit/internal/lab/runner"
)

// runsFile is the file in a results folder with every run and all its samples, one JSON object per line.
const runsFile = "runs.jsonl"

type store struct {
	file *os.File
	runs map[string]RunResult // by key
}

var errLocked = errors.New("another matrix is writing to it; wait for it to end, or give this one a folder of its own")

func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, runsFile), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	s := &store{file: file, runs: make(map[string]RunResult)}
	if errors.Is(files.Lock(file), files.ErrLocked) {
		file.Close()
		return nil, fmt.Errorf("results: %s: %w", file.Name(), errLocked)
	}
	end, err := s.read()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("results: %s: %w", file.Name(), err)
	}
	// A crash or a full disk may have cut off the last line.
	if err := file.Truncate(end); err != nil {
		file.Close()
		return nil, fmt.Errorf("results: %w", err)
	}
	return s, nil
}

func (s *store) read() (end int64, err error) {
	lines := bufio.NewReader(s.file)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil
		}
		if err != nil {
			return 0, err
		}
		var run RunResult
		if err := json.Unmarshal(line, &run); err != nil {
			return 0, fmt.Errorf("line %d is not a run: %w; move the file away to start from scratch", n, err)
		}
		s.runs[run.Key] = run
		end += int64(len(line))
	}
}

func (s *store) add(run RunResult) error {
	line, err := json.Marshal(run)
	if err != nil {
		return err
	}
	if _, err = s.file.Write(append(line, '\n')); err == nil {
		err = s.file.Sync()
	}
	if err != nil { // openStore removes a partial line
		return fmt.Errorf("results: %w; finished runs are saved, and the same command resumes", err)
	}
	s.runs[run.Key] = run
	return nil
}

func (s *store) close() { s.file.Close() }

const maxResult = 64 << 20

// ReadFile reads a matrix.json file, which may be compressed with gzip. It adds the claims that are
// newer than the file, with verdicts from the runs in the file.
func ReadFile(path string) (*Result, error) {
	text, err := runner.ReadGzip(path, maxResult)
	if err != nil {
		return nil, err
	}
	r := &Result{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s is not a matrix.json: %w", path, err)
	}
	if r.Schema != schemaVersion {
		return nil, fmt.Errorf("%s: expected a matrix.json of schema %d", path, schemaVersion)
	}
	r.Claims, err = ledger(r)
	return r, err
}

// WriteFile writes a matrix.json file, compressed if the path ends with .gz. It replaces the
// file atomically.
func WriteFile(path string, r *Result) error {
	return files.Stream(path, func(out io.Writer) error {
		e := json.NewEncoder(out)
		var zipped *gzip.Writer
		if strings.HasSuffix(path, ".gz") {
			zipped, _ = gzip.NewWriterLevel(out, gzip.BestCompression) // the level is valid
			e = json.NewEncoder(zipped)
		}
		e.SetEscapeHTML(false)
		err := e.Encode(r)
		if err == nil && zipped != nil {
			err = zipped.Close()
		}
		return err
	})
}
