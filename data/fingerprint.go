package data

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"

	"steadyfit/internal/dtype"
)

// Fingerprint returns a text that identifies a dataset of class folders or records, without reading samples. It depends
// on the names and sizes of the files in class folders or the sizes and checksums of the records, and on the fields,
// the classes, the order of the samples and the functions applied to them. It does not depend on the place of the
// dataset and on the number of workers. ok is false for another dataset.
//
// Fingerprint does not detect a file in a class folder replaced by another one of the same name and size.
func (m *InMemory) Fingerprint() (text string, ok bool, err error) {
	ofFiles := func(c column) bool {
		_, images := c.bottom().made.(*imageTexts)
		return images || c.files() != nil
	}
	if m.records == nil && !slices.ContainsFunc(m.columns, ofFiles) {
		return "", false, nil
	}
	sum := sha256.New() // writing to it never fails
	if m.records != nil {
		fmt.Fprintf(sum, "records %x\n", m.records.digest.Sum(nil))
	}
	if m.shuffled {
		fmt.Fprintf(sum, "seed %d\n", m.seed)
	}
	for _, row := range m.rows {
		sum.Write(binary.LittleEndian.AppendUint32(nil, row))
	}
	for i := range m.columns {
		c := &m.columns[i]
		fmt.Fprintf(sum, "field %q %s classes %q\n", c.name, describeField(c.kind.Name, c.shape), c.classes)
		if v, ok := c.values.(vector); ok && c.kind.Kind != dtype.StringKind {
			sum.Write(bytesOf(v, 0, v.len()))
		}
		for ; c != nil && c.made != nil; c = c.made.under() {
			fmt.Fprintf(sum, "made by %q\n", c.made.describe())
			if files, ok := c.made.(*classFiles); ok {
				for _, file := range files.files {
					fmt.Fprintf(sum, "%q %d\n", filepath.ToSlash(file.path), file.size)
				}
			}
		}
	}
	return fmt.Sprintf("%d samples (files sha256 %x)", m.n, sum.Sum(nil)[:8]), true, nil
}
