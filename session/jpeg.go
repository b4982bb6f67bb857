package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"steadyfit/internal/graphdef"
	"steadyfit/tfbind"
)

// jpegDecoder decodes JPEG files with TensorFlow.
type jpegDecoder struct {
	side
	file   tfbind.Output
	pixels map[int]tfbind.Output // by the number of channels
}

// DecodeJPEG decodes a JPEG file to rows of pixels of 1 (grey) or 3 (colour) bytes, with the operation
// DecodeJpeg and its defaults. The pixels therefore equal those of tf.io.decode_jpeg and of Keras'
// image_dataset_from_directory. DecodeJPEG can be the argument of data.InMemory.UseJPEG.
func (s *Session) DecodeJPEG(file []byte, channels int) (pixels []byte, width, height int, err error) {
	d := &s.jpeg
	if err := d.open(s.config, d.define); err != nil {
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
	found, err := d.tf.Run(context.Background(), tfbind.Feeds{d.file: content}, []tfbind.Output{output},
		tfbind.RunOptions{Proto: callerRuns})
	if failed := (*tfbind.Error)(nil); errors.As(err, &failed) && errors.Is(err, tfbind.ErrInvalidArgument) {
		message, _, _ := strings.Cut(failed.Message, "[[") // the operation of this package's own graph
		return nil, 0, 0, fmt.Errorf("TensorFlow: %s", strings.TrimSpace(message))
	}
	if err != nil {
		return nil, 0, 0, err
	}
	defer found.Close()
	shape := found[0].Shape() // height, width and channels
	values, err := found[0].Slice(nil)
	if err != nil {
		return nil, 0, 0, err
	}
	return values.([]byte), int(shape[1]), int(shape[0]), nil
}

func (d *jpegDecoder) define(g *graphdef.Graph) (find func()) {
	g.Placeholder("file", tfbind.String)
	name := func(channels int) string { return "decode" + strconv.Itoa(channels) }
	for _, channels := range []int{1, 3} {
		g.Add(name(channels), "DecodeJpeg", graphdef.Attrs{"channels": graphdef.Int(channels)}, "file")
	}
	return func() {
		d.file, d.pixels = d.output("file"), map[int]tfbind.Output{1: d.output(name(1)), 3: d.output(name(3))}
	}
}
