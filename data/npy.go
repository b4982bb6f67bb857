package data

import (
	"archive/zip"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// A .npy file consists of a magic string, a version, a header length, a header that is a Python dict literal, and the
// values. github.com/sbinet/npyio is only for trusted files: it allocates any size that a shape states, accepts
// truncated files, and panics on a header without a newline. The tests compare both readers on valid files.

const npyMagic = "\x93NUMPY"

// maxHeader limits the length of a header. Headers with supported types have about 100 bytes.
const maxHeader = 64 << 10

type array struct {
	shape  []int
	values origin
}

func openOneNPY(path string, o Options) (*InMemory, error) {
	if strings.EqualFold(filepath.Base(path), "x.npy") {
		y := filepath.Join(filepath.Dir(path), "y.npy")
		if _, err := os.Stat(y); err == nil {
			return openNPY(path+" + "+y, []string{path, y}, o)
		}
	}
	m := &InMemory{name: path}
	return m.opened(m.openArray("x", path, o.OnDisk))
}

// openNPY reads one array per file, into a field with the name of the file.
func openNPY(name string, paths []string, o Options) (*InMemory, error) {
	var names []string
	for _, path := range paths {
		names = append(names, strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
	}
	m := &InMemory{name: name}
	return m.opened(m.addParts(names, o, func(i int, field string) error {
		return m.openArray(field, paths[i], o.OnDisk)
	}))
}

// addParts adds the arrays of a part. add adds array i with the name of a field.
func (m *InMemory) addParts(names []string, o Options, add func(i int, field string) error) error {
	chosen, err := parts(m.name, o.part(), names)
	if err != nil {
		return err
	}
	found := problems{source: m.name}
	for i, name := range names {
		field := chosen[name]
		if slices.Contains(o.Ignore, field) {
			m.out = append(m.out, field)
			continue
		}
		if field == "" {
			continue
		}
		if err := add(i, field); err != nil && (!found.add(err) || errors.Is(err, ErrTooLarge)) {
			break
		}
	}
	return found.err()
}

func (m *InMemory) opened(err error) (*InMemory, error) {
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *InMemory) openArray(field, path string, onDisk bool) error {
	f, size, err := openFile(path)
	if err != nil {
		return err
	}
	if onDisk {
		stays := newDiskFile(path, f)
		a, ok, err := stays.array(0, size)
		if ok {
			m.files = append(m.files, stays)
			return m.add(field, a, path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, errors.Join(err, f.Close()))
		}
	}
	defer f.Close()
	a, err := readNPY(f, size)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return m.addArray(field, a, path)
}

// openNPZ reads an archive written by numpy.savez or savez_compressed. Each array is a field with
// the name of the array. If all names end in _train or _test, Options.Split selects the part.
func openNPZ(path string, o Options) (*InMemory, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	if o.OnDisk {
		return readNPZ(path, f, size, o, newDiskFile(path, f))
	}
	defer f.Close()
	return readNPZ(path, f, size, o, nil)
}

// readNPZ reads an archive of size bytes. If stays is not nil, uncompressed arrays stay in that file,
// which the dataset then owns.
func readNPZ(name string, r io.ReaderAt, size int64, o Options, stays *diskFile) (*InMemory, error) {
	m := &InMemory{name: name}
	if stays != nil {
		m.files = []io.Closer{stays}
	}
	return m.opened(m.readMembers(r, size, o, stays))
}

func (m *InMemory) readMembers(r io.ReaderAt, size int64, o Options, stays *diskFile) error {
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return fmt.Errorf("%s is not a .npz file, which is a zip archive (truncated, or another format?): %w: %w", m.name,
			err, ErrFormat)
	}
	var names []string
	for _, f := range archive.File {
		field, ok := strings.CutSuffix(f.Name, ".npy")
		if !ok {
			return fmt.Errorf("%s: %q in the archive is not a .npy file: %w", m.name, f.Name, ErrFormat)
		}
		names = append(names, field)
	}
	if len(names) == 0 {
		return fmt.Errorf("%s: the archive is empty: %w", m.name, ErrFormat)
	}
	return m.addParts(names, o, func(i int, field string) error {
		a, err := readMember(archive.File[i], r, size, stays)
		if err != nil {
			return fmt.Errorf("%s: array %q: %w", m.name, names[i], err)
		}
		return m.add(field, a, m.name)
	})
}

func readMember(f *zip.File, r io.ReaderAt, size int64, stays *diskFile) (array, error) {
	if stays != nil && f.Method == zip.Store && f.CompressedSize64 == f.UncompressedSize64 {
		offset, err := f.DataOffset()
		if err != nil {
			return array{}, corrupt(err)
		}
		length := int64(f.UncompressedSize64)
		if offset < 0 || length < 0 || length > size-offset {
			return array{}, fmt.Errorf("%d bytes from byte %d on exceed the %d bytes of the archive: %w", length, offset, size,
				ErrFormat)
		}
		if a, ok, err := stays.array(offset, length); ok || err != nil {
			return a, err
		}
	}
	member, err := f.Open()
	if err != nil {
		return array{}, corrupt(err)
	}
	defer member.Close()
	a, err := readNPY(member, int64(min(f.UncompressedSize64, math.MaxInt64)))
	if err != nil {
		return array{}, err
	}
	v, err := arrayVector(a)
	return array{a.Shape, v}, err
}

// readNPY reads one array up to the end of r, which has size bytes.
func readNPY(r io.Reader, size int64) (Array, error) {
	h, err := readHeader(r)
	if err != nil {
		return Array{}, corrupt(err)
	}
	t, err := npyType(h.descr)
	if err != nil {
		return Array{}, err
	}
	return readArray(r, size, t, h.shape, h.fortran)
}

type npyHeader struct {
	descr   string
	fortran bool
	shape   []int
}

func readHeader(r io.Reader) (h npyHeader, err error) {
	start := make([]byte, len(npyMagic)+2)
	if n, err := io.ReadFull(r, start); err == io.EOF || err == io.ErrUnexpectedEOF {
		return h, fmt.Errorf("it has %d bytes, too few for a .npy header: %w", n, ErrFormat)
	} else if err != nil {
		return h, err
	}
	if start[0] == 0x80 {
		return h, fmt.Errorf("a Python pickle, which is %w: reading one runs the code in it; save arrays with numpy.save",
			ErrUnsupported)
	}
	if string(start[:len(npyMagic)]) != npyMagic {
		return h, fmt.Errorf("not a .npy file: it starts with %q: %w", start[:len(npyMagic)], ErrFormat)
	}
	length := make([]byte, 4)
	switch major := start[len(npyMagic)]; major {
	case 1:
		_, err = io.ReadFull(r, length[:2])
	case 2, 3:
		_, err = io.ReadFull(r, length)
	default:
		return h, fmt.Errorf(".npy format version %d, expected 1 to 3: %w", major, ErrFormat)
	}
	var text []byte
	if err == nil {
		n := binary.LittleEndian.Uint32(length)
		if n > maxHeader {
			return h, fmt.Errorf("a header of %d bytes, expected at most %d: %w", n, maxHeader, ErrFormat)
		}
		text = make([]byte, n)
		_, err = io.ReadFull(r, text)
	}
	if err != nil {
		return h, fmt.Errorf("truncated in the header: %w: %w", err, ErrFormat)
	}
	if h, err = parseHeader(string(text)); err != nil {
		return h, fmt.Errorf("header %s: %w", quote(string(bytes.TrimSpace(text))), err)
	}
	return h, nil
}

// The parts of a header, which is a Python dict literal.
var (
	headerText  = regexp.MustCompile(`^\s*\{.*\}\s*$`)
	descrText   = regexp.MustCompile(`['"]descr['"]\s*:\s*(?:'([^']*)'|"([^"]*)"|(\[.*\]))`)
	fortranText = regexp.MustCompile(`['"]fortran_order['"]\s*:\s*(True|False)\b`)
	shapeText   = regexp.MustCompile(`['"]shape['"]\s*:\s*\(([^()]*)\)`)
)

func parseHeader(text string) (h npyHeader, err error) {
	descr, fortran := descrText.FindStringSubmatch(text), fortranText.FindStringSubmatch(text)
	shape := shapeText.FindStringSubmatch(text)
	if !headerText.MatchString(text) || descr == nil || fortran == nil || shape == nil {
		return h, fmt.Errorf("expected a dict with descr, fortran_order and shape: %w", ErrFormat)
	}
	h = npyHeader{descr: cmp.Or(descr[1:]...), fortran: fortran[1] == "True", shape: []int{}}
	sizes := strings.Split(strings.TrimSuffix(strings.TrimSpace(shape[1]), ","), ",")
	if len(sizes) > maxDepth {
		return h, fmt.Errorf("more than %d dimensions: %w", maxDepth, ErrFormat)
	}
	for _, size := range sizes {
		if size == "" && len(sizes) == 1 { // a single value
			break
		}
		n, err := strconv.Atoi(strings.TrimSpace(size))
		if err != nil || n < 0 {
			return h, fmt.Errorf("expected a size within the address space of this machine, found %s: %w", quote(size),
				ErrFormat)
		}
		h.shape = append(h.shape, n)
	}
	return h, nil
}

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
	what := map[bool]string{true: " (Python objects)"}[strings.HasPrefix(code, "O")]
	return fileType{}, option.Errorf("elements of type %q%s: %w; convert them to numbers, as with x.astype(\"float32\"), "+
		"or to text of fixed width, as with x.astype(str), or leave the array out ({Options.Ignore})", descr, what,
		ErrUnsupported)
}

func textWidth(code string) (int, bool) {
	const most = 16 << 20 // bytes, as for the row of a table
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

func readText(r io.Reader, t fileType, count int) (vector, error) {
	one := make([]byte, t.size)
	var text []byte
	var out vec[string]
	for range count {
		if _, err := io.ReadFull(r, one); err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil, fmt.Errorf("truncated: the header states %d elements, the file has %d: %w", count, len(out), ErrFormat)
		} else if err != nil {
			return nil, err
		}
		text = append(text[:0], one...)
		if t.utf32 {
			text = text[:0]
			for at := 0; at < t.size; at += 4 {
				c := rune(t.order.Uint32(one[at:]))
				if !utf8.ValidRune(c) {
					return nil, fmt.Errorf("element %d has %#x, which is not a character: %w", len(out), uint32(c), ErrFormat)
				}
				text = utf8.AppendRune(text, c)
			}
		}
		out = append(out, string(bytes.TrimRight(text, "\x00")))
	}
	return out, nil
}
