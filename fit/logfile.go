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
)

// HistoryFile is a hook that appends one line of JSON per epoch to a file: the
// Record. A run that begins anew appends to what is there. A resumed run removes
// the lines of epochs after the checkpoint first, and adds those that are
// missing, so that the file is as if training had never been stopped. A last
// line that a crash cut off is removed.
func HistoryFile(path string) Hook {
	return (&lineFile{
		option: "HistoryFile",
		path:   path,
		begin:  func(*State) []byte { return nil },
		format: func(r *Record) ([]byte, error) {
			line, err := json.Marshal(r)
			return append(line, '\n'), err
		},
		parse: func(line []byte) (epoch int, step int64, ok bool) {
			var r Record
			err := json.Unmarshal(line, &r)
			return r.Epoch, r.Step, err == nil
		},
	}).hook("history_file(" + path + ")")
}

// CSVLog is a hook that appends one line of comma-separated values per epoch to
// a file that begins with a line of names: the fields of the Record, and every
// metric that the run can have. What is not known is empty. For the rest it is
// as HistoryFile; a file with other names is an OptionError.
func CSVLog(path string) Hook {
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
		option: "CSVLog",
		path:   path,
		begin: func(s *State) []byte {
			columns = slices.Concat(recordFields[:fieldsBeforeMetrics], s.Available(), recordFields[fieldsBeforeMetrics:])
			return row(columns)
		},
		format: func(r *Record) ([]byte, error) {
			values := make([]string, len(columns))
			for i, name := range columns {
				if text, ok := r.field(name); ok {
					values[i] = text
				} else if v, ok := r.Metrics.Get(name); ok {
					values[i] = strconv.FormatFloat(v, 'g', -1, 64)
				}
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
	}).hook("csv_log(" + path + ")")
}

// lineFile is a file with a line per epoch.
type lineFile struct {
	option, path string
	// begin is the first line of a file; empty for none.
	begin func(*State) []byte
	// format writes the line of a record, with its end.
	format func(*Record) ([]byte, error)
	// parse tells the epoch and the step of a line.
	parse func(line []byte) (epoch int, step int64, ok bool)

	file *os.File
}

func (l *lineFile) hook(name string) Hook {
	return Hook{Name: name, Priority: PriorityReport, Start: l.start, Epoch: l.epoch, End: l.end}
}

func (l *lineFile) start(_ context.Context, s *State) error {
	if l.path == "" {
		return &OptionError{l.option, "it has no file name", "name a file"}
	}
	if err := os.MkdirAll(filepath.Dir(l.path), 0o777); err != nil {
		return fmt.Errorf("%s: %w", l.path, err)
	}
	old, err := os.ReadFile(l.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	content, err := l.align(old, s)
	if err != nil {
		return err
	}
	if !bytes.Equal(content, old) {
		if err := (disk{}).replace(l.path, content); err != nil {
			return err
		}
	}
	l.file, err = os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	return err
}

// align returns what the file should contain when the run begins.
func (l *lineFile) align(old []byte, s *State) ([]byte, error) {
	begin := l.begin(s)
	// Without its end, a last line was cut off, or is by another hand; it stays
	// if it is whole.
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
		return nil, &OptionError{l.option, fmt.Sprintf("%s begins with %.200q, but this run would write %.200q", l.path, first, bytes.TrimSpace(begin)), "use another file"}
	}
	if s.History.ResumedFrom == "" {
		return old, nil
	}
	return l.rewind(old, len(begin), s)
}

// rewind drops the lines of this training that come after the resumed
// checkpoint. A file can have several trainings: each begins where the epoch
// does not go up.
func (l *lineFile) rewind(old []byte, header int, s *State) ([]byte, error) {
	type lineAt struct {
		from, to, epoch int
		drop            bool
	}
	var last []lineAt // the lines of the last training
	at := header
	for line := range bytes.Lines(old[header:]) {
		epoch, step, ok := l.parse(line)
		to := at + len(line)
		if ok {
			if n := len(last); n > 0 && epoch <= last[n-1].epoch {
				last = last[:0]
			}
			last = append(last, lineAt{at, to, epoch, step > s.Step || epoch > s.run.done})
		}
		at = to
	}
	content := slices.Clone(old)
	have := 0
	for _, line := range slices.Backward(last) {
		if line.drop {
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
	_, err = l.file.Write(line)
	return err
}

func (l *lineFile) end(context.Context, *State) error {
	file := l.file
	l.file = nil
	if file == nil {
		return nil
	}
	return file.Close()
}
