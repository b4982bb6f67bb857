package fit

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"steadyfit/internal/checkpoint"
	"steadyfit/internal/files"
	"steadyfit/option"
)

// HistoryFile is a hook that writes each Record to a file: as a line of JSON, or as comma-separated values if
// the name of the file ends in .csv. The first line of a CSV file has the names of the fields and metrics, and
// unknown values are empty.
//
// The file belongs to one training. A new training replaces an earlier history, and a resumed run writes the
// epochs before its checkpoint again. An existing file that is not a history is an *option.Error. If a line
// cannot be written, the run stops after the epoch and its checkpoint, and returns a *WriteError.
func HistoryFile(path string) Hook {
	h := &historyFile{path: path, csv: strings.EqualFold(filepath.Ext(path), ".csv")}
	return Hook{Name: "history_file(" + path + ")", Priority: priorityReport, Start: h.start, Epoch: h.epoch, End: h.end,
		local: true}
}

// WriteError reports that a checkpoint or the history could not be written, or an old checkpoint not removed.
// It has the Path, the newest Good checkpoint, and the cause Err. The session still has its state:
// if the training is complete (History.Done), the session has the result. No part of a failed checkpoint
// remains.
type WriteError = checkpoint.Error

type historyFile struct {
	path    string
	csv     bool
	columns []string // of a CSV file
	file    *os.File
	failed  error // first error of writing a line
}

func (h *historyFile) start(_ context.Context, s *State) (err error) {
	h.columns, h.failed = nil, nil
	if h.path == "" {
		return &option.Error{Option: "HistoryFile", Reason: "it has no file name", Fix: "name a file"}
	}
	if err := h.check(); err != nil {
		return err
	}
	var content []byte
	if h.csv {
		h.columns = slices.Concat(recordFields[:fieldsBeforeMetrics], s.run.train.names, s.run.validation.names,
			recordFields[fieldsBeforeMetrics:len(recordFields)-1])
		content = csvLine(h.columns)
	}
	for i := range s.History.Records {
		line, err := h.line(&s.History.Records[i])
		if err != nil {
			return err
		}
		content = append(content, line...)
	}
	if err = os.MkdirAll(filepath.Dir(h.path), 0o777); err == nil {
		err = files.Replace(h.path, content)
	}
	if err == nil {
		h.file, err = os.OpenFile(h.path, os.O_APPEND|os.O_WRONLY, 0o666)
	}
	return h.failure(err)
}

// check returns an error if an existing file is not a history.
func (h *historyFile) check() error {
	refuse := func(why string) error {
		return &option.Error{Option: "HistoryFile", Value: h.path, Reason: "the file is not a history: " + why,
			Fix: "name another file"}
	}
	info, err := os.Stat(h.path)
	if err != nil {
		return nil // replacing the file reports the error, unless the file does not exist
	}
	if !info.Mode().IsRegular() {
		return refuse("it is no regular file")
	}
	file, err := os.Open(h.path)
	if err != nil {
		return h.failure(err)
	}
	defer file.Close()
	begin := `{"epoch":`
	if h.csv {
		begin = strings.Join(recordFields[:fieldsBeforeMetrics], ",") + ","
	}
	found := make([]byte, len(begin))
	n, _ := file.Read(found) // an empty file is replaced
	if found = found[:n]; !strings.HasPrefix(begin, string(found)) {
		return refuse(fmt.Sprintf("it begins with %q, expected %q", found, begin))
	}
	return nil
}

func csvLine(values []string) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(values) // writing to a buffer cannot fail, and csv quotes every value
	w.Flush()
	return b.Bytes()
}

func (h *historyFile) line(r *Record) ([]byte, error) {
	if !h.csv {
		line, err := json.Marshal(r)
		return append(line, '\n'), err
	}
	values := make([]string, len(h.columns))
	for i, name := range h.columns {
		values[i] = r.column(name)
	}
	return csvLine(values), nil
}

func (h *historyFile) epoch(_ context.Context, s *State) error {
	line, err := h.line(s.Record)
	if err == nil && h.failed == nil {
		_, err = h.file.Write(line)
	}
	if err != nil {
		// An error of this function would end the run without a checkpoint of the epoch.
		h.failed = err
		if !s.LastStep() {
			s.Stop(h.path + " could not be written")
		}
	}
	return nil
}

func (h *historyFile) end(context.Context, *State) error {
	err := h.file.Close()
	if h.failed != nil {
		err = h.failed
	}
	return h.failure(err)
}

func (h *historyFile) failure(err error) error {
	if err == nil {
		return nil
	}
	return &WriteError{Path: h.path, Err: files.Cause(err)}
}
