package workload

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"

	"steadyfit/data"
)

// batches hands out one batch after the other, pass after pass. A batch is valid
// until the next one is taken.
type batches interface {
	take(ctx context.Context) (data.Batch, error)
	close() error
}

// passes walks a dataset again and again.
type passes struct {
	ds    data.Dataset
	size  int
	pass  int
	skip  int // batches of the first pass
	next  func() (data.Batch, error, bool)
	stop  func()
	owned io.Closer // closed at the end; nil for none
}

// newPasses begins after that many batches, where an earlier process ended.
func newPasses(ds data.Dataset, size, done int) *passes {
	perPass := max(1, (ds.Len()+size-1)/size)
	return &passes{ds: ds, size: size, pass: done / perPass, skip: done % perPass}
}

func (p *passes) take(context.Context) (data.Batch, error) {
	for range 2 {
		if p.next == nil {
			p.next, p.stop = iter.Pull2(p.ds.Batches(data.Pass{Batch: p.size, Epoch: p.pass, Skip: p.skip}))
			p.skip = 0
		}
		if b, err, ok := p.next(); ok {
			return b, err
		}
		p.stop()
		p.next, p.pass = nil, p.pass+1
	}
	return data.Batch{}, fmt.Errorf("%s: a pass has no batch of %d", p.ds.Name(), p.size)
}

func (p *passes) close() error {
	if p.next != nil {
		p.stop()
		p.next = nil
	}
	if p.owned != nil {
		return p.owned.Close()
	}
	return nil
}

// streamed is a dataset that is read from files, batch by batch: for each field
// one of raw little-endian elements. One pass at a time.
type streamed struct {
	*generated // for what the samples are
	files      []*os.File
}

// stream writes n samples into files in dir and opens them. It holds one chunk at
// a time.
func stream(s *synth, n int, dir string) (*streamed, error) {
	d := &streamed{generated: &generated{synth: s, samples: n}}
	for _, f := range s.fields {
		file, err := os.Create(filepath.Join(dir, f.name+".raw"))
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

func (d *streamed) write(n int) error {
	room := d.batch(chunk)
	for from := 0; from < n; from += chunk {
		part := room.Slice(0, min(chunk, n-from))
		d.fill(part, uint64(from))
		for i, file := range d.files {
			if err := binary.Write(file, binary.LittleEndian, part.Fields[i].Values); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *streamed) Name() string { return "streamed" }

func (d *streamed) Close() error {
	var errs []error
	for _, f := range d.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func (d *streamed) Batches(p data.Pass) iter.Seq2[data.Batch, error] {
	return func(yield func(data.Batch, error) bool) {
		whole := d.batch(p.Batch)
		readers := make([]*bufio.Reader, len(d.files))
		for i, file := range d.files {
			at := int64(p.Skip) * int64(p.Batch) * int64(binary.Size(whole.Fields[i].Values)/p.Batch)
			if _, err := file.Seek(at, io.SeekStart); err != nil {
				yield(data.Batch{}, err)
				return
			}
			readers[i] = bufio.NewReaderSize(file, 256<<10)
		}
		for index := p.Skip; index*p.Batch < d.samples; index++ {
			b := whole
			if left := d.samples - index*p.Batch; left < p.Batch {
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
