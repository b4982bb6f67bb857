package synth

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"

	"steadyfit/data"
)

// Streamed is a dataset in files, one of raw little-endian elements for each field. It supports
// one pass at a time and must be closed.
type Streamed struct {
	Generated // fields and number of the samples
	files     []*os.File
}

// Stream writes n samples to files in dir, chunk by chunk, and opens them.
func Stream(s *Synth, n int, dir string) (*Streamed, error) {
	d := &Streamed{Generated: Generated{Synth: s, Samples: n}}
	for _, f := range s.Fields {
		file, err := os.Create(filepath.Join(dir, f.Name+".raw"))
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
		d.files = append(d.files, file)
	}
	if err := d.write(n); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Streamed) write(n int) error {
	room := d.Batch(chunk)
	for from := 0; from < n; from += chunk {
		part := room.Slice(0, min(chunk, n-from))
		d.Fill(part, uint64(from))
		for i, file := range d.files {
			if err := binary.Write(file, binary.LittleEndian, part.Fields[i].Values); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Streamed) Name() string { return "streamed" }

func (d *Streamed) Close() error {
	var errs []error
	for _, f := range d.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func (d *Streamed) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		whole := d.Batch(p.Batch)
		readers := make([]*bufio.Reader, len(d.files))
		for i, file := range d.files {
			at := int64(p.Skip) * int64(p.Batch) * int64(binary.Size(whole.Fields[i].Values)/p.Batch)
			if _, err := file.Seek(at, io.SeekStart); err != nil {
				yield(data.Batch{}, err)
				return
			}
			readers[i] = bufio.NewReaderSize(file, 256<<10)
		}
		for index := p.Skip; index*p.Batch < d.Samples; index++ {
			b := whole
			if left := d.Samples - index*p.Batch; left < p.Batch {
				b = whole.Slice(0, left)
			}
			b.Index = index
			for i, r := range readers {
				if err := binary.Read(r, binary.LittleEndian, b.Fields[i].Values); err != nil {
					yield(data.Batch{}, err)
					return
				}
			}
			if !yield(b, nil) {
				return
			}
		}
	}
}
