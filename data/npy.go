package data

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/dtype"
)

// The .npy format is NumPy's: a magic string, a version, the length of a header
// that is a Python dict literal, and the values. The reader is our own because
// a header is not to be trusted: github.com/sbinet/npyio allocates whatever a
// shape claims, reads a file that was cut off without complaint and panics on a
// header without a newline. The tests use it as a second opinion on sound files.

const npyMagic = "\x93NUMPY"

// maxHeader bounds a header, which is some 100 bytes for the types read here.
const maxHeader = 64 << 10

// OpenNPZ reads an archive written by numpy.savez or savez_compressed. Its
// arrays keep their names, which by convention are x and y; of an archive with
// x_train, y_train, x_test and y_test the training part is read (see Options).
//
// Arrays of floats of 4 or 8 bytes, integers, bools and text of a fixed width are read, in
// either byte order and in C or Fortran order. Text is the field's bytes (|S), or UTF-8 of
// its characters (<U), without zeros behind it. Objects (which are Python pickles), dates,
// complex numbers and float16 are ErrUnsupported; anything that is not what it claims to
// be is ErrFormat.
func OpenNPZ(path string) (*InMemory, error) {
	return openNPZ(path, "", reading{})
}

// OpenNPY reads one array per file, each a field named after the file: x from
// x.npy. See OpenNPZ for the element types and errors.
func OpenNPY(paths ...string) (*InMemory, error) {
	if len(paths) == 0 {
		return nil, fmt.Errorf("no .npy file given: %w", ErrField)
	}
	name := strings.Join(paths, " + ")
	return openNPY(name, paths, "", reading{})
}

// reading is how arrays in files become fields.
type reading struct {
	limit *limit
	// mapped leaves the values in the file, where that can be.
	mapped bool
}

// array is an array of a file, or of memory.
type array struct {
	shape  []int
	values origin
}

// openOneNPY is Open for a .npy file.
func openOneNPY(path string, how reading) (*InMemory, error) {
	if strings.EqualFold(filepath.Base(path), "x.npy") {
		y := filepath.Join(filepath.Dir(path), "y.npy")
		if _, err := os.Stat(y); err == nil {
			return openNPY(path+" + "+y, []string{path, y}, "", how)
		}
	}
	m := &InMemory{name: path}
	return m.opened(m.openArray("x", path, how))
}

func openNPY(name string, paths []string, split string, how reading) (*InMemory, error) {
	byField := make(map[string]string)
	var names []string
	for _, path := range paths {
		field := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
		names = append(names, field)
		byField[field] = path
	}
	chosen, err := parts(name, split, names)
	if err != nil {
		return nil, err
	}
	m := &InMemory{name: name}
	for _, n := range names {
		if chosen[n] == "" {
			continue
		}
		if err := m.openArray(chosen[n], byField[n], how); err != nil {
			return m.opened(err)
		}
	}
	return m.opened(nil)
}

// opened is what a function that opened the fields of a dataset returns: after an
// error, nothing stays mapped.
func (m *InMemory) opened(err error) (*InMemory, error) {
	if err != nil {
		return nil, join(err, m.Close())
	}
	return m, nil
}

// openArray adds the array of a file as a field.
func (m *InMemory) openArray(field, path string, how reading) error {
	f, size, err := openFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if how.mapped {
		if done, err := m.mapArray(field, path, f, how.limit); done || err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return openError(path, err)
		}
	}
	a, err := readNPY(f, how.limit, size)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	v, err := arrayVector(a)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return m.add(field, array{a.Shape, v}, path)
}

// mapArray is openArray for values that stay in the file. done is false if they
// have to be read.
func (m *InMemory) mapArray(field, path string, f *os.File, l *limit) (done bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return false, openError(path, err)
	}
	mapped, err := openMapping(f, path, info.Size())
	if err != nil {
		return false, nil // the file is read instead
	}
	a, ok, err := mapped.array(f, 0, info.Size())
	if err == nil && ok {
		err = l.take(info.Size())
	}
	if err != nil || !ok {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
		return false, join(err, mapped.Close())
	}
	m.mappings = append(m.mappings, mapped)
	return true, m.add(field, a, path)
}

func openNPZ(path, split string, how reading) (*InMemory, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var mapped *mapping
	if how.mapped {
		// Where this fails, the file is read.
		mapped, _ = openMapping(f, path, size)
	}
	return readNPZ(path, f, size, split, how.limit, mapped)
}

// readNPZ reads an archive of size bytes. Members that are not compressed stay in
// the mapping of the archive, of which the dataset takes ownership, if there is one.
func readNPZ(name string, r io.ReaderAt, size int64, split string, l *limit, mapped *mapping) (*InMemory, error) {
	m := &InMemory{name: name}
	if mapped != nil {
		m.mappings = []*mapping{mapped}
	}
	kept, err := m.readMembers(r, size, split, l, mapped)
	if err == nil && !kept {
		err = m.Close()
		m.mappings = nil
	}
	return m.opened(err)
}

// maxArrays is the most arrays of an archive.
const maxArrays = 1024

// readMembers adds the arrays of an archive as fields. kept is true if any of them
// stays in the mapping.
func (m *InMemory) readMembers(r io.ReaderAt, size int64, split string, l *limit, mapped *mapping) (kept bool, err error) {
	name := m.name
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return false, fmt.Errorf("%s is not a .npz file, which is a zip archive (cut off, or another format?): %w: %w", name, err, ErrFormat)
	}
	if len(archive.File) > maxArrays {
		return false, fmt.Errorf("%s: the archive has %d arrays; expected at most %d, one for each input: %w", name, len(archive.File), maxArrays, ErrFormat)
	}
	var names []string
	for _, f := range archive.File {
		field, ok := strings.CutSuffix(f.Name, ".npy")
		if !ok {
			return false, fmt.Errorf("%s: %q in the archive is not a .npy file: %w", name, f.Name, ErrFormat)
		}
		if slices.Contains(names, field) {
			return false, fmt.Errorf("%s: %q is in the archive twice: %w", name, f.Name, ErrFormat)
		}
		names = append(names, field)
	}
	if len(names) == 0 {
		return false, fmt.Errorf("%s: the archive is empty: %w", name, ErrFormat)
	}
	chosen, err := parts(name, split, names)
	if err != nil {
		return false, err
	}
	if err := plausible(archive, size); err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	for i, f := range archive.File {
		if chosen[names[i]] == "" {
			continue
		}
		a, inMapping, err := readMember(f, r, size, l, mapped)
		if err != nil {
			return false, fmt.Errorf("%s: array %q: %w", name, names[i], err)
		}
		kept = kept || inMapping
		if err := m.add(chosen[names[i]], a, name); err != nil {
			return false, err
		}
	}
	return kept, nil
}

// plausible refuses an archive that claims to hold more than deflate can put
// into its size, which is 1032 times as much: its members overlap, or lie.
func plausible(archive *zip.Reader, size int64) error {
	const ratio = 1032
	var total uint64
	for _, f := range archive.File {
		if total += f.UncompressedSize64; f.UncompressedSize64 > 1<<62 || total > uint64(size)*ratio {
			return fmt.Errorf("the archive claims to hold more than fits into its %d bytes: %w", size, ErrFormat)
		}
	}
	return nil
}

// readMember reads an array of an archive; r reads the archive. inMapping is true
// if its values stay there.
func readMember(f *zip.File, r io.ReaderAt, size int64, l *limit, mapped *mapping) (a array, inMapping bool, err error) {
	if mapped != nil && f.Method == zip.Store && f.CompressedSize64 == f.UncompressedSize64 {
		offset, err := f.DataOffset()
		if err != nil {
			return array{}, false, corrupt(err)
		}
		length := int64(f.UncompressedSize64) // at most 2^62, see plausible
		if offset < 0 || length > size-offset {
			return array{}, false, fmt.Errorf("%d bytes from byte %d on, where the archive has %d: %w", length, offset, size, ErrFormat)
		}
		a, ok, err := mapped.array(r, offset, length)
		if err == nil && ok {
			err = l.take(length)
		}
		if err != nil || ok {
			return a, ok, err
		}
	}
	if _, err := l.expect(int(f.UncompressedSize64), 1, 1, 0); err != nil {
		return array{}, false, err
	}
	member, err := f.Open()
	if err != nil {
		return array{}, false, corrupt(err)
	}
	defer member.Close()
	read, err := readNPY(member, l, min(int64(f.UncompressedSize64), usualRatio*size))
	if err != nil {
		return array{}, false, err
	}
	v, err := arrayVector(read)
	return array{read.Shape, v}, false, err
}

// readNPY reads one array to the end of r, which likely holds so many bytes.
func readNPY(r io.Reader, l *limit, likely int64) (Array, error) {
	r = l.reader(r)
	h, err := readHeader(r)
	if err != nil {
		return Array{}, corrupt(err)
	}
	t, err := npyType(h.descr)
	if err != nil {
		return Array{}, err
	}
	return readArray(r, l, t, h.shape, h.fortran, likely)
}

type npyHeader struct {
	descr   string
	fortran bool
	shape   []int
}

func readHeader(r io.Reader) (npyHeader, error) {
	start := make([]byte, len(npyMagic)+2)
	if n, err := io.ReadFull(r, start); err == io.EOF || err == io.ErrUnexpectedEOF {
		return npyHeader{}, fmt.Errorf("only %d bytes, too few for a .npy header: %w", n, ErrFormat)
	} else if err != nil {
		return npyHeader{}, err
	}
	if start[0] == 0x80 {
		return npyHeader{}, fmt.Errorf("a Python pickle, which %w: reading one runs the code in it; save arrays with numpy.save", ErrUnsupported)
	}
	if string(start[:len(npyMagic)]) != npyMagic {
		return npyHeader{}, fmt.Errorf("not a .npy file: it starts with %q: %w", start[:len(npyMagic)], ErrFormat)
	}
	var length uint32
	switch major := start[len(npyMagic)]; major {
	case 1:
		var short uint16
		if err := binary.Read(r, binary.LittleEndian, &short); err != nil {
			return npyHeader{}, fmt.Errorf("cut off in the header: %w: %w", err, ErrFormat)
		}
		length = uint32(short)
	case 2, 3:
		if err := binary.Read(r, binary.LittleEndian, &length); err != nil {
			return npyHeader{}, fmt.Errorf("cut off in the header: %w: %w", err, ErrFormat)
		}
	default:
		return npyHeader{}, fmt.Errorf(".npy format version %d, where 1 to 3 exist: %w", major, ErrFormat)
	}
	if length > maxHeader {
		return npyHeader{}, fmt.Errorf("a header of %d bytes, where %d is more than enough: %w", length, maxHeader, ErrFormat)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return npyHeader{}, fmt.Errorf("cut off in the header: %w: %w", err, ErrFormat)
	}
	p := literal{text: string(text)}
	h := p.dict()
	if p.err != nil {
		return npyHeader{}, fmt.Errorf("header %s: %w", quote(string(bytes.TrimSpace(text))), p.err)
	}
	return h, nil
}

// npyType returns the element type and byte order of a descr.
func npyType(descr string) (fileType, error) {
	var order binary.ByteOrder = binary.LittleEndian
	code := descr
	if code != "" && strings.ContainsRune("<>|=", rune(code[0])) {
		if code[0] == '>' {
			order = binary.BigEndian
		}
		code = code[1:]
	}
	if t := dtype.ByNumPy(code); t != nil {
		return fileType{kind: t, size: t.Size, order: order}, nil
	}
	if width, ok := textWidth(code); ok {
		return fileType{kind: dtype.For[string](), size: width, order: order, utf32: code[0] == 'U'}, nil
	}
	what, fix := "elements of type", "convert it with x.astype(\"float32\")"
	if code != "" {
		switch code[0] {
		case 'O':
			what, fix = "Python objects, stored as a pickle, of type", "give all samples one shape and a number type, or convert text with x.astype(str), then save again"
		case 'U', 'S', 'a':
			what, fix = "text of type", "give it a width from 1 to 4,194,304"
		case 'V', '[':
			what, fix = "records of type", "save one array per column"
		case 'M', 'm':
			what, fix = "dates or times of type", "convert them to numbers"
		case 'c':
			what, fix = "complex numbers of type", "save the real and imaginary part as two arrays"
		case 'f':
			what = "floats of type"
		}
	}
	return fileType{}, fmt.Errorf("%s %q: %w; %s", what, descr, ErrUnsupported, fix)
}

// textWidth is the size in bytes of an element of text.
func textWidth(code string) (int, bool) {
	const most = 16 << 20 // bytes, as of a row of a table
	if code == "" || !strings.ContainsRune("USa", rune(code[0])) {
		return 0, false
	}
	width, err := strconv.Atoi(code[1:])
	if err != nil || width < 1 || width > most/4 {
		return 0, false
	}
	if code[0] == 'U' {
		width *= 4
	}
	return width, true
}

// readText reads text of a fixed width, without the zeros behind it.
func readText(r io.Reader, l *limit, t fileType, count int, _ int64) (vector, error) {
	one := make([]byte, t.size)
	var text []byte
	var out vec[string]
	for range count {
		if _, err := io.ReadFull(r, one); err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, fmt.Errorf("truncated: the header promises %d elements, the file has %d: %w", count, len(out), ErrFormat)
		} else if err != nil {
			return nil, err
		}
		if err := l.take(int64(t.kind.Size)); err != nil {
			return nil, err
		}
		text = append(text[:0], one...)
		if t.utf32 {
			text = text[:0]
			for at := 0; at < t.size; at += 4 {
				c := rune(t.order.Uint32(one[at:]))
				if !utf8.ValidRune(c) {
					return nil, fmt.Errorf("element %d has %#x, which is no character: %w", len(out), uint32(c), ErrFormat)
				}
				text = utf8.AppendRune(text, c)
			}
		}
		out = append(out, string(bytes.TrimRight(text, "\x00")))
	}
	return out, nil
}

// literal parses the Python dict of a header. After an error it yields zeros.
type literal struct {
	text string
	pos  int
	err  error
}

func (p *literal) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("at byte %d: %s: %w", p.pos, fmt.Sprintf(format, args...), ErrFormat)
	}
}

// peek is the next byte that is not a space; 0 at the end or after an error.
func (p *literal) peek() byte {
	for p.err == nil && p.pos < len(p.text) {
		if c := p.text[p.pos]; c != ' ' && c != '\n' {
			return c
		}
		p.pos++
	}
	return 0
}

func (p *literal) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.pos++
	return true
}

func (p *literal) need(c byte) {
	if !p.take(c) {
		p.fail("expected %q", c)
	}
}

func (p *literal) dict() npyHeader {
	var h npyHeader
	seen := make(map[string]bool)
	p.need('{')
	for p.err == nil && !p.take('}') {
		key := p.str()
		if seen[key] {
			p.fail("%q is there twice", key)
		}
		seen[key] = true
		p.need(':')
		switch key {
		case "descr":
			h.descr = p.descr()
		case "fortran_order":
			h.fortran = p.boolean()
		case "shape":
			h.shape = p.tuple()
		default:
			p.fail("unknown key %q", key)
		}
		if !p.take(',') && p.peek() != '}' {
			p.fail("expected ',' or '}'")
		}
	}
	if p.peek() != 0 {
		p.fail("more text after the header")
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			p.fail("no %q", key)
		}
	}
	return h
}

func (p *literal) str() string {
	quote := p.peek()
	if quote != '\'' && quote != '"' {
		p.fail("expected a string")
		return ""
	}
	p.pos++
	n := strings.IndexByte(p.text[p.pos:], quote)
	if n < 0 {
		p.fail("a string without an end")
		return ""
	}
	s := p.text[p.pos : p.pos+n]
	p.pos += n + 1
	return s
}

// descr is a string, or a list for records, which are refused later by name.
func (p *literal) descr() string {
	if p.peek() != '[' {
		return p.str()
	}
	n := strings.LastIndexByte(p.text[p.pos:], ']')
	if n < 0 {
		p.fail("a list without an end")
		return ""
	}
	s := p.text[p.pos : p.pos+n+1]
	p.pos += n + 1
	return s
}

func (p *literal) boolean() bool {
	p.peek()
	for word, value := range map[string]bool{"True": true, "False": false} {
		if strings.HasPrefix(p.text[p.pos:], word) {
			p.pos += len(word)
			return value
		}
	}
	p.fail("expected True or False")
	return false
}

func (p *literal) tuple() []int {
	const maxDims = 64 // NumPy's own limit
	shape := []int{}
	p.need('(')
	for p.err == nil && !p.take(')') {
		shape = append(shape, p.number())
		p.take('L') // Python 2 wrote its long integers so
		if len(shape) > maxDims {
			p.fail("more than %d dimensions", maxDims)
		}
		if !p.take(',') && p.peek() != ')' {
			p.fail("expected ',' or ')'")
		}
	}
	return shape
}

func (p *literal) number() int {
	p.peek()
	from := p.pos
	for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
		p.pos++
	}
	n, err := strconv.Atoi(p.text[from:p.pos])
	if err != nil {
		p.fail("expected a size that this machine can address, found %s", quote(p.text[from:]))
	}
	return n
}

// WriteNPY writes an array as numpy.save does, in C order and little-endian.
// Strings are ErrUnsupported: NumPy would store them at a fixed width.
func WriteNPY(w io.Writer, a Array) error {
	v, err := arrayVector(a)
	if err != nil {
		return err
	}
	if err := writeNPYHeader(w, v, a.Shape); err != nil {
		return err
	}
	return writeNumbers(w, v)
}

func writeNPYHeader(w io.Writer, v vector, dims []int) error {
	code := v.kind().NumPy
	if code == "" {
		return fmt.Errorf("a .npy file of type %s: %w", v.kind().Name, ErrUnsupported)
	}
	mark := "<"
	if v.kind().Size == 1 {
		mark = "|"
	}
	shape := make([]string, len(dims))
	for i, d := range dims {
		shape[i] = strconv.Itoa(d)
	}
	tuple := strings.Join(shape, ", ")
	if len(shape) == 1 {
		tuple += ","
	}
	header := fmt.Sprintf("{'descr': '%s%s', 'fortran_order': False, 'shape': (%s), }", mark, code, tuple)
	// The values start at a multiple of 64 bytes, so that they can be mapped.
	const before = len(npyMagic) + 2 + 2
	header += strings.Repeat(" ", 63-(before+len(header))%64) + "\n"
	start := binary.LittleEndian.AppendUint16([]byte(npyMagic+"\x01\x00"), uint16(len(header)))
	_, err := w.Write(append(start, header...))
	return err
}
