package data

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"

	"steadyfit/internal/dtype"
)

// tarRecords reads tar files in the layout of WebDataset. A sample is a sequence of files with one
// name; their extensions name the values:
//
//   - .cls, .id, .index and .count have an integer.
//   - .npy has an array.
//   - .json has an object, whose members become values with their own names. Its numbers are float64.
//   - Any other file, such as .jpg or .txt, is one string with the bytes of the file.
type tarRecords struct{}

func (tarRecords) name() string { return "WebDataset" }

func (tarRecords) usualLabel() string { return "cls" }

func (tarRecords) begins(head []byte) bool {
	const at = 257
	return len(head) >= at+5 && string(head[at:at+5]) == "ustar"
}

const tarBlock = 512

// tee copies the bytes that are read to a buffer that begins at byte start of the file.
type tee struct {
	r      io.Reader
	start  int64
	buffer []byte
}

func (t *tee) Read(b []byte) (int, error) {
	n, err := t.r.Read(b)
	t.buffer = append(t.buffer, b[:n]...)
	return n, err
}

// next returns the position of the next header in the file.
func (t *tee) next() int64 {
	return (t.start + int64(len(t.buffer)) + tarBlock - 1) / tarBlock * tarBlock
}

func (tarRecords) scan(r io.Reader, _ int64, each func(record, []byte) error) error {
	from := &tee{r: r}
	files := tar.NewReader(from)
	key := "" // the key of the record that starts at from.start
	for {
		at := from.next()
		file, err := files.Next()
		if err == io.EOF && len(bytes.Trim(from.buffer[max(0, len(from.buffer)-tarBlock):], "\x00")) > 0 {
			err = fmt.Errorf("no end after byte %d: %w", at, io.ErrUnexpectedEOF)
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("the archive near byte %d: %w", at, corrupt(err))
		}
		name, wanted := "", false
		if err == nil {
			name, _, wanted = tarName(file)
			if !wanted {
				name = key // a folder does not end a record
			}
		}
		if name != key {
			if key != "" {
				raw := from.buffer[:at-from.start]
				if err := each(recordAt(from.start, raw), raw); err != nil {
					return err
				}
			}
			from.buffer = slices.Delete(from.buffer, 0, int(at-from.start))
			key, from.start = name, at
		}
		if err == io.EOF {
			return nil
		}
		if size := from.next() - from.start + file.Size; file.Size > maxRecord || size > maxRecord {
			return recordError(fmt.Sprintf("more than %d bytes with the file %s at byte %d", maxRecord, quote(file.Name), at), "a smaller sample", "write smaller samples")
		}
		if wanted && sparse(file) {
			return recordError(fmt.Sprintf("the sparse file %s at byte %d", quote(file.Name), at), "a file with all bytes", "write the archive without holes")
		}
		if !wanted && key == "" {
			from.start, from.buffer = at, from.buffer[at-from.start:]
		}
		if _, err := io.Copy(io.Discard, files); err != nil {
			return fmt.Errorf("the archive near byte %d: %w", at, corrupt(err))
		}
	}
}

func sparse(file *tar.Header) bool {
	if file.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for name := range file.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// tarName returns the name without extensions (the key of a sample) and the extensions of a file. ok is
// false for entries that are not values, such as folders and hidden files.
func tarName(file *tar.Header) (key, ext string, ok bool) {
	dir, base := path.Split(strings.TrimPrefix(file.Name, "./"))
	name, ext, found := strings.Cut(base, ".")
	return dir + name, strings.ToLower(ext), found && name != "" && ext != "" && file.Typeflag == tar.TypeReg && !strings.HasPrefix(base, "__")
}

func (t tarRecords) values(raw []byte, err *error) iter.Seq2[[]byte, value] {
	return func(yield func([]byte, value) bool) {
		at := bytes.NewReader(raw)
		for files := tar.NewReader(at); ; {
			file, e := files.Next()
			if e == io.EOF {
				return
			}
			if e != nil {
				*err = corrupt(e)
				return
			}
			_, ext, ok := tarName(file)
			if !ok {
				continue
			}
			from := len(raw) - at.Len()
			if file.Size > int64(at.Len()) {
				*err = corrupt(io.ErrUnexpectedEOF)
				return
			}
			content := raw[from : from+int(file.Size)]
			if path.Ext("."+ext) == ".json" {
				if !jsonValues(content, err, yield) {
					return
				}
				continue
			}
			if !yield([]byte(ext), tarValue(ext, content)) {
				return
			}
		}
	}
}

func tarValue(ext string, content []byte) value {
	v := value{kind: dtype.For[string](), count: 1, raw: content}
	switch path.Ext("." + ext)[1:] {
	case "cls", "id", "index", "count":
		n, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
		if err != nil {
			v.err = &RowError{Unit: "record", Column: strconv.Quote(ext), Found: quote(string(content)), Expected: "an integer", Fix: "write text to a file .txt", Err: ErrFormat}
		}
		v.kind, v.decoded = dtype.For[int64](), vec[int64]{n}
	case "npy":
		a, err := readNPY(bytes.NewReader(content), nil, int64(len(content)))
		if err == nil {
			v.decoded, err = arrayVector(a)
		}
		if err != nil {
			v.err = fmt.Errorf("file .npy: %w", err)
			return v
		}
		v.kind, v.shape, v.count = v.decoded.kind(), a.Shape, v.decoded.len()
	}
	return v
}

// maxTarJSON is the maximum size of a JSON file in an archive, whose values take several times as much memory.
const maxTarJSON = 16 << 20

// jsonValues yields the values of an object.
func jsonValues(content []byte, err *error, yield func([]byte, value) bool) bool {
	if len(content) > maxTarJSON {
		*err = fmt.Errorf("file .json: found %d bytes, expected at most %d; write arrays to .npy files: %w", len(content), maxTarJSON, ErrUnsupported)
		return false
	}
	t := objects{fields: make(map[string]*jsonField)}
	if *err = t.add(content, 1); *err != nil {
		return false
	}
	for _, name := range t.names {
		f := t.fields[name]
		a := f.array(1, true)
		if f.numbers != nil {
			a.Values = f.numbers // whole numbers in one record may be fractions in another
		}
		decoded, e := vectorOf(a.Values)
		if *err = e; e != nil {
			return false
		}
		if !yield([]byte(name), value{kind: decoded.kind(), shape: f.shape, count: decoded.len(), decoded: decoded}) {
			return false
		}
	}
	return true
}

func (tarRecords) decode(v value, dst vector, at int) error {
	dst.(vec[string])[at] = string(v.raw)
	return nil
}

func (tarRecords) content(v value) []byte {
	if text, ok := v.decoded.(vec[string]); ok {
		return []byte(text[0])
	}
	return v.raw
}
