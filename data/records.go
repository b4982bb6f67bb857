package data

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"steadyfit/data/internal/fault"
	"steadyfit/data/internal/image"
	"steadyfit/internal/dtype"
	"steadyfit/internal/wire"
)

// recordFormat is a format of files that hold one sample after the other.
type recordFormat interface {
	// usualLabel returns a second usual name of labels, besides "label"; it may be empty.
	usualLabel() string
	// scan reads a file of size bytes, and calls each for its records, whose bytes are valid during the call.
	scan(f io.Reader, size int64, each func(offset int64, sum uint32, raw []byte) error) error
	// values iterates over the names and values of a record. It sets *err and stops if the record is damaged.
	values(raw []byte, err *error) iter.Seq2[string, value]
}

// recordSet makes samples from the records of one or several files. The files are read once when the set is
// opened, to check them and to make an index. Later, a worker reads the record of a sample when a batch needs it.
type recordSet struct {
	format  recordFormat
	files   []filePart
	open    []*os.File
	closed  atomic.Bool
	options Options
	images  *imageDecoder // nil if no value is an image

	fields  []*recordField // sorted by name
	byName  map[string]int // index in fields; -1 for a value to leave out; nil before the first record
	out     []string       // the names that are left out
	label   *recordField   // nil without a label
	labels  *tableField    // the values of a label with one value per record; nil for others
	records []record
	digest  hash.Hash // of the lengths and checksums of all records

	// The fields below are used while records are added.
	values []value // of the record that is being added
	found  problems
}

// record locates a record in its file. sum is the CRC32C of its bytes.
type record struct {
	offset int64
	length uint32
	sum    uint32
}

// onlyLater is in recordSet.byName for an ignored value that the first record lacks.
const onlyLater = -2

// recordBytes is the size of a record in the index.
const recordBytes = 16

// recordField makes the values of a column.
type recordField struct {
	fromFiles
	set   *recordSet
	name  string // in the records
	index int    // in recordSet.fields
	value value  // in the first record
	image bool   // whether the value is an image that is decoded
}

// value is a value of a record. kind is nil if the type is unknown because there are no elements.
type value struct {
	kind    *dtype.Type
	dims    []int // nil for a scalar, or a list of several elements
	count   int
	decoded vector     // nil for one text, which is in raw
	whole   vec[int64] // the elements as integers, if all of them are integers in JSON
	raw     []byte
	err     error // why the value cannot be used; no effect if the data leaves the value out
}

func (v value) shape() []int {
	if v.dims != nil || v.count == 1 {
		return v.dims
	}
	return []int{v.count}
}

// text returns the bytes of a text.
func (v value) text() []byte {
	if texts, ok := v.decoded.(vec[string]); ok {
		return []byte(texts[0])
	}
	return v.raw
}

// decode writes the elements of a value to dst, starting at index at.
func (v value) decode(dst vector, at int) error {
	if v.decoded != nil {
		return v.decoded.copyTo(dst, at, 0, v.count)
	}
	dst.(vec[string])[at] = string(v.raw)
	return nil
}

func (v value) describe() string {
	if v.kind == nil || v.count == 0 {
		return "no elements"
	}
	return describeField(v.kind.Name, v.shape())
}

// openRecords opens files of a format as one dataset.
func openRecords(name string, paths []string, format recordFormat, o Options) (*InMemory, error) {
	s := &recordSet{format: format, options: o, digest: sha256.New(), found: problems{source: name}}
	m := &InMemory{name: name, records: s, files: []io.Closer{s}}
	for _, path := range paths {
		if err := s.addFile(path); err != nil {
			if len(s.found.errs) < maxProblems { // otherwise add has added err
				s.found.add(s.failed(len(s.records), err))
			}
			break
		}
	}
	if err := s.found.err(); err != nil {
		return m.opened(err)
	}
	if len(s.records) == 0 {
		return m.opened(fmt.Errorf("%s: it has no records: %w", name, ErrFormat))
	}
	return m.opened(s.dataset(m))
}

// addFile reads a file, which stays open.
func (s *recordSet) addFile(path string) error {
	s.files = append(s.files, filePart{path, len(s.records)})
	f, size, err := openFile(path)
	if err != nil {
		return err
	}
	s.open = append(s.open, f)
	return s.format.scan(f, size, s.add)
}

// failed adds the path of the file, and to a *RowError the number of the record, to an error.
func (s *recordSet) failed(row int, err error) error {
	_, path, number := partOf(s.files, row)
	if row := (*RowError)(nil); errors.As(err, &row) {
		row.File, row.Unit, row.Row = path, "record", number
		return err
	}
	return fmt.Errorf("%s: %w", path, fault.WithoutPath(err))
}

// add adds a record. For a record that cannot be used, it keeps the problem, and returns an error
// only when there are enough problems.
func (s *recordSet) add(offset int64, sum uint32, raw []byte) error {
	if s.byName == nil {
		if err := s.start(raw); err != nil {
			return err
		}
	}
	row := len(s.records)
	found := record{offset, uint32(len(raw)), sum}
	s.records = append(s.records, found)
	head := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, found.length), sum)
	s.digest.Write(head) // never fails
	var err error
	if s.values, err = s.split(s.values, raw); err == nil && s.labels != nil {
		err = s.addLabel(s.values[s.label.index])
	}
	if wrong := (*RowError)(nil); errors.As(err, &wrong) {
		if s.found.add(s.failed(row, err)) {
			return nil
		}
	}
	return err
}

// addLabel adds the label of a record.
func (s *recordSet) addLabel(v value) error {
	one := makeVector(v.kind, 1)
	c := cell{scalar: scalar{kind: numberCell}, values: one}
	err := v.decode(one, 0)
	if text, ok := one.(vec[string]); ok {
		c = cell{scalar: scalar{textCell, text[0]}}
	}
	if err == nil {
		err = s.labels.add(c)
	}
	if row := (*RowError)(nil); errors.As(err, &row) {
		row.Column = strconv.Quote(s.label.name)
		if row.Fix == labelFix {
			row.Fix = "write numbers, or list the names of the classes in the order of their numbers ({CSVOptions.Classes})"
		}
	}
	return err
}

// start takes the names and types of the values from the first record.
func (s *recordSet) start(raw []byte) (err error) {
	first := map[string]value{}
	for name, v := range s.format.values(raw, &err) {
		if _, twice := first[name]; twice {
			return s.wrong(name, "two values with this name", "unique names, also in upper and lower case")
		}
		first[name] = v
	}
	if err != nil {
		return err
	}
	names, label := slices.Sorted(maps.Keys(first)), s.options.CSV.Label
	_, found := first[label]
	if usual := s.format.usualLabel(); !found && label == "label" && usual != "" {
		label = usual
		_, found = first[label]
	}
	if !found && label != "" {
		return fmt.Errorf("the records have no value %s; their values are %s: %w", quote(label), list(names), ErrField)
	}
	s.out = s.options.CSV.leaveOut(names, label)
	s.byName = map[string]int{}
	for _, name := range s.options.Ignore {
		s.byName[name] = onlyLater
	}
	for _, name := range names {
		if slices.Contains(s.out, name) {
			s.byName[name] = -1
		} else if err := s.addField(name, first[name], name == label); err != nil {
			return err
		}
	}
	return nil
}

// addField adds a field with the type of a value.
func (s *recordSet) addField(name string, v value, isLabel bool) (err error) {
	f := &recordField{set: s, name: name, index: len(s.fields), value: v}
	in := s.options.CSV.input(name)
	if inputs := s.options.CSV.Inputs; in == nil && len(inputs) == 1 {
		in = &inputs[0]
	}
	if v.whole != nil && len(v.whole) == v.count && !isLabel && in.is(dtype.IntKind, dtype.UintKind) {
		f.value.kind = dtype.For[int64]()
	}
	switch {
	case v.err != nil:
		return v.err
	case v.count == 0:
		return s.wrong(name, "no elements", "a value with elements")
	case isLabel && v.kind.Kind == dtype.StringKind && v.count > 1:
		return s.wrong(name, fmt.Sprintf("%d texts", v.count), "one class name")
	case isLabel:
		if s.label = f; v.count == 1 {
			s.labels = &tableField{name: "y", whole: true}
			s.labels.labels, err = newLabels(s.options.CSV)
		}
	default:
		f.image, err = s.isImage(f)
	}
	f.value.raw, f.value.decoded = nil, nil // the memory of the record is reused
	s.byName[name] = f.index
	s.fields = append(s.fields, f)
	return err
}

// isImage reports whether a value is an image to decode: one text that begins like an image, unless
// the model takes it as text.
func (s *recordSet) isImage(f *recordField) (ok bool, err error) {
	o, text := s.options.CSV, dtype.For[string]()
	if f.value.kind != text || f.value.count != 1 || o.takes(f.name, text) ||
		!image.IsImage(f.value.text()) {
		return false, nil
	}
	if s.images, err = newImageDecoder(s.options.Images); err != nil {
		return false, fmt.Errorf("value %s: %w", strconv.Quote(f.name), err)
	}
	return true, nil
}

// wrong returns an error for a value of a record.
func (s *recordSet) wrong(name, found, expected string) error {
	return &RowError{
		Unit: "record", Column: strconv.Quote(name), Found: found, Expected: expected,
		Fix: "leave the value out, or write all records with the same values, types and lengths", Err: ErrFormat,
	}
}

// split returns the values of a record in the order of the fields. They share the memory of raw.
func (s *recordSet) split(values []value, raw []byte) ([]value, error) {
	values = slices.Grow(values[:0], len(s.fields))[:len(s.fields)]
	clear(values)
	var err error
	for name, v := range s.format.values(raw, &err) {
		i, known := s.byName[name]
		for whole := name; !known && strings.Contains(whole, "."); { // of an ignored object
			whole = whole[:strings.LastIndex(whole, ".")]
			if i, known = s.byName[whole]; known {
				name = whole
			}
		}
		if !known {
			return values, s.wrong(name, "a value that the first record lacks", "the values of the first record")
		}
		if i == onlyLater { // only while the set is opened, which sees every name
			s.byName[name], s.out = -1, append(s.out, name)
		}
		switch {
		case i < 0:
			continue
		case v.err != nil:
			return values, v.err
		case values[i].kind != nil:
			return values, s.wrong(name, "two values with this name", "unique names, also in upper and lower case")
		}
		if len(v.whole) == v.count && v.whole != nil && s.fields[i].value.kind == dtype.For[int64]() {
			v.kind, v.decoded = dtype.For[int64](), v.whole
		}
		values[i] = v
	}
	if err != nil {
		return values, err
	}
	for i, f := range s.fields {
		if v := values[i]; v.kind != f.value.kind || !slices.Equal(v.shape(), f.value.shape()) {
			return values, s.wrong(f.name, v.describe(), f.value.describe()+", as in the first record")
		}
	}
	return values, nil
}

// dataset completes m with the columns.
func (s *recordSet) dataset(m *InMemory) error {
	m.n, m.out, m.parts = len(s.records), s.out, s.files
	if err := checkSamples(m.n); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	var names []string
	for _, f := range s.fields {
		c := column{shape: f.value.shape(), width: f.value.count, kind: f.value.kind}
		if f.image {
			c = s.images.column()
		}
		c.name, c.made, c.file = f.name, f, m.name
		if f == s.label {
			continue
		}
		if m.columns = append(m.columns, c); f.name != sampleWeight || s.options.CSV.input(f.name) != nil {
			names = append(names, f.name)
		}
	}
	inputs, err := s.options.CSV.layOut(tableColumns{names: names})
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	for _, in := range inputs {
		if in.joined {
			return fmt.Errorf("%s: columns of a table together as input %s are %w in records; write Parquet or CSV", m.name,
				quote(in.name), ErrUnsupported)
		}
		at := slices.IndexFunc(m.columns, func(c column) bool { return c.name == names[in.columns[0]] })
		c := &m.columns[at]
		if c.name = in.name; nameKey(names[in.columns[0]]) != nameKey(in.name) {
			c.columns = []string{names[in.columns[0]]}
		}
	}
	if s.label != nil {
		label := s.labelColumn(m)
		label.columns = []string{s.label.name}
		m.columns = append(m.columns, label)
	}
	if len(m.columns) == 0 {
		return fmt.Errorf("%s: the records have no values: %w", m.name, ErrFormat)
	}
	for i, c := range m.columns {
		if slices.ContainsFunc(m.columns[:i], func(o column) bool { return o.name == c.name }) {
			return fmt.Errorf("%s: field %q exists twice: a column has this name, which the label takes; rename the "+
				"column, or leave it out: %w", m.name, c.name, ErrField)
		}
	}
	return nil
}

func (s *recordSet) labelColumn(m *InMemory) column {
	f := s.label
	c := column{
		name: "y", file: m.name, origin: strconv.Quote(f.name),
		shape: f.value.shape(), width: f.value.count, kind: f.value.kind,
	}
	if s.labels == nil {
		c.made = f
		return c
	}
	c.classes = slices.Clone(s.labels.classes())
	v, _ := vectorOf(s.labels.array(m.n).Values) // which a tableField has made
	c.values, c.kind = v, v.kind()
	s.labels = nil
	return c
}

func (f *recordField) describe() string {
	if f.image {
		return f.set.images.describe() + " of " + f.name
	}
	return f.name
}

// lastRecord is the record that a worker read last. The next record reuses the memory of raw.
type lastRecord struct {
	row    int
	raw    []byte
	values []value
}

func (f *recordField) make(w *scratch, dst vector, at, row int) error {
	last, err := f.set.lastOf(w, row)
	if err != nil {
		return err
	}
	v := last.values[f.index]
	if f.image {
		raw := v.text()
		err = f.set.images.decode(w, dst, at, bytes.NewReader(raw), int64(len(raw)))
	} else {
		err = v.decode(dst, at)
	}
	if err != nil {
		_, path, number := partOf(f.set.files, row)
		return fmt.Errorf("%s: record %d: %s: %w", path, number, f.name, err)
	}
	return nil
}

// lastOf reads the record of a row, unless it is the record that the worker read last.
func (s *recordSet) lastOf(w *scratch, row int) (*lastRecord, error) {
	last, ok := w.state[s].(*lastRecord)
	if !ok {
		last = &lastRecord{row: -1}
		w.state[s] = last
	}
	if last.row == row {
		return last, nil
	}
	last.row = -1
	err := s.fetch(last, row)
	if err == nil {
		last.values, err = s.split(last.values, last.raw)
	}
	if err != nil {
		return nil, s.failed(row, err)
	}
	last.row = row
	return last, nil
}

// fetch reads the bytes of a record, and compares them with the checksum in the index.
func (s *recordSet) fetch(last *lastRecord, row int) error {
	file, _, _ := partOf(s.files, row)
	found := s.records[row]
	if s.closed.Load() {
		return errClosed
	}
	last.raw = slices.Grow(last.raw[:0], int(found.length))[:found.length]
	if err := readAt(s.open[file], last.raw, found.offset); err != nil {
		return err
	}
	if wire.Checksum(last.raw) != found.sum {
		return recordError("other bytes than in the index of the file", "a file that does not change",
			"do not change data during training, and start again")
	}
	return nil
}

// Close closes the files.
func (s *recordSet) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	var errs []error
	for _, f := range s.open {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
