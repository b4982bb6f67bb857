//go:build galeone

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	tf "github.com/galeone/tensorflow/tensorflow/go"

	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// predictions keeps what the model gives, as Go values.
func predictions(j *job) (loop, error) {
	history, err := j.Choice("history", "keep", "last")
	if err != nil {
		return loop{}, err
	}
	m, err := j.open()
	if err != nil {
		return loop{}, err
	}
	f, err := m.function(m.info.Roles.Predict)
	if err != nil {
		return loop{}, err
	}
	data, err := m.rows(f, j.Spec.Batch)
	if err != nil {
		return loop{}, err
	}
	var kept [][]any
	return loop{
		step: func(int) error {
			var values []any
			err := m.call(f, data.batch(0, data.n), func(results []*tf.Tensor) error {
				for _, t := range results {
					values = append(values, t.Value())
				}
				return nil
			})
			if history == "last" {
				kept = kept[:0]
			}
			kept = append(kept, values)
			return err
		},
		free: func() error {
			kept = nil
			return m.close()
		},
	}, nil
}

// A string tensor has so many strings, of a length from..to.
const (
	wordCount    = 1000
	wordShortest = 10
	wordLongest  = 200
)

// words passes strings through an Identity and reads them back.
func words(j *job) (loop, error) {
	graph, in, out, err := spread(tf.String, "Identity", 1, 1)
	if err != nil {
		return loop{}, err
	}
	session, free, err := j.session(graph)
	if err != nil {
		return loop{}, err
	}
	pool := make([]string, 2*wordCount)
	for i := range pool {
		pool[i] = strings.Repeat(string(rune('a'+j.random.IntN(26))), wordShortest+j.random.IntN(wordLongest-wordShortest+1))
	}
	return loop{
		step: func(n int) error {
			from := n * 7 % wordCount
			values := pool[from : from+wordCount]
			x, err := tf.NewTensor(values)
			if err != nil {
				return err
			}
			feeds := map[tf.Output]*tf.Tensor{in: j.tensors.counted(x)}
			return j.run(session, feeds, out, func(results []*tf.Tensor) error {
				back, ok := results[0].Value().([]string)
				if !ok || !slices.Equal(back, values) {
					return errors.New("the strings that came back are others")
				}
				return nil
			})
		},
		free: free,
	}, nil
}

// validationBatch is the batch of an evaluation.
const validationBatch = 64

// validated is a loop that evaluates the model on other samples after each epoch.
// The last whole batch of an epoch is a quarter full, as that of 1000 samples in
// batches of 32 is.
func validated(j *job) (loop, error) {
	m, f, err := j.trainable()
	if err != nil {
		return loop{}, err
	}
	evaluate, err := m.function(m.info.Roles.Evaluate)
	if err != nil {
		return loop{}, err
	}
	n := max(1, j.Spec.SetSize()-j.Spec.WholeBatch()*3/4)
	data, err := m.rows(f, n)
	if err != nil {
		return loop{}, err
	}
	others, err := m.rows(evaluate, max(1, n/5))
	if err != nil {
		return loop{}, err
	}
	l := loop{
		step: func(n int) error { return m.train(f, data.at(n, j.Spec.Batch)) },
		epoch: func() error {
			for n := 1; (n-1)*validationBatch < others.n; n++ {
				if _, err := m.scalars(evaluate, others.at(n, validationBatch)); err != nil {
					return err
				}
			}
			return nil
		},
		free: m.close,
	}
	err = m.resetting(&l, f, evaluate)
	return l, err
}

// recorded keeps what each step gave. An epoch of 60,000 samples need not be in memory
// for this.
func recorded(j *job) (loop, error) {
	history, err := j.Choice("history", "keep", "last")
	if err != nil {
		return loop{}, err
	}
	m, f, err := j.trainable()
	if err != nil {
		return loop{}, err
	}
	data, err := m.rows(f, min(j.Spec.Epoch, 200)*j.Spec.WholeBatch())
	if err != nil {
		return loop{}, err
	}
	var kept []map[string]float32
	return loop{
		step: func(n int) error {
			entry := make(map[string]float32, len(f.outputs))
			err := m.call(f, data.at(n, j.Spec.Batch), func(results []*tf.Tensor) error {
				for i, t := range results {
					v, ok := t.Value().(float32)
					if !ok {
						return fmt.Errorf("output %s is not a float32", f.signature.Outputs[i].Name)
					}
					entry[f.signature.Outputs[i].Name] = v
				}
				return nil
			})
			j.loss(entry[savedmodels.OutputLoss])
			if history == "last" {
				kept = kept[:0]
			}
			kept = append(kept, entry)
			return err
		},
		free: func() error {
			kept = nil
			return m.close()
		},
	}, nil
}

// large trains on many rows of floats, which are in memory or read from a file.
func large(j *job) (loop, error) {
	where, err := j.Choice("data", "memory", "disk")
	if err != nil {
		return loop{}, err
	}
	n, err := j.Int("rows", 1_000_000)
	if err != nil {
		return loop{}, err
	}
	if n < j.Spec.Batch {
		return loop{}, fmt.Errorf("%d rows are fewer than a batch of %d", n, j.Spec.Batch)
	}
	m, f, err := j.trainable()
	if err != nil {
		return loop{}, err
	}
	if where == "memory" {
		data, err := m.rows(f, n)
		if err != nil {
			return loop{}, err
		}
		return loop{
			step: func(n int) error { return m.train(f, data.at(n, j.Spec.Batch)) },
			free: m.close,
		}, nil
	}
	file, err := m.rowFile(f, n)
	if err != nil {
		return loop{}, err
	}
	return loop{
		step: func(int) error {
			values, err := file.batch(j.Spec.Batch)
			if err != nil {
				return err
			}
			return m.train(f, values)
		},
		free: func() error { return errors.Join(file.f.Close(), m.close()) },
	}, nil
}

// rowFile is rows of float32 on disk, one input after the other in each row.
type rowFile struct {
	f      *os.File
	reader *bufio.Reader
	widths []int // of the inputs
	row    []byte
}

func (m *model) rowFile(f *function, n int) (_ *rowFile, err error) {
	if m.Spec.Scratch == "" {
		return nil, errors.New("no folder for the rows")
	}
	r := &rowFile{}
	width := 0
	for _, t := range f.types {
		if t.DType != tfbind.Float32 || len(t.Shape) != 2 {
			return nil, fmt.Errorf("input %s: expected rows of float32", t.Name)
		}
		r.widths = append(r.widths, int(t.Shape[1]))
		width += int(t.Shape[1])
	}
	if r.f, err = os.Create(filepath.Join(m.Spec.Scratch, "rows")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.f.Close()
		}
	}()
	w := bufio.NewWriterSize(r.f, 1<<20)
	r.row = make([]byte, 4*width)
	for range n {
		for i := range width {
			binary.LittleEndian.PutUint32(r.row[4*i:], math.Float32bits(m.random.Float32()))
		}
		if _, err = w.Write(r.row); err != nil {
			return nil, err
		}
	}
	if err = w.Flush(); err != nil {
		return nil, err
	}
	r.reader = bufio.NewReader(r.f)
	return r, r.rewind()
}

func (r *rowFile) rewind() error {
	_, err := r.f.Seek(0, io.SeekStart)
	r.reader.Reset(r.f)
	return err
}

// batch reads the next rows, from the beginning again when fewer are left.
func (r *rowFile) batch(n int) ([]any, error) {
	columns := make([][][]float32, len(r.widths))
	for len(columns[0]) < n {
		if _, err := io.ReadFull(r.reader, r.row); errors.Is(err, io.EOF) {
			if err := r.rewind(); err != nil {
				return nil, err
			}
			continue
		} else if err != nil {
			return nil, err
		}
		at := 0
		for i, width := range r.widths {
			values := make([]float32, width)
			for k := range values {
				values[k] = math.Float32frombits(binary.LittleEndian.Uint32(r.row[at:]))
				at += 4
			}
			columns[i] = append(columns[i], values)
		}
	}
	values := make([]any, len(columns))
	for i, c := range columns {
		values[i] = c
	}
	return values, nil
}

// generated trains on images that a generator makes for each step.
func generated(j *job) (loop, error) {
	if _, err := j.Choice("input", "tensor"); err != nil {
		return loop{}, err
	}
	augment, err := j.Choice("augment", "0", "1")
	if err != nil {
		return loop{}, err
	}
	shapes, err := j.Choice("shapes", "fixed", "varying")
	if err != nil {
		return loop{}, err
	}
	m, f, err := j.trainable()
	if err != nil {
		return loop{}, err
	}
	return loop{
		step: func(int) error {
			n := j.Spec.Batch
			if shapes == "varying" { // 8..40 of 32
				n = n/4 + j.random.IntN(n+1)
			}
			data, err := m.rows(f, n)
			if err != nil {
				return err
			}
			values := data.batch(0, n)
			if augment == "1" {
				for i, v := range values {
					if images, ok := v.([][][][]float32); ok {
						values[i] = j.augmented(images)
					}
				}
			}
			return m.train(f, values)
		},
		free: m.close,
	}, nil
}

// augmented gives new images: some mirrored, each cut out at another place (the
// edge repeats) and made a little brighter or darker.
func (j *job) augmented(images [][][][]float32) [][][][]float32 {
	const most = 16 // pixels
	result := make([][][][]float32, len(images))
	for n, image := range images {
		mirror, scale := j.random.IntN(2) == 1, 0.8+0.4*j.random.Float32()
		down, right := j.random.IntN(2*most+1)-most, j.random.IntN(2*most+1)-most
		result[n] = make([][][]float32, len(image))
		for y := range image {
			row := image[min(max(y+down, 0), len(image)-1)]
			result[n][y] = make([][]float32, len(row))
			for x := range row {
				from := x
				if mirror {
					from = len(row) - 1 - x
				}
				pixel := row[min(max(from+right, 0), len(row)-1)]
				changed := make([]float32, len(pixel))
				for c, v := range pixel {
					changed[c] = min(v*scale, 1)
				}
				result[n][y][x] = changed
			}
		}
	}
	return result
}
