package data

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
)

// Fingerprint returns a text that identifies a dataset of images by the names and sizes of the
// files, the fields and classes, the order of the first pass and the functions applied to the
// samples. Images are not decoded. The path of the folder and the number of workers do not matter.
// ok is false for a dataset without images.
//
// Fingerprint does not detect an image replaced by another image of the same name and size.
func (m *InMemory) Fingerprint() (text string, ok bool, err error) {
	if !m.HasImages() {
		return "", false, nil
	}
	rows := m.order(new([]int), 0)
	if rows == nil {
		rows = make([]int, m.n)
		for i := range rows {
			rows[i] = i
		}
	}
	sum := sha256.New() // writing to it never fails
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
			if err := c.values.copyTo(one, 0, row*c.width, (row+1)*c.width); err != nil {
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
