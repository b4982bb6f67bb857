package fit

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/option"
)

// HistoryFile is a hook that appends one line of JSON per epoch to a file: the Record. A new
// training appends to what is there. A resumed run first removes the lines of epochs after
// the checkpoint, and adds missing ones, so that the file is as if training had never
// stopped. So does a run that resumes a training that crashed before its first checkpoint.
//
// Lines are written whole or not at all, and a line that a crash cut off is removed. Errors
// are a LogError; see OnError.
func HistoryFile(path string, given ...Option) Hook {
	return historyLines(path).hook("history_file("+path+")", given)
}

func historyLines(path string) *lineFile {
	return &lineFile{
		kind:  "HistoryFile",
		path:  path,
		begin: func(*State) []byte { return nil },
		format: func(r *Record) ([]byte, error) {
			line, err := json.Marshal(r)
			return append(line, '\n'), err
		},
		parse: func(line []byte) (epoch int, step int64, ok bool) {
			var r Record
			err := json.Unmarshal(line, &r)
			return r.Epoch, r.Step, err == nil
		},
	}
}

// CSVLog is like HistoryFile, with lines of comma-separated values after a line of names: the
// fields of the Record, and the metrics of the run. Unknown values are empty. A file with
// other names is an *option.Error.
func CSVLog(path string, given ...Option) Hook {
	var columns []string
	row := func(values []string) []byte {
		var b bytes.Buffer
		w := csv.NewWriter(&b)
		// Neither can fail: the writer is a buffer, and csv quotes every value.
		_ = w.Write(values)
		w.Flush()
		return b.Bytes()
	}
	return (&lineFile{
		kind: "CSVLog",
		path: path,
		begin: func(s *State) []byte {
			columns = slices.Concat(recordFields[:fieldsBeforeMetrics], s.Available(), recordFields[fieldsBeforeMetrics:len(recordFields)-1])
			return row(columns)
		},
		format: func(r *Record) ([]byte, error) {
			values := make([]string, len(columns))
			for i, name := range columns {
				values[i] = r.column(name)
			}
			return row(values), nil
		},
		parse: func(line []byte) (epoch int, step int64, ok bool) {
			r := csv.NewReader(bytes.NewReader(line))
			values, err := r.Read()
			if err != nil || len(values) != len(columns) {
				return 0, 0, false
			}
			epoch, errEpoch := strconv.Atoi(values[0])
			step, errStep := strconv.ParseInt(values[1], 10, 64)
			return epoch, step, errEpoch == nil && errStep == nil
		},
	}).hook("csv_log("+path+")", given)
}

// LogError is a file of a HistoryFile or CSVLog that could not be written. The
// session is not affected, nor are checkpoints.
type LogError struct {
	// Path is the file.
	Path string
	// Missing is the number of epochs of this run that it lacks. A resumed run adds them.
	Missing int
	// Final is true at the end of a training that is complete (History.Done) and has no other
	// error.
	Final bool
	// Free is the space on the disk.
	Free memory.Reading
	// Remedy says what to do.
	Remedy string
	// Err is the error of the file system.
	Err error
}

func (e *LogError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "log file %s: %v", e.Path, e.Err)
	if e.Free.OK && files.Full(e.Err) {
		fmt.Fprintf(&b, " (%s free)", e.Free)
	}
	switch {
	case e.Missing == 1:
		b.WriteString("; it lacks the last epoch, which a resumed run adds")
	case e.Missing > 1:
		fmt.Fprintf(&b, "; it lacks the last %d epochs, which a resumed run adds", e.Missing)
	}
	return b.String() + "; " + e.Remedy
}

// Unwrap is the error of the file system.
func (e *LogError) Unwrap() error { return e.Err }

// lineFile is a file with a line per epoch.
type lineFile struct {
	options
	kind, path string // kind is the name of the function
	// begin is the first line of a file; empty for none.
	begin func(*State) []byte
	// format writes the line of a record, with its end.
	format func(*Record) ([]byte, error)
	// parse reads the epoch and the step of a line.
	parse func(line []byte) (epoch int, step int64, ok bool)
	// name is that of the hook.
	name string
	// step and done are where the run began.
	step int64
	done int

	// file is nil while it could not be opened.
	file *os.File
	// regular is false for a pipe or a device.
	regular bool
	// pending are lines that could not be written yet.
	pending [][]byte
	// torn is true while the file may have part of a line after its first whole bytes.
	torn  bool
	whole int64
	// warned is true after a warning, until the file is whole again.
	warned bool
	// stopped is why this hook has stopped the run.
	stopped error
}

func (l *lineFile) hook(name string, given []Option) Hook {
	l.name, l.options = name, l.options.with(given)
	return Hook{Name: name, Priority: PriorityReport, Start: l.start, Epoch: l.epoch, End: l.end}
}

func (l *lineFile) start(_ context.Context, s *State) error {
	l.file, l.pending, l.torn, l.warned, l.stopped = nil, nil, false, false, nil
	l.step, l.done = s.Step, s.EpochsDone
	if l.path == "" {
		return &option.Error{Option: l.kind, Reason: "it has no file name", Fix: "name a file"}
	}
	if err := l.check(l.kind, "OnError"); err != nil {
		return err
	}
	err := l.open(s)
	if err == nil || errors.As(err, new(*option.Error)) {
		return err
	}
	if l.onError == Continue && s.History.ResumedFrom != "" {
		l.warn(s, err)
		return nil
	}
	return l.failure(err)
}

// warn reports once that lines are missing.
func (l *lineFile) warn(s *State, err error) {
	if !l.warned {
		l.warned = true
		s.Log.Warn("training continues without a line in the log file; it is kept until there is room", "error", l.failure(err))
	}
}

// open aligns the file with where the run begins, and checks that it can be written.
func (l *lineFile) open(s *State) error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o777); err != nil {
		return err
	}
	// A pipe or a device has no lines of earlier runs, and reading one may never end.
	info, err := os.Stat(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	device := err == nil && !info.Mode().IsRegular()
	var old []byte
	if err == nil && !device {
		if old, err = files.Read(l.path, maxHistoryBytes); err != nil {
			return err
		}
	}
	content, err := l.align(old, s)
	if err != nil {
		return err
	}
	if !device && !bytes.Equal(content, old) {
		if err := l.disk.Replace(l.path, content); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	if info, err = file.Stat(); err == nil && device {
		_, err = file.Write(content)
	}
	if err == nil && info.Mode().IsRegular() {
		// A file may be writable where its folder is not, so this is about room only.
		if probe := l.disk.Probe(filepath.Dir(l.path)); files.Full(probe) {
			err = probe
		}
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	l.file, l.regular = file, info.Mode().IsRegular()
	return nil
}

// align returns what the file should contain when the run begins.
func (l *lineFile) align(old []byte, s *State) ([]byte, error) {
	begin := l.begin(s)
	// A last line without an end was cut off, unless it can be read.
	if end := bytes.LastIndexByte(old, '\n') + 1; end < len(old) {
		if _, _, ok := l.parse(old[end:]); ok {
			old = append(slices.Clip(old), '\n')
		} else {
			old = old[:end]
		}
	}
	if len(old) == 0 {
		old = begin
	}
	if !bytes.HasPrefix(old, begin) {
		first, _, _ := bytes.Cut(old, []byte("\n"))
		return nil, &option.Error{Option: l.kind, Value: l.path, Reason: fmt.Sprintf("it begins with %.200q, and this run would write %.200q", first, bytes.TrimSpace(begin)), Fix: "use another file"}
	}
	from, known := s.run.logs[l.name]
	known = known && from >= int64(len(begin)) && from <= int64(len(old)) && (from == 0 || old[from-1] == '\n')
	if !known && s.History.ResumedFrom == "" {
		from, known = int64(len(old)), true
	}
	if !known {
		from = int64(len(begin))
	}
	training := l.training(old, int(from), known)
	switch {
	case known:
	case len(training) > 0:
		from = int64(training[0].from)
	default:
		from = int64(len(old))
	}
	if s.run.logs == nil {
		s.run.logs = make(map[string]int64)
	}
	s.run.logs[l.name] = from
	return l.rewind(old, training, s)
}

// lineAt is a line of a training.
type lineAt struct {
	from, to, epoch int
	step            int64
}

// training finds the lines of a training. A file can have several; each begins where the
// epoch does not increase. It is the one that begins at a place if first, or else the last
// one after it.
func (l *lineFile) training(content []byte, at int, first bool) []lineAt {
	var lines []lineAt
	for line := range bytes.Lines(content[at:]) {
		epoch, step, ok := l.parse(line)
		to := at + len(line)
		if ok {
			if n := len(lines); n > 0 && epoch <= lines[n-1].epoch {
				if first {
					break
				}
				lines = lines[:0]
			}
			lines = append(lines, lineAt{at, to, epoch, step})
		}
		at = to
	}
	return lines
}

// rewind removes the lines of a training after where this run began, and adds missing ones.
func (l *lineFile) rewind(old []byte, training []lineAt, s *State) ([]byte, error) {
	content := slices.Clone(old)
	have := 0
	for _, line := range slices.Backward(training) {
		if line.step > l.step || line.epoch > l.done {
			content = slices.Delete(content, line.from, line.to)
		} else {
			have = max(have, line.epoch)
		}
	}
	for i := range s.History.Records {
		if r := &s.History.Records[i]; r.Epoch > have {
			line, err := l.format(r)
			if err != nil {
				return nil, err
			}
			content = append(content, line...)
		}
	}
	return content, nil
}

func (l *lineFile) epoch(_ context.Context, s *State) error {
	line, err := l.format(s.Record)
	if err != nil {
		return err
	}
	l.pending = append(l.pending, line)
	err = l.flush(s)
	switch {
	case err == nil && l.warned:
		l.warned = false
		s.Log.Info("the log file has all lines again", "file", l.path)
	case err == nil:
	case l.onError == Continue:
		l.warn(s, err)
	case s.EpochsDone < s.Epochs && s.run.stop == "":
		// An error would end the run without a checkpoint of the epoch. End returns it.
		l.stopped = err
		s.Stop(fmt.Sprintf("%s could not be written", l.path))
	}
	return nil
}

func (l *lineFile) end(_ context.Context, s *State) error {
	err := l.flush(s)
	if l.file != nil {
		if closed := l.file.Close(); err == nil {
			err = closed
		}
	}
	if err == nil || l.file == nil && len(l.pending) == 0 {
		err = l.stopped
	}
	l.file = nil
	if err == nil {
		return nil
	}
	failure := l.failure(err)
	failure.Final = s.Err == nil && l.stopped == nil && s.run.over()
	return failure
}

// failure adds to an error the space left and what to do.
func (l *lineFile) failure(err error) *LogError {
	var at *fs.PathError
	if errors.As(err, &at) && at.Path == l.path {
		err = at.Err // LogError has the path
	}
	e := &LogError{Path: l.path, Missing: len(l.pending), Remedy: files.Remedy(err, ""), Err: err}
	if free, ok := files.FreeSpace(filepath.Dir(l.path)); ok {
		e.Free = memory.Known(memory.Bytes(free))
	}
	return e
}

// flush writes pending lines, as many as there is room for.
func (l *lineFile) flush(s *State) error {
	if l.file == nil {
		if err := l.open(s); err != nil {
			return err
		}
		l.pending = nil // open has added them
	}
	for len(l.pending) > 0 {
		if err := l.append(l.pending[0]); err != nil {
			return err
		}
		l.pending = l.pending[1:]
	}
	return nil
}

// append adds a line to the file, or nothing.
func (l *lineFile) append(line []byte) error {
	if err := l.mend(); err != nil {
		return err
	}
	if l.regular {
		info, err := l.file.Stat()
		if err != nil {
			return err
		}
		l.whole = info.Size()
	}
	err := l.disk.Change("append", l.path, func() error {
		_, err := l.file.Write(line)
		return err
	})
	if err == nil || !l.regular {
		return err
	}
	l.torn = true
	_ = l.mend() // else before the next line, or when the next run begins
	return err
}

// mend removes the part of a line that a failed write has left.
func (l *lineFile) mend() error {
	if !l.torn {
		return nil
	}
	info, err := l.file.Stat()
	if err == nil && info.Size() > l.whole {
		err = l.disk.Change("truncate", l.path, func() error { return l.file.Truncate(l.whole) })
	}
	l.torn = err != nil
	return err
}
