package fit

import (
	"bytes"
	"cmp"
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

	"steadyfit/internal/disk"
	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/option"
)

// HistoryFile is a hook that appends each Record to a file: as a line of JSON, or as comma-separated
// values if the name of the file ends in .csv. The first line of a CSV file has the names of the fields
// and metrics, and unknown values are empty. If an existing file does not begin as a history of this
// run, it is not changed, and the error is an *option.Error.
//
// A new training appends to the existing content. A resumed run makes the file equal to that of an
// uninterrupted training: it removes the lines of epochs after the checkpoint, and adds missing
// lines. A run that restarts a training that crashed before its first checkpoint does the same.
//
// A line is written completely or not at all, and HistoryFile removes an incomplete line after
// a crash. Its errors are a LogError, which ends the run after the epoch, or is returned at its end
// with continueOnError: lines are then written later, when there is free space.
func HistoryFile(path string, continueOnError bool) Hook {
	lines := historyLines
	if strings.EqualFold(filepath.Ext(path), ".csv") {
		lines = csvLines
	}
	return lines(path).hook(continueOnError)
}

// maxFirstLine is the maximum length of a part of the first line that a crash can leave.
const maxFirstLine = 1 << 20

// recordStart begins each line of JSON.
const recordStart = `{"epoch":`

func historyLines(path string) *lineFile {
	return &lineFile{
		path:  path,
		begin: func(*State) []byte { return nil },
		format: func(r *Record) ([]byte, error) {
			line, err := json.Marshal(r)
			return append(line, '\n'), err
		},
		parse: func(line []byte) (epoch int, step int64, ok bool) {
			var r Record
			var has struct{ Step, Seconds json.RawMessage } // each record has them
			err := cmp.Or(json.Unmarshal(line, &r), json.Unmarshal(line, &has))
			return r.Epoch, r.Step, err == nil && has.Step != nil && has.Seconds != nil
		},
	}
}

func csvLines(path string) *lineFile {
	var columns []string
	row := func(values []string) []byte {
		var b bytes.Buffer
		w := csv.NewWriter(&b)
		// Writing to a buffer cannot fail, and csv quotes every value.
		_ = w.Write(values)
		w.Flush()
		return b.Bytes()
	}
	return &lineFile{
		path: path,
		begin: func(s *State) []byte {
			columns = slices.Concat(recordFields[:fieldsBeforeMetrics], s.available(), recordFields[fieldsBeforeMetrics:len(recordFields)-notInCSV])
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
	}
}

// LogError reports that a HistoryFile could not write its file. It affects neither the session nor
// checkpoints.
type LogError struct {
	// Path is the path of the file.
	Path string
	// Missing is the number of epochs of this run that the file lacks. A resumed run adds them.
	Missing int
	// Final is true if the training is complete (History.Done) and has no other error.
	Final bool
	// Free is the free space on the disk.
	Free memory.Reading
	// Remedy describes how to fix the problem.
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

// Unwrap returns the error of the file system.
func (e *LogError) Unwrap() error { return e.Err }

type lineFile struct {
	tolerant bool // continue after an error
	disk     disk.Disk
	path     string
	// begin returns the line with which a new file begins, or nil.
	begin func(*State) []byte
	// format returns the line of a record, including the newline.
	format func(*Record) ([]byte, error)
	// parse reads the epoch and the step of a line.
	parse func(line []byte) (epoch int, step int64, ok bool)
	name  string // the name of the hook
	// step and done are the numbers of steps and epochs done when the run began.
	step int64
	done int

	// file is nil if it could not be opened.
	file *os.File
	// regular is false for a pipe or a device.
	regular bool
	// pending are the lines that are not written yet.
	pending [][]byte
	// whole is the size of the complete lines in the file. torn is true if a part of a line may follow.
	torn  bool
	whole int64
	// warned is true from a warning until all lines are written.
	warned bool
	// stopped is the error for which this hook stopped the run.
	stopped error
}

func (l *lineFile) hook(continueOnError bool) Hook {
	l.tolerant, l.name = continueOnError, "history_file("+l.path+")"
	return Hook{Name: l.name, Priority: priorityReport, Start: l.start, Epoch: l.epoch, End: l.end, local: true}
}

func (l *lineFile) start(_ context.Context, s *State) error {
	l.file, l.pending, l.torn, l.warned, l.stopped = nil, nil, false, false, nil
	l.step, l.done = s.Step, s.EpochsDone
	if l.path == "" {
		return &option.Error{Option: "HistoryFile", Reason: "it has no file name", Fix: "name a file"}
	}
	err := l.open(s)
	if err == nil || errors.As(err, new(*option.Error)) {
		return err
	}
	if l.tolerant && s.History.ResumedFrom != "" {
		l.warn(s, err)
		return nil
	}
	return l.failure(err)
}

func (l *lineFile) warn(s *State, err error) {
	if !l.warned {
		l.warned = true
		s.Log.Warn("training continues without a line in the log file; the line is written once there is free space", "error", l.failure(err))
	}
}

// open opens the file after it has removed and added lines as HistoryFile describes.
func (l *lineFile) open(s *State) error {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o777); err != nil {
		return err
	}
	old, device, err := l.read(s)
	if err != nil {
		return err
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
	info, err := file.Stat()
	if err == nil && device {
		_, err = file.Write(content)
	}
	if err == nil && info.Mode().IsRegular() {
		// Only a full disk is an error: the file may be writable although its folder is not.
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

// read returns the content of the file, which must be a history. A pipe or a device has no lines of
// earlier runs, and reading it may block.
func (l *lineFile) read(s *State) (content []byte, device bool, err error) {
	info, err := os.Stat(l.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	case !info.Mode().IsRegular():
		return nil, true, nil
	}
	content, err = files.Read(l.path, maxHistoryBytes)
	if err == nil && len(content) > 0 {
		err = l.check(content, l.begin(s))
	}
	return content, false, err
}

// check returns an error for content whose first line is neither the one of a history nor, without a
// newline, a part of it, which a crash can leave.
func (l *lineFile) check(content, begin []byte) error {
	first, _, whole := bytes.Cut(content, []byte("\n"))
	var why string
	if begin == nil {
		start := []byte(recordStart)
		torn := !whole && len(first) <= maxFirstLine && (bytes.HasPrefix(first, start) || bytes.HasPrefix(start, first)) && !json.Valid(first)
		if _, _, ok := l.parse(first); ok || torn {
			return nil
		}
		why = fmt.Sprintf("its first line is %.200q; expected a record with epoch, step and seconds", first)
	} else {
		header := bytes.TrimSuffix(begin, []byte("\n"))
		if bytes.Equal(first, header) || !whole && bytes.HasPrefix(header, first) {
			return nil
		}
		found, want := strings.Split(string(first), ","), strings.Split(string(header), ",")
		column := 0
		for column < min(len(found), len(want)) && found[column] == want[column] {
			column++
		}
		at := func(names []string) string {
			if column < len(names) {
				return fmt.Sprintf("%.100q", names[column])
			}
			return "the end of the line"
		}
		why = fmt.Sprintf("column %d of its first line is %s; expected %s", column+1, at(found), at(want))
	}
	return &option.Error{Option: "HistoryFile", Value: l.path, Reason: "the file is not a history of this run: " + why, Fix: "name another file"}
}

// align returns the content that the file must have when the run begins.
func (l *lineFile) align(old []byte, s *State) ([]byte, error) {
	begin := l.begin(s)
	// A last line without a newline is complete if it can be parsed.
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

type lineAt struct {
	from, to, epoch int
	step            int64
}

// training returns the lines of one training. A file can hold several trainings; a training
// begins where the epoch does not increase. If first is true, training returns the training
// that begins at the offset at; otherwise it returns the last training in content[at:].
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

// rewind removes the lines of epochs that are not done, and adds missing lines.
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
	case l.tolerant:
		l.warn(s, err)
	case s.EpochsDone < s.Epochs && s.run.stop == "":
		// Returning the error here would end the run without a checkpoint of the epoch, so the
		// method end returns it.
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

func (l *lineFile) failure(err error) *LogError {
	var at *fs.PathError
	if errors.As(err, &at) && at.Path == l.path {
		err = at.Err // LogError contains the path
	}
	e := &LogError{Path: l.path, Missing: len(l.pending), Remedy: files.Remedy(err, ""), Err: err}
	if free, ok := files.FreeSpace(filepath.Dir(l.path)); ok {
		e.Free = memory.Known(memory.Bytes(free))
	}
	return e
}

func (l *lineFile) flush(s *State) error {
	if l.file == nil {
		if err := l.open(s); err != nil {
			return err
		}
		l.pending = nil // open has written these lines
	}
	for len(l.pending) > 0 {
		if err := l.append(l.pending[0]); err != nil {
			return err
		}
		l.pending = l.pending[1:]
	}
	return nil
}

// append writes a line completely or not at all.
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
	_ = l.mend() // after an error, the next line or the next run repeats mend
	return err
}

// mend removes the incomplete line that a failed write left.
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
