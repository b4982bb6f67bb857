package data

import (
	"cmp"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"steadyfit/internal/files"
)

// recordKind returns the extension of a file of records: .tfrecord, .tar, .parquet or .arrow; "" for other files. The
// number of a file may follow the extension, as in train.tfrecord-00003-of-00010.
func recordKind(path string) string {
	ext, _, _ := strings.Cut(strings.ToLower(filepath.Ext(path)), "-")
	switch ext {
	case ".tfrecord", ".tfrecords", ".tfrec":
		return ".tfrecord"
	case ".arrow", ".feather":
		return ".arrow"
	case ".parquet", ".pq", ".parq":
		return ".parquet"
	case ".tar":
		return ext
	}
	return ""
}

// openRecordFiles opens files of records of one format as a dataset.
func openRecordFiles(name string, paths []string, o Options) (*InMemory, error) {
	switch recordKind(paths[0]) {
	case ".parquet":
		return newTable(name, o).readTyped(paths, openParquet)
	case ".arrow":
		return newTable(name, o).readTyped(paths, openArrow)
	case ".tar":
		return openRecords(name, paths, tarFormat{}, o)
	}
	return openRecords(name, paths, tfRecord{}, o)
}

// openRecordGlob opens the files of records that match a pattern.
func openRecordGlob(pattern string, o Options) (*InMemory, error) {
	paths, err := files.Glob(pattern)
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("%s: %w: no file matches the pattern; check it, and quote it in a shell", pattern,
			fs.ErrNotExist)
	}
	if err := onePart(pattern, o.Split); err != nil {
		return nil, err
	}
	if recordKind(paths[0]) == "" {
		return nil, fmt.Errorf("%s: a pattern is %w for this format, only for TFRecord, WebDataset, Parquet and Arrow "+
			"files", paths[0], ErrUnsupported)
	}
	return openRecordFiles(pattern, paths, o)
}

// openRecordFolder opens the files of records in a folder, or those of a part if the names of all files contain
// the name of a part, as in flowers-train.tfrecord.
func openRecordFolder(dir string, paths []string, o Options) (*InMemory, error) {
	parts, found := partNames(o.Split), map[string][]string{}
	for _, path := range paths {
		part := ""
		separates := func(c rune) bool { return strings.ContainsRune("-_. ", c) }
		for _, word := range strings.FieldsFunc(strings.ToLower(filepath.Base(path)), separates) {
			if slices.Contains(trained, word) || slices.Contains(tested, word) {
				part = word
			}
		}
		found[part] = append(found[part], path)
	}
	if len(found) == 1 || found[""] != nil {
		if err := onePart(dir, o.Split); err != nil {
			return nil, err
		}
		return openRecordFiles(dir, paths, o)
	}
	for _, part := range parts {
		if chosen := found[part]; chosen != nil {
			return openRecordFiles(filepath.Join(dir, "*"+part+"*"), chosen, o)
		}
	}
	return nil, fmt.Errorf("%s: part %q: %w: no file has one of %q in its name", dir, cmp.Or(o.Split, "train"), ErrNoSplit,
		parts)
}
