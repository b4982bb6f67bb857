package data

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"iter"
	"path"
	"strconv"
	"strings"

	"steadyfit/internal/dtype"
	"steadyfit/internal/wire"
)

// tarFormat reads tar files in the layout of WebDataset. A sample is a sequence of files with one name. Their
// extensions name the values:
//
//   - .cls, .id, .index and .count have an integer.
//   - .npy has an array.
//   - .json has an object, whose members become values with their own names. Its numbers are float64.
//   - Any other file, such as .jpg or .txt, is one text with the bytes of the file.
type tarFormat struct{}

func (tarFormat) usualLabel() string { return "cls" }

const tarBlock = 512

// scan reads an archive. A record is the part of the archive that has the files of a sample.
func (tarFormat) scan(f io.Reader, _ int64, each func(offset int64, sum uint32, raw []byte) error) error {
	var read bytes.Buffer // the archive from byte start
	start, key := int64(0), ""
	files := tar.NewReader(io.TeeReader(f, &read))
	for {
		at := (start + int64(read.Len()) + tarBlock - 1) / tarBlock * tarBlock
		file, err := files.Next()
		if tail := read.Bytes(); err == io.EOF && len(bytes.Trim(tail[max(0, len(tail)-tarBlock):], "\x00")) > 0 {
			err = io.ErrUnexpectedEOF // an archive ends with zeros
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("the archive near byte %d: %w", at, corrupt(err))
		}
		name := key // a folder does not end a record
		if err == io.EOF {
			name = ""
		} else if n, _, ok := tarName(file); ok {
			name = n
		}
		if name != key {
			if raw := read.Next(int(at - start)); key != "" {
				if err := each(start, wire.Checksum(raw), raw); err != nil {
					return err
				}
			}
			start, key = at, name
		}
		if err == io.EOF {
			return nil
		}
		if file.Size > maxRecord-int64(read.Len()) {
			return recordError(fmt.Sprintf("more than %d bytes with the file %s at byte %d", maxRecord, quote(file.Name), at),
				"a smaller sample", "write smaller samples")
		}
		if _, err := io.Copy(io.Discard, files); err != nil {
			return fmt.Errorf("the archive near byte %d: %w", at, corrupt(err))
		}
	}
}

// tarName returns the name without extensions (the key of a sample) and the extensions of a file. ok is false
// for entries that are not values, such as folders and hidden files.
func tarName(file *tar.Header) (key, ext string, ok bool) {
	dir, base := path.Split(strings.TrimPrefix(file.Name, "./"))
	name, ext, found := strings.Cut(base, ".")
	return dir + name, strings.ToLower(ext),
		found && name != "" && ext != "" && file.Typeflag == tar.TypeReg && !strings.HasPrefix(base, "__")
}

func (tarFormat) values(raw []byte, err *error) iter.Seq2[string, value] {
	return func(yield func(string, value) bool) {
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
				if more := jsonValues(content, err, yield); !more {
					return
				}
			} else if !yield(ext, tarValue(ext, content)) {
				return
			}
		}
	}
}

// tarValue returns the value of a file.
func tarValue(ext string, content []byte) value {
	switch path.Ext("." + ext)[1:] {
	case "cls", "id", "index", "count":
		v := value{kind: dtype.For[int64](), count: 1}
		n, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
		if v.decoded = (vec[int64]{n}); err != nil {
			v.err = &RowError{Unit: "record", Column: strconv.Quote(ext), Found: quote(string(content)),
				Expected: "an integer", Fix: "write text to a file .txt", Err: ErrFormat}
		}
		return v
	case "npy":
		var values vector
		a, err := readNPY(bytes.NewReader(content), int64(len(content)))
		if err == nil {
			values, err = arrayVector(a)
		}
		if err != nil {
			return value{err: fmt.Errorf("file .npy: %w", err)}
		}
		return value{kind: values.kind(), dims: a.Shape, count: values.len(), decoded: values}
	}
	return value{kind: dtype.For[string](), count: 1, raw: content}
}

// jsonValues yields the values of an object, and reports whether yield wants more.
func jsonValues(content []byte, err *error, yield func(string, value) bool) (more bool) {
	j := &jsonRows{line: 1}
	if *err = j.read(content); *err != nil {
		return false
	}
	for _, name := range j.inLine {
		c, err := readValue(j.values[name])
		v := jsonValue(c)
		v.err = cmp.Or(err, v.err)
		if row, ok := v.err.(*RowError); ok {
			row.Column = strconv.Quote(name)
		}
		if !yield(name, v) {
			return false
		}
	}
	return true
}

// jsonValue converts a value of a JSON object. Numbers become float64, since the same key may have a whole
// number in one object and a fraction in another.
func jsonValue(c cell) value {
	items := c.items
	if c.kind != listCell {
		items = []scalar{c.scalar}
	}
	var texts vec[string]
	var bools vec[bool]
	var numbers vec[float64]
	var whole vec[int64]
	for _, item := range items {
		switch item.kind {
		case textCell:
			texts = append(texts, item.text)
		case boolCell:
			bools = append(bools, item.text == "true")
		case numberCell:
			n, err := strconv.ParseFloat(item.text, 64)
			if err != nil {
				return value{err: wrongCell(quote(item.text), "a number within float64", lineFix)}
			}
			numbers = append(numbers, n)
			if n, ok := wholeNumber(item.text); ok {
				whole = append(whole, n)
			}
		}
	}
	for _, v := range []vector{texts, bools, numbers} {
		if n := v.len(); n > 0 && n == len(items) {
			return value{kind: v.kind(), dims: c.shape, count: n, decoded: v, whole: whole}
		}
	}
	return value{err: wrongCell("null, or values of several types", someValues, lineFix)}
}
