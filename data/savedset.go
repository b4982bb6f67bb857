package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"steadyfit/internal/files"
)

// openRecordFolders opens a part of a folder whose sub-folders hold files of records, such as one of
// DatasetDict.save_to_disk. kind is the kind of the files beside the sub-folders, or nil.
func openRecordFolders(dir string, kind *fileKind, o Options, l *limit) (*InMemory, error) {
	holds := func(dir string) bool {
		names, err := recordsIn(dir)
		return err == nil && len(names) > 0
	}
	folders, _, divided, err := partFolders(dir, nil, holds)
	if err != nil {
		return nil, err
	}
	if divided {
		chosen, err := partFolder(dir, o.Split, folders)
		if err != nil {
			return nil, err
		}
		if chosen != "" {
			o.Split = ""
			return openFolder(chosen, o, l)
		}
	}
	names := slices.Sorted(maps.Keys(folders))
	for _, name := range names {
		if path := folders[name]; holds(path) {
			return nil, fmt.Errorf("%s: the files of records are in its folders: use one of them, such as %s, or leave only folders named %q and %q: %w", dir, path, trained, tested, ErrUnsupported)
		}
	}
	if kind != nil && o.Unlabelled && len(names) > 0 {
		return nil, fmt.Errorf("%s: it has %s beside the folder %s, which has none: remove that folder, or move the %s to a folder of their own: %w", dir, kind.many, folders[names[0]], kind.many, ErrUnsupported)
	}
	return nil, unknownFolder(dir)
}

const (
	// stateFile lists the files of a folder that Dataset.save_to_disk of Hugging Face's datasets wrote.
	stateFile = "state.json"
	maxState  = 1 << 20
)

// cacheFile matches the names of files that Dataset.map of Hugging Face's datasets leaves beside the
// data.
var cacheFile = regexp.MustCompile(`^cache-[0-9a-f]+.*\.arrow$`)

// savedFiles returns the files of records in a folder. If the folder has Arrow files and a state file,
// it returns only the files that the state file lists. Without a state file, a cache file beside other
// files is an error.
func savedFiles(dir string) (found []recordName, err error) {
	if found, err = recordsIn(dir); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(found, func(n recordName) bool { return n.format == arrowFormat }) {
		return found, nil
	}
	listed, err := listedFiles(dir)
	if err != nil || listed != nil {
		return listed, err
	}
	for _, n := range found {
		if len(found) > 1 && cacheFile.MatchString(filepath.Base(n.path)) {
			return nil, fmt.Errorf("%s: Dataset.map of Hugging Face's datasets leaves such files beside the data, whose rows would count twice; remove it, or use the name or a pattern of the files to read: %w", n.path, ErrFormat)
		}
	}
	return found, nil
}

// listedFiles returns the files that the state of a folder lists, or nil without such a list.
func listedFiles(dir string) (names []recordName, err error) {
	path := filepath.Join(dir, stateFile)
	raw, err := files.Read(path, maxState)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, files.ErrTooLarge):
		return nil, fmt.Errorf("%w; was it written by Dataset.save_to_disk?: %w", err, ErrTooLarge)
	case err != nil:
		return nil, openError(path, err)
	}
	var state struct {
		Files   []struct{ Filename string } `json:"_data_files"`
		Indices []json.RawMessage           `json:"_indices_data_files"`
	}
	if err := json.Unmarshal(raw, &state); err != nil {
		return nil, fmt.Errorf("%s: not a state file of Dataset.save_to_disk: %w; %s: %w", path, err, interrupted, ErrFormat)
	}
	if state.Files != nil && len(state.Files) == 0 {
		return nil, fmt.Errorf("%s: it lists no files of data; write the dataset again: %w", path, ErrFormat)
	}
	if len(state.Indices) > 0 {
		return nil, fmt.Errorf("%s: a dataset whose row indices are in a separate file is %w; write the dataset again with a newer version of Hugging Face's datasets", path, ErrUnsupported)
	}
	for _, f := range state.Files {
		if f.Filename != filepath.Base(f.Filename) {
			return nil, fmt.Errorf("%s: it lists %s, expected the name of a file in its folder: %w", path, quote(f.Filename), ErrFormat)
		}
		file := filepath.Join(dir, f.Filename)
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: the file is missing, and %s lists it; %s: %w", file, stateFile, interrupted, ErrFormat)
		}
		n, ok := recordNameOf(file)
		if !ok {
			return nil, fmt.Errorf("%s: %s lists it, and its format is %w; expected Arrow files", file, stateFile, ErrUnsupported)
		}
		n.of = 0 // the state may list some files of a set
		names = append(names, n)
	}
	return names, nil
}
