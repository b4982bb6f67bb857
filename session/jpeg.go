package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"steadyfit/internal/graphdef"
	"steadyfit/tfbind"
)

// jpegDecoder decodes JPEG files with TensorFlow, in a native session of its own.
type jpegDecoder struct {
	mu     sync.Mutex
	opened bool
	err    error // of open
	graph  *tfbind.Graph
	tf     *tfbind.Session
	file   tfbind.Output
	pixels map[int]tfbind.Output // by the number of channels
}

// DecodeJPEG decodes a JPEG file to rows of pixels of 1 (grey) or 3 (colour) bytes, with the operation
// DecodeJpeg and its defaults. So the pixels are those of tf.io.decode_jpeg and of Keras'
// image_dataset_from_directory. It is a data.DecodeJPEG.
func (s *Session) DecodeJPEG(file []byte, channels int) (pixels []byte, width, height int, err error) {
	d := &s.jpeg
	d.mu.Lock()
	if !d.opened {
		d.opened, d.err = true, d.open(s.config)
	}
	err = d.err
	d.mu.Unlock()
	if err != nil {
		return nil, 0, 0, err
	}
	output, ok := d.pixels[channels]
	if !ok {
		return nil, 0, 0, fmt.Errorf("%d channels, expected 1 or 3", channels)
	}
	content, err := tfbind.NewTensor([]string{string(file)})
	if err != nil {
		return nil, 0, 0, err
	}
	defer content.Close()
	found, err := d.tf.RunWith(context.Background(), tfbind.Feeds{d.file: content}, []tfbind.Output{output}, tfbind.RunOptions{Proto: callerRuns})
	if err != nil {
		return nil, 0, 0, err
	}
	defer found.Close()
	shape := found[0].Shape() // height, width and channels
	pixels, err = found[0].Raw()
	return pixels, int(shape[1]), int(shape[0]), err
}

func (d *jpegDecoder) open(config []byte) error {
	g := (&graphdef.Graph{}).Placeholder("file", tfbind.String)
	name := func(channels int) string { return "decode" + strconv.Itoa(channels) }
	for _, channels := range []int{1, 3} {
		g.Add(name(channels), "DecodeJpeg", graphdef.Attrs{"channels": graphdef.Int(channels)}, "file")
	}
	def, err := g.Bytes()
	if err != nil {
		return err
	}
	if d.graph, err = tfbind.NewGraph(); err != nil {
		return err
	}
	if err := d.graph.Import(def, ""); err != nil {
		return err
	}
	if d.file, err = d.graph.Output("file"); err != nil {
		return err
	}
	d.pixels = map[int]tfbind.Output{}
	for _, channels := range []int{1, 3} {
		if d.pixels[channels], err = d.graph.Output(name(channels)); err != nil {
			return err
		}
	}
	d.tf, err = tfbind.NewSession(d.graph, config)
	return err
}

func (d *jpegDecoder) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.opened || d.err == nil {
		d.opened, d.err = true, tfbind.ErrClosed
	}
	return errors.Join(d.tf.Close(), d.graph.Close())
}
