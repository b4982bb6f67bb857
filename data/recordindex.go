package data

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"math"
	"os"
	"sync"

	"steadyfit/internal/dtype"
	"steadyfit/internal/wire"
)

// record locates a record in its file. sum is the CRC32C of its bytes.
type record struct {
	offset int64
	length uint32
	sum    uint32
}

// recordAt returns the index entry of a record.
func recordAt(offset int64, raw []byte) record {
	return record{offset, uint32(len(raw)), wire.Checksum(raw)}
}

const (
	// entryBytes is the size of a record in a row of an index.
	entryBytes = 16
	// indexInMemory is the maximum size of the rows of an index in memory. Larger indexes are in a
	// file.
	indexInMemory = 1 << 20
)

func appendEntry(row []byte, r record) []byte {
	row = binary.LittleEndian.AppendUint64(row, uint64(r.offset))
	row = binary.LittleEndian.AppendUint32(row, r.length)
	return binary.LittleEndian.AppendUint32(row, r.sum)
}

func entryOf(row []byte) record {
	return record{int64(binary.LittleEndian.Uint64(row)), binary.LittleEndian.Uint32(row[8:]), binary.LittleEndian.Uint32(row[12:])}
}

// recordIndex has a row for each record: its place, length and checksum, and its label if labels are
// stored. The rows of a large index are in a file and are read when they are needed, so memory does not
// grow with the number of records.
type recordIndex struct {
	n, width int // rows, and bytes of a row
	rows     io.ReaderAt
	// digest is the SHA-256 of the lengths and checksums of all records.
	digest []byte
	// texts are the labels that are text, in the order of their first record.
	texts []string
	// observed are the extremes of each field of the recordSet.
	observed []observed

	buffers sync.Pool
}

// indexWriter makes an index.
type indexWriter struct {
	create func() (*os.File, error)
	file   *os.File // nil while the index is small
	rows   []byte   // rows that are not in the file
	n      int
	width  int
	digest hash.Hash
}

func (w *indexWriter) add(r record, label []byte) error {
	from := len(w.rows)
	w.rows = append(appendEntry(w.rows, r), label...)
	if w.digest == nil {
		w.digest = sha256.New()
	}
	w.digest.Write(w.rows[from+8 : from+entryBytes])
	w.n, w.width = w.n+1, len(w.rows)-from
	if len(w.rows) < indexInMemory {
		return nil
	}
	return w.flush()
}

func (w *indexWriter) flush() (err error) {
	if w.file == nil {
		if w.file, err = w.create(); err != nil {
			return err
		}
	}
	if _, err = w.file.Write(w.rows); err != nil {
		return scratchError(err)
	}
	w.rows = w.rows[:0]
	return nil
}

// index returns the index of the rows that were added.
func (w *indexWriter) index() (*recordIndex, error) {
	x := &recordIndex{n: w.n, width: w.width, digest: w.digest.Sum(nil), rows: bytes.NewReader(w.rows)}
	if w.file == nil {
		return x, nil
	}
	x.rows = w.file
	err := w.flush()
	w.rows = nil
	return x, err
}

// heapBytes returns the size of the rows in memory.
func (x *recordIndex) heapBytes() int64 {
	if rows, ok := x.rows.(*bytes.Reader); ok {
		return rows.Size()
	}
	return 0
}

// read fills b with bytes of the rows, starting at byte number at of the given row.
func (x *recordIndex) read(b []byte, row, at int) error {
	if _, err := x.rows.ReadAt(b, int64(row)*int64(x.width)+int64(at)); err != nil {
		return fmt.Errorf("the index of the records: %w", readError(err))
	}
	return nil
}

// blocks calls do for the rows from ... to-1, in blocks that begin with a row.
func (x *recordIndex) blocks(from, to int, do func(row int, raw []byte) error) error {
	const most = 256 << 10
	buffer, ok := x.buffers.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	defer x.buffers.Put(buffer)
	for from < to {
		n := min(to-from, most/x.width)
		if cap(*buffer) < n*x.width {
			*buffer = make([]byte, n*x.width)
		}
		raw := (*buffer)[:n*x.width]
		if err := x.read(raw, from, 0); err != nil {
			return err
		}
		if err := do(from, raw); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// each calls do for the rows from ... to-1.
func (x *recordIndex) each(from, to int, do func(row int, raw []byte) error) error {
	return x.blocks(from, to, func(row int, raw []byte) error {
		for ; len(raw) > 0; row, raw = row+1, raw[x.width:] {
			if err := do(row, raw[:x.width]); err != nil {
				return err
			}
		}
		return nil
	})
}

// indexedLabels are the labels in an index. The field from is the type in which they are stored. The
// field of is the type of the label: the same one, or int64 for texts and for numbers that are all
// integers.
type indexedLabels struct {
	index   *recordIndex
	from    *dtype.Type
	of      *dtype.Type
	numbers []int64 // the class numbers of the texts; nil for labels that are numbers
	extent  observed
}

// textID is the type of the number of a text in an index.
var textID = dtype.For[uint32]()

func (l *indexedLabels) len() int { return l.index.n }

func (l *indexedLabels) kind() *dtype.Type { return l.of }

func (l *indexedLabels) copyTo(dst vector, at, from, to int) error {
	return l.index.each(from, to, func(row int, raw []byte) error {
		l.put(dst, at+row-from, raw[entryBytes:])
		return nil
	})
}

func (l *indexedLabels) gatherTo(dst vector, at int, rows []uint32, _ int) error {
	var room [8]byte
	raw := room[:l.index.width-entryBytes]
	for i, row := range rows {
		if err := l.index.read(raw, int(row), entryBytes); err != nil {
			return err
		}
		l.put(dst, at+i, raw)
	}
	return nil
}

// put writes a stored label to dst[at].
func (l *indexedLabels) put(dst vector, at int, raw []byte) {
	switch {
	case l.numbers != nil:
		dst.(vec[int64])[at] = l.numbers[binary.LittleEndian.Uint32(raw)]
	case l.from != l.of:
		dst.(vec[int64])[at] = int64(math.Float64frombits(binary.LittleEndian.Uint64(raw)))
	default:
		to := bytesOf(dst, at, at+1)
		copy(to, raw)
		reorder(to, l.of.Size, binary.LittleEndian)
	}
}

// observed has the extremes of the values of a field. Check uses them instead of reading the values.
type observed struct {
	// Known is false for a field without numbers, and for a field whose values were not observed.
	Known bool `json:"known,omitempty"`
	// Finite reports whether no value is NaN or infinite. Magnitude is the largest magnitude of the
	// finite values.
	Finite    bool    `json:"finite,omitempty"`
	Magnitude float64 `json:"magnitude,omitempty"`
	// Whole reports whether all values are integers, as defined by dtype.Type.Int; Low and High are
	// their extremes.
	Whole bool  `json:"whole,omitempty"`
	Low   int64 `json:"low,omitempty"`
	High  int64 `json:"high,omitempty"`
}

var unobserved = observed{Known: true, Finite: true, Whole: true, Low: math.MaxInt64, High: math.MinInt64}

// within reports whether all values are known to be integers from low to high.
func (o observed) within(low, high int64) bool {
	return o.Known && o.Whole && low <= o.Low && o.High <= high
}

// below reports whether all values are known to be finite and to have magnitudes below limit.
func (o observed) below(limit float64) bool { return o.Known && o.Finite && o.Magnitude < limit }

// add includes the values of v in the extremes.
func (o *observed) add(v vector) {
	switch v := v.(type) {
	case vec[float32]:
		observeFloats(o, v)
	case vec[float64]:
		observeFloats(o, v)
	case vec[string]:
		o.Known = false
	default:
		kind := v.kind()
		for i := range v.len() {
			n, ok := kind.Int(v.element(i))
			o.Whole = o.Whole && ok
			o.Low, o.High = min(o.Low, n), max(o.High, n)
		}
	}
}

func observeFloats[T float32 | float64](o *observed, values []T) {
	for _, v := range values {
		f := float64(v)
		if f-f != 0 {
			o.Finite, o.Whole = false, false
			continue
		}
		magnitude := math.Abs(f)
		o.Magnitude = max(o.Magnitude, magnitude)
		if !o.Whole {
			continue
		}
		n := int64(f)
		if o.Whole = magnitude < 1<<53 && float64(n) == f; o.Whole {
			o.Low, o.High = min(o.Low, n), max(o.High, n)
		}
	}
}

// observedOf returns the extremes of a field that is read from records, or the bounds of pixels for
// images. For other fields the result is the zero value.
func observedOf(ds Dataset, field string) observed {
	m, ok := inMemory(ds)
	if !ok {
		return observed{}
	}
	c, _ := m.column(field)
	if c.pixels {
		return observed{Known: true, Finite: true, Magnitude: math.MaxUint8, High: math.MaxUint8}
	}
	switch made := c.made.(type) {
	case *recordField:
		return made.set.index.observed[made.index]
	case *joined:
		return made.observed()
	}
	if labels, ok := c.values.(*indexedLabels); ok {
		return labels.extent
	}
	return observed{}
}
