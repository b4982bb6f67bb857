package doctor

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"steadyfit/internal/files"
)

// elfRunPath returns the folders in which a library searches for others, in the loader's order.
// $ORIGIN is replaced by the library's own folder.
func elfRunPath(file string) (_ []string, err error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	texts, err := dynamicStrings(f, elf.DT_RUNPATH)
	if err == nil && len(texts) == 0 {
		texts, err = dynamicStrings(f, elf.DT_RPATH)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	// Joining $ORIGIN and .. as text is correct only without symbolic links on the way.
	origin, err := filepath.EvalSymlinks(filepath.Dir(file))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return splitRunPath(strings.Join(texts, ":"), origin), nil
}

// dynamicStrings is like elf.File.DynString, but does not read all strings first: the names of all
// symbols take 82 MB in TensorFlow's library.
func dynamicStrings(f *elf.File, tag elf.DynTag) ([]string, error) {
	offsets, err := f.DynValue(tag)
	if err != nil || len(offsets) == 0 {
		return nil, err
	}
	table := int(f.SectionByType(elf.SHT_DYNAMIC).Link)
	if table >= len(f.Sections) {
		return nil, fmt.Errorf("its dynamic strings are in section %d; it has %d", table, len(f.Sections))
	}
	var texts []string
	for _, offset := range offsets {
		r := f.Sections[table].Open()
		if _, err := r.Seek(int64(offset), io.SeekStart); err != nil {
			return nil, err
		}
		text, err := bufio.NewReader(r).ReadString(0)
		if err != nil {
			return nil, err
		}
		texts = append(texts, strings.TrimSuffix(text, "\x00"))
	}
	return texts, nil
}

func splitRunPath(text, origin string) []string {
	var folders []string
	for dir := range strings.SplitSeq(text, ":") {
		if dir == "" {
			continue
		}
		dir = strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin).Replace(dir)
		folders = append(folders, filepath.Clean(dir))
	}
	return folders
}

// elfContains reports which names occur in the libraries as whole C strings, which is required
// for calling getenv with them. So a missing name proves that this library does not read the
// variable, whatever its version. It takes 0.1 s for TensorFlow's 70 MB of constants.
func elfContains(files, names []string) (map[string]bool, error) {
	held := map[string]bool{}
	for _, file := range files {
		if err := addHeld(held, file, names); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	return held, nil
}

func addHeld(held map[string]bool, file string, names []string) (err error) {
	f, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, s := range f.Sections {
		// Strings may be in separate sections, such as .rodata.str1.1.
		if strings.HasPrefix(s.Name, ".rodata") && s.Type == elf.SHT_PROGBITS {
			if err := files.FindStrings(held, s.Open(), names); err != nil {
				return err
			}
		}
	}
	return nil
}
