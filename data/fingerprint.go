package data

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
)

// Fingerprint returns a text that identifies a dataset of image files or records, without reading
// samples. It depends on the names and sizes of the image files or the sizes and checksums of the
// records, and on the fields, the classes, the order of the first pass and the functions applied
// to the samples. It does not depend on paths and the number of workers. ok is false for another
// dataset.
//
// Fingerprint does not detect an image file replaced by another one of the same name and size.
func (m *InMemory) Fingerprint() (text string, ok bool, err error) {
	if m.ImageFields() == nil && m.records == nil {
		return "", false, nil
	}
	rows := m.order(new([]uint32), 0)
	if rows == nil {
		rows = make([]uint32, m.n)
		for i := range rows {
			rows[i] = uint32(i)
		}
	}
	sum := sha256.New() // writing to it never fails
	if m.records != nil {
		m.records.identify(sum, rows)
	}
	for i := range m.columns {
		c := &m.columns[i]
		fmt.Fprintf(sum, "field %q %s\n", c.name, describeField(c.kind.Name, c.shape))
		for c.made != nil {
			fmt.Fprintf(sum, "made by %q\n", c.made.describe())
			files, ofFiles := c.made.(*imageFiles)
			if ofFiles {
				for _, row := range rows {
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
		one := makeVector(c.kind, c.width)
		var value []byte
		for _, row := range rows {
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
