// Package manifest has the files that steadyfit adds to the folder of a SavedModel: SHA256SUMS, the SHA-256 of
// its files, and the exporter's notes. SHA256SUMS has the format of sha256sum, so `sha256sum -c SHA256SUMS`
// checks it, too.
package manifest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"steadyfit/internal/files"
)

// Name is the name of the manifest in its folder.
const Name = "SHA256SUMS"

// maxBytes is the maximum size of a manifest.
const maxBytes = 64 << 20

// list returns the sorted names of all files in a folder except the manifest. It does not follow links
// to folders.
func list(dir string) ([]string, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if name = filepath.ToSlash(name); name != Name {
			names = append(names, name)
		}
		return err
	})
	slices.Sort(names)
	return names, err
}

// hashFile returns the hex SHA-256 of a file.
func hashFile(ctx context.Context, path string) (string, error) {
	f, _, err := files.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, &reader{ctx, f}); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// reader reads until the context ends.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// Write writes the manifest of the files in a folder, and syncs it.
func Write(ctx context.Context, dir string) error {
	names, err := list(dir)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, name := range names {
		sum, err := hashFile(ctx, filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, name)
	}
	return files.Disk{}.Write(filepath.Join(dir, Name), text.Bytes())
}

// read reads the manifest of a folder. Its error matches fs.ErrNotExist if there is none.
func read(dir string) (map[string]string, error) {
	path := filepath.Join(dir, Name)
	text, err := files.Read(path, maxBytes)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxBytes+1)
	for n := 1; lines.Scan(); n++ {
		if err := parse(lines.Text(), sums); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
	}
	return sums, nil
}

// parse adds the hash in a line to sums.
func parse(line string, sums map[string]string) error {
	if line == "" || line[0] == '#' {
		return nil
	}
	sum, name, ok := strings.Cut(line, "  ")
	if raw, err := hex.DecodeString(sum); !ok || err != nil || len(raw) != sha256.Size {
		return errors.New("expected a SHA-256 of 64 hexadecimal digits, two spaces and a file name")
	}
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("%q is outside the folder", name)
	}
	sums[name] = strings.ToLower(sum)
	return nil
}

// Damage lists the files of a folder that differ from its manifest. It is an error.
type Damage struct {
	Dir string `json:"dir"`
	// Missing are names of the manifest without a file, Extra are files without a hash, and Differs
	// are files with another content. They are sorted, with slashes.
	Missing []string `json:"missing"`
	Extra   []string `json:"extra"`
	Differs []string `json:"differs"`
}

func (d *Damage) Error() string {
	var found []string
	for _, kind := range []struct {
		word  string
		names []string
	}{{"missing", d.Missing}, {"not listed", d.Extra}, {"another content", d.Differs}} {
		if len(kind.names) > 0 {
			found = append(found, kind.word+": "+strings.Join(kind.names, ", "))
		}
	}
	return fmt.Sprintf("%s differs from its %s: %s; copy the folder or save the model again", d.Dir, Name,
		strings.Join(found, "; "))
}

// Verify reads all files of a folder and compares them with its manifest. It returns the number of
// files. A difference is a *Damage. A folder without a manifest is an error, too.
func Verify(ctx context.Context, dir string) (n int, err error) {
	sums, err := read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, missing := os.Stat(dir); missing != nil {
			return 0, fmt.Errorf("verify: %w", missing)
		}
		err = fmt.Errorf("there is no %s in %s; save the model with this version of steadyfit to write one", Name, dir)
	}
	var names []string
	if err == nil {
		names, err = list(dir)
	}
	if err != nil {
		return 0, fmt.Errorf("verify: %w", err)
	}
	d := &Damage{Dir: dir, Missing: []string{}, Extra: []string{}, Differs: []string{}}
	for _, name := range names {
		if _, ok := sums[name]; !ok {
			d.Extra = append(d.Extra, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		sum, err := hashFile(ctx, filepath.Join(dir, filepath.FromSlash(name)))
		switch {
		case gone(err):
			d.Missing = append(d.Missing, name)
		case err != nil:
			return 0, fmt.Errorf("verify: %w", err)
		case sum != sums[name]:
			d.Differs = append(d.Differs, name)
		}
	}
	if len(d.Missing)+len(d.Extra)+len(d.Differs) > 0 {
		return len(sums), d
	}
	return len(sums), nil
}

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR)
}
