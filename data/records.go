package data

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"steadyfit/internal/dtype"
	"steadyfit/internal/wire"
)

// recordFormat is a format of files that hold one sample after the other.
type recordFormat interface {
	name() string
	// usualLabel returns a second usual name of labels, besides "label"; it may be empty.
	usualLabel() string
	// begins reports whether a file may begin with these bytes.
	begins(head []byte) bool
	// scan reads a file of size bytes (below 0 if unknown), and calls each for its records. raw is
	// valid during the call.
	scan(r io.Reader, size int64, each func(found record, raw []byte) error) error
	// values iterates over the names and values of a record. It sets *err and stops if the record is
	// damaged.
	values(raw []byte, err *error) iter.Seq2[[]byte, value]
	// decode writes the elements of a value to dst, starting at index at.
	decode(v value, dst vector, at int) error
	// content returns the bytes of a string value with one element.
	content(v value) []byte
}

// tableFormat is a format whose rows cannot be read one by one. All rows are copied to a temporary
// file.
type tableFormat interface {
	recordFormat
	// fresh returns the format for another set of files.
	fresh(rows tableRows) recordFormat
	// rows calls each for the rows of a file, encoded for the temporary file.
	rows(r io.ReaderAt, size int64, each func(raw []byte) error) error
	// chosen returns the names of the columns, and the names of the columns that are left out.
	chosen() (names, out []string)
	// order returns the categories of a column that is an ordered category, in their order; nil for
	// other columns.
	order(column string) []string
}

// value is an encoded value of a record. kind is nil if the type is unknown because there are no
// elements. A nil shape means a scalar for one element, and a list for several.
type value struct {
	kind    *dtype.Type
	shape   []int
	count   int
	raw     []byte
	decoded vector // nil if the elements are encoded in raw
	date    bool   // whether raw is the text of a date, which only a rule converts
	err     error  // why the value cannot be used; ignored if it is left out
}

func (v value) dimensions() []int {
	if v.shape == nil && v.count != 1 {
		return []int{v.count}
	}
	return v.shape
}

// recordSet makes samples from the records of one or several files. The files are read once when the
// set is opened, to check them and to make an index. Later, a worker reads the record of a sample
// when a batch needs it.
type recordSet struct {
	recordFiles
	format  recordFormat
	options Options
	limit   *limit
	images  *imageDecoder // nil if no value is an image

	fields []*recordField // sorted by name
	byName map[string]int // index in fields; -1 for a value to leave out
	order  []string       // the names in the order of a table, or else sorted
	out    []string       // the names that are left out
	label  *recordField   // nil without a label
	rules  map[string]*Rule
	index  *recordIndex
	kept   string // path of the kept index; empty if there is none

	// The fields below are used while records are added.
	writer   indexWriter
	texts    []string // the labels that are text
	textIDs  map[string]uint32
	values   []value    // of the record that is being added
	decoded  []vector   // one record's values by field; nil for a field that is not decoded
	observed []observed // extremes by field
	observes int        // number of elements of all fields
	row      []byte     // the label as the index stores it
	found    problems
}

// recordField makes the values of a column.
type recordField struct {
	fromFiles
	set   *recordSet
	name  string // in the records
	index int    // in recordSet.fields
	value value  // in the first record
	image bool   // whether the value is an image that is decoded
}

// openRecords opens files of a format, of size bytes together, as one dataset.
func openRecords(name string, paths []string, size int64, format recordFormat, o Options, l *limit) (*InMemory, error) {
	kept, keep := keptIndexOf(paths, format, o, size)
	if keep {
		s := newRecordSet(name, format, o, l)
		if kept.load(s, paths) == nil {
			m := &InMemory{name: name, records: s, files: []io.Closer{s}}
			return m.opened(s.dataset(m))
		}
		l = l.again()
	}
	s := newRecordSet(name, format, o, l)
	var err error
	if _, isTable := format.(tableFormat); isTable {
		if s.rules, err = o.CSV.rules(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	m := &InMemory{name: name, records: s, files: []io.Closer{s}}
	for _, path := range paths {
		s.all = append(s.all, &recordFile{path: path, set: &s.recordFiles, first: s.writer.n})
		if err := s.addFile(s.last(), len(paths), o.MaxBytes, s.format, s.add); err != nil {
			if len(s.found.errs) < maxProblems { // otherwise add has added err
				s.found.add(s.failed(path, s.last().records, err))
			}
			break
		}
	}
	if err := s.found.err(); err != nil {
		return m.opened(err)
	}
	if s.writer.n == 0 {
		return m.opened(fmt.Errorf("%s: it has no records: %w", name, ErrFormat))
	}
	if s.index, err = s.writer.index(); err != nil {
		return m.opened(err)
	}
	s.index.texts, s.index.observed = s.texts, s.observed
	// A failure to save the index is not an error: the next start only has to read the files again.
	// steadyfit doctor reports a cache that cannot be written.
	if keep && s.scratch == nil && kept.save(s) == nil {
		s.kept = kept.path
	}
	return m.opened(s.dataset(m))
}

func newRecordSet(name string, format recordFormat, o Options, l *limit) *recordSet {
	s := &recordSet{format: format, options: o, limit: l, textIDs: map[string]uint32{}, found: problems{source: name}}
	s.writer.create = func() (*os.File, error) { return s.scratchFile("index") }
	if table, ok := format.(tableFormat); ok {
		s.format = table.fresh(tableRows{limit: l, options: &s.options.CSV, ordered: map[string][]string{}})
	}
	return s
}

// failed adds the path of the file, and to a *RowError the number of the record, to an error.
func (s *recordSet) failed(path string, number int, err error) error {
	if row := (*RowError)(nil); errors.As(err, &row) {
		row.File, row.Unit, row.Row = path, "record", number
		return err
	}
	if strings.HasPrefix(err.Error(), path+":") {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// add adds a record. For a record that cannot be used, it keeps the problem, and returns an error
// only when there are enough problems.
func (s *recordSet) add(found record, raw []byte) error {
	if s.byName == nil {
		if err := s.start(raw); err != nil {
			return err
		}
	}
	err := s.addRecord(found, raw)
	if row := (*RowError)(nil); errors.As(err, &row) && s.found.addCell(s.failed(s.last().path, s.last().records, err)) {
		s.skipFull(row.Column)
		err = nil
	}
	if err == nil {
		s.last().records++
	}
	return err
}

// skipFull leaves out the further values of a column that has maxInColumn errors.
func (s *recordSet) skipFull(column string) {
	if name, err := strconv.Unquote(column); err == nil && s.found.full(column) {
		s.byName[name] = -1
	}
}

// addRecord checks a record and adds it to the index with its label.
func (s *recordSet) addRecord(found record, raw []byte) (err error) {
	if s.values, err = s.split(s.values, raw); err != nil {
		return err
	}
	for i, v := range s.values {
		if err := s.observe(i, v); err != nil {
			return err
		}
	}
	label, err := s.labelBytes()
	if err != nil {
		return err
	}
	if err := s.writer.add(found, label); err != nil {
		return err
	}
	return checkSamples(s.writer.n)
}

// maxObserved is the maximum number of elements of a record that are decoded for the extremes of
// fields. It bounds memory, since decoded elements may take more bytes than in the record. Check reads
// the records for a field whose extremes are unknown.
const maxObserved = 1 << 20

// observe decodes a value if it has numbers or is a stored label, and includes it in the extremes
// of its field.
func (s *recordSet) observe(i int, v value) error {
	to := s.decoded[i]
	if to == nil || v.kind == nil { // not decoded, or no longer read
		return nil
	}
	if err := s.decode(v, to, 0); err != nil {
		return err
	}
	s.observed[i].add(to)
	return nil
}

// decode writes the elements of a value to dst, starting at index at.
func (s *recordSet) decode(v value, dst vector, at int) error {
	if v.decoded != nil {
		return v.decoded.copyTo(dst, at, 0, v.count)
	}
	return s.format.decode(v, dst, at)
}

// labelBytes returns the label in the form of the index; nil if labels are not stored.
func (s *recordSet) labelBytes() ([]byte, error) {
	if !s.storesLabel() {
		return nil, nil
	}
	label := s.decoded[s.label.index]
	texts, ok := label.(vec[string])
	if !ok {
		s.row = append(s.row[:0], bytesOf(label, 0, 1)...)
		reorder(s.row, label.kind().Size, binary.LittleEndian)
		return s.row, nil
	}
	id, known := s.textIDs[texts[0]]
	if !known {
		id = uint32(len(s.texts))
		if err := s.addText(texts[0]); err != nil {
			return nil, err
		}
	}
	s.row = binary.LittleEndian.AppendUint32(s.row[:0], id)
	return s.row, nil
}

// addText adds a label that is text.
func (s *recordSet) addText(text string) error {
	if err := s.limit.take(classBytes + int64(len(text))); err != nil {
		return err
	}
	s.textIDs[text] = uint32(len(s.texts))
	s.texts = append(s.texts, text)
	return nil
}

// storesLabel reports whether the index has the labels.
func (s *recordSet) storesLabel() bool { return s.label != nil && s.label.value.count == 1 }

func (s *recordSet) storesText() bool {
	return s.storesLabel() && s.label.value.kind.Kind == dtype.String
}

// start takes the names and types of the values from the first record.
func (s *recordSet) start(raw []byte) (err error) {
	first := map[string]value{}
	for name, v := range s.format.values(raw, &err) {
		if first[string(name)] = s.ruled(string(name), v); len(first) > maxFields {
			return recordError(fmt.Sprintf("more than %d values", maxFields), "the inputs of a model", "leave out unused values")
		}
	}
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(first))
	label, err := s.choose(names, first)
	if err != nil {
		return err
	}
	s.byName = map[string]int{}
	for _, name := range names {
		if slices.Contains(s.out, name) {
			s.byName[name] = -1
			continue
		}
		v := first[name]
		isNull := v.count == 0 && v.kind != nil
		switch {
		case errors.Is(v.err, ErrFormat) && (isNull || s.rules[name] != nil):
			v.count = 1 // split reports the error
		case v.err != nil:
			return v.err
		}
		if v.count == 0 {
			return s.wrong(name, "no elements", "a value with elements", "")
		}
		if err := s.addField(name, v, name == label); err != nil {
			return err
		}
	}
	return nil
}

// addField adds a field with the type of a value.
func (s *recordSet) addField(name string, v value, isLabel bool) (err error) {
	f := &recordField{set: s, name: name, index: len(s.fields), value: v}
	text := v.kind.Kind == dtype.String
	switch {
	case isLabel && text && v.count > 1:
		return s.wrong(name, fmt.Sprintf("%d texts", v.count), "one class name", "")
	case isLabel:
		s.label = f
	default:
		if f.image, err = s.isImage(f); err != nil {
			return err
		}
	}
	f.value.raw, f.value.decoded = nil, nil // the memory of the record is reused
	s.byName[name] = f.index
	s.fields = append(s.fields, f)
	var decoded vector
	extremes := observed{}
	s.observes += v.count
	if oneLabel := isLabel && v.count == 1; !text && (oneLabel || s.observes <= maxObserved) {
		extremes = unobserved
	}
	if extremes.Known || isLabel && v.count == 1 {
		decoded = makeVector(v.kind, v.count)
	}
	s.decoded, s.observed = append(s.decoded, decoded), append(s.observed, extremes)
	return nil
}

// isImage reports whether a value is an image to decode: one text that begins like an image, unless
// the model takes it as text.
func (s *recordSet) isImage(f *recordField) (ok bool, err error) {
	o := s.options.CSV
	if f.value.kind.Kind != dtype.String || f.value.count != 1 || o.Text || o.takes(f.name, dtype.For[string]()) {
		return false, nil
	}
	if _, ok := detect(s.format.content(f.value)); !ok {
		return false, nil
	}
	if s.images, err = newImageDecoder(s.options.Images); err != nil {
		return false, fmt.Errorf("value %s: %w", strconv.Quote(f.name), err)
	}
	return true, nil
}

// wrong returns an error for a value of a record.
func (s *recordSet) wrong(name, found, expected, fix string) error {
	fix += "leave the value out, or write all records with the same values, types and lengths"
	return &RowError{Unit: "record", Column: strconv.Quote(name), Found: found, Expected: expected, Fix: fix, Err: ErrFormat}
}

// split returns the values of a record in the order of the fields. They share the memory of raw.
func (s *recordSet) split(values []value, raw []byte) ([]value, error) {
	values = slices.Grow(values[:0], len(s.fields))[:len(s.fields)]
	clear(values)
	var err error
	for name, v := range s.format.values(raw, &err) {
		i, known := s.byName[string(name)]
		if !known {
			return values, s.wrong(string(name), "a value that the first record lacks", "the values of the first record", "")
		}
		if i < 0 {
			continue
		}
		if s.rules != nil {
			v = s.ruled(string(name), v)
		}
		if v.err != nil {
			return values, v.err
		}
		if f := s.fields[i]; v.kind != f.value.kind || v.count != f.value.count || !slices.Equal(v.shape, f.value.shape) {
			return values, s.wrong(f.name, v.describe(), f.value.describe()+", as in the first record", "")
		}
		values[i] = v
	}
	if err != nil {
		return values, err
	}
	for i, f := range s.fields {
		if values[i].kind == nil && s.byName[f.name] >= 0 {
			return values, s.wrong(f.name, "no value", f.value.describe()+", as in the first record", "")
		}
	}
	return values, nil
}

func (v value) describe() string {
	if v.kind == nil || v.count == 0 {
		return "no elements"
	}
	return describeField(v.kind.Name, v.dimensions())
}

// dataset completes m with the columns.
func (s *recordSet) dataset(m *InMemory) error {
	m.n, m.out = s.index.n, s.out
	for _, f := range s.fields {
		if f == s.label {
			continue
		}
		c := column{name: f.name, shape: f.value.dimensions(), width: f.value.count, kind: f.value.kind, made: f, file: m.name}
		if f.image {
			c = s.images.column()
			c.name, c.made, c.file = f.name, f, m.name
		}
		m.columns = append(m.columns, c)
	}
	label := ""
	if s.label != nil {
		label = s.label.name
	}
	if err := m.layOut(s.order, label, &s.options.CSV); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	if s.label != nil {
		if err := s.addLabel(m); err != nil {
			return err
		}
	}
	if len(m.columns) == 0 {
		return fmt.Errorf("%s: the records have no values: %w", m.name, ErrFormat)
	}
	for i, c := range m.columns {
		if slices.ContainsFunc(m.columns[:i], func(o column) bool { return o.name == c.name }) {
			return fmt.Errorf("%s: field %q exists twice: a column has this name, which the label takes; rename the column, or leave it out: %w", m.name, c.name, ErrField)
		}
	}
	return nil
}

func (s *recordSet) addLabel(m *InMemory) error {
	f := s.label
	c := column{name: "y", file: m.name, origin: strconv.Quote(f.name), shape: f.value.dimensions(), width: f.value.count, kind: f.value.kind}
	if !s.storesLabel() {
		c.made = f
		m.columns = append(m.columns, c)
		return nil
	}
	labels := &indexedLabels{index: s.index, from: c.kind, of: c.kind, extent: s.index.observed[f.index]}
	c.classes = slices.Clone(s.options.CSV.Classes)
	switch {
	case c.kind.Kind == dtype.String:
		numbers, classes, err := classNumbers(m.name, slices.Clone(s.index.texts), s.options.CSV, s.wrongLabel)
		if err != nil {
			return err
		}
		labels.of, labels.numbers, c.classes = dtype.For[int64](), numbers, slices.Clone(classes)
		labels.extent = unobserved
		labels.extent.add(vec[int64](numbers))
	case c.kind == dtype.For[float64]() && labels.extent.Whole:
		labels.of = dtype.For[int64]()
	}
	c.kind, c.values = labels.of, labels
	m.columns = append(m.columns, c)
	return nil
}

// wrongLabel returns the error for the first record whose label is the text with this number.
func (s *recordSet) wrongLabel(text int, found, expected string) error {
	wrong := s.wrong(s.label.name, found, expected, "correct the label, ")
	return cmp.Or(s.index.each(0, s.index.n, func(row int, raw []byte) error {
		if binary.LittleEndian.Uint32(raw[entryBytes:]) != uint32(text) {
			return nil
		}
		file, number := s.position(row)
		return s.failed(file.path, number, wrong)
	}), wrong)
}

func (f *recordField) describe() string {
	if f.image {
		return f.set.images.describe() + " of " + f.name
	}
	return f.name
}

// heldRecord is the record that a worker read last. The next record reuses the memory of raw.
type heldRecord struct {
	row    int
	entry  [entryBytes]byte
	raw    []byte
	values []value
}

func (f *recordField) make(h *hand, dst vector, at int, s Sample) error {
	held, err := f.set.hold(h, s.Row)
	if err != nil {
		return err
	}
	v := held.values[f.index]
	if f.image {
		raw := f.set.format.content(v)
		err = f.set.images.paint(h, dst, at, bytes.NewReader(raw), int64(len(raw)))
	} else {
		err = f.set.decode(v, dst, at)
	}
	if err != nil {
		file, number := f.set.position(s.Row)
		return fmt.Errorf("%s: record %d: %s: %w", file.path, number, f.name, err)
	}
	return nil
}

// hold reads the record of a row, unless it is the record that the worker read last.
func (s *recordSet) hold(h *hand, row int) (*heldRecord, error) {
	held, ok := h.kept[s].(*heldRecord)
	if !ok {
		held = &heldRecord{row: -1}
		h.kept[s] = held
	}
	if held.row == row {
		return held, nil
	}
	held.row = -1
	file, number := s.position(row)
	if err := s.index.read(held.entry[:], row, 0); err != nil {
		return nil, err
	}
	err := s.fetch(held, file, entryOf(held.entry[:]))
	if err == nil {
		held.values, err = s.split(held.values, held.raw)
	}
	if err != nil {
		return nil, s.failed(file.path, number, err)
	}
	held.row = row
	return held, nil
}

// fetch reads the bytes of a record. If the bytes differ from the checksum in a kept index, it
// removes the index, so that the next start reads the files again.
func (s *recordSet) fetch(held *heldRecord, file *recordFile, found record) error {
	if found.length <= maxRecord {
		held.raw = slices.Grow(held.raw[:0], int(found.length))[:found.length]
		if err := file.read(held.raw, found.offset); err != nil {
			return err
		}
		if wire.Checksum(held.raw) == found.sum {
			return nil
		}
	}
	if s.kept != "" {
		_ = os.Remove(s.kept) // another process may have removed it
	}
	return recordError("other bytes than in the index of the file", "a file that does not change", "do not change data during training, and start again")
}

// position returns the file of a row, and the number of its record in the file.
func (s *recordSet) position(row int) (*recordFile, int) {
	i := sort.Search(len(s.all), func(i int) bool { return s.all[i].first > row }) - 1
	return s.all[i], row - s.all[i].first
}
