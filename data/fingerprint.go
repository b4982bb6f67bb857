package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"path/filepath"
	"slices"
	"sync"
)

// Fingerprint returns a text that identifies a dataset of class folders or records, without reading
// samples. It depends on the names and sizes of the files in class folders or the sizes and checksums
// of the records, and on the fields, the classes, the order of the samples and the functions applied to
// them. It does not depend on the place of the dataset and on the number of workers. ok is false for
// another dataset.
//
// Fingerprint does not detect a file in a class folder replaced by another one of the same name and size.
func (m *InMemory) Fingerprint() (text string, ok bool, err error) {
	ofFiles := func(c column) bool { return c.files() != nil }
	if m.records == nil && !slices.ContainsFunc(m.columns, ofFiles) {
		return "", false, nil
	}
	sum := sha256.New() // writing to it never fails
	if m.records != nil {
		if err := m.identifyRecords(sum); err != nil {
			return "", false, err
		}
	}
	rows := sync.OnceValue(m.firstRows)
	for i := range m.columns {
		c := &m.columns[i]
		fmt.Fprintf(sum, "field %q %s\n", c.name, describeField(c.kind.Name, c.shape))
		for c.made != nil {
			fmt.Fprintf(sum, "made by %q\n", c.made.describe())
			if files, ok := c.made.(*classFiles); ok {
				for _, row := range rows() {
					fmt.Fprintf(sum, "%q %d\n", filepath.ToSlash(files.files[row].path), files.files[row].size)
				}
			}
			if c = c.made.under(); c == nil {
				break
			}
		}
		if c == nil {
			continue
		}
		if _, ok := c.values.(*indexedLabels); ok { // the digest of the records includes the labels
			fmt.Fprintf(sum, "classes %q\n", c.classes)
			continue
		}
		one := makeVector(c.kind, c.width)
		var value []byte
		for _, row := range rows() {
			if err := c.values.copyTo(one, 0, int(row)*c.width, (int(row)+1)*c.width); err != nil {
				return "", false, err
			}
			for e := range c.width {
				value = append(appendText(value[:0], one, e), '\n')
				sum.Write(value)
			}
		}
	}
	return fmt.Sprintf("%d samples (files sha256 %x)", m.n, sum.Sum(nil)[:8]), true, nil
}

// firstRows returns the rows in the order of the first pass.
func (m *InMemory) firstRows() []uint32 {
	var room []uint32
	rows := m.order(&room, 0).between(&room, 0, m.n)
	if rows == nil {
		rows = make([]uint32, m.n)
		for i := range rows {
			rows[i] = uint32(i)
		}
	}
	return rows
}

// identifyRecords writes the identity of the records and their order to sum. It does not read the
// index, which may have millions of rows.
func (m *InMemory) identifyRecords(sum hash.Hash) error {
	fmt.Fprintf(sum, "records %x\n", m.records.index.digest)
	if schema := m.records.options.CSV.Schema; schema != nil {
		text, err := json.Marshal(schema)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "schema %s\n", text)
	}
	if m.shuffled {
		fmt.Fprintf(sum, "seed %d\n", m.seed)
		if m.n > maxStored {
			fmt.Fprintln(sum, "computed order")
		}
	}
	if m.rows == nil {
		return nil
	}
	var raw [8]byte
	for _, word := range m.rows.bits {
		binary.LittleEndian.PutUint64(raw[:], word)
		sum.Write(raw[:])
	}
	return nil
}
