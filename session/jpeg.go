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

// DecodeJPEG decodes a JPEG file to rows of pixels of 1 (grey) or 3 (colour) bytes, with the operation
// DecodeJpeg and its defaults. The pixels therefore equal those of tf.io.decode_jpeg and of Keras'
// image_dataset_from_directory. DecodeJPEG can be the argument of data.InMemory.UseJPEG.
func (s *Session) DecodeJPEG(file []byte, channels int) (pixels []byte, width, height int, err error) {
	if channels != 1 && channels != 3 {
		return nil, 0, 0, fmt.Errorf("%d channels, expected 1 or 3", channels)
	}
	d := &s.jpeg
	if err := d.open(s.config, jpegGraph); err != nil {
		return nil, 0, 0, err
	}
	input, err := d.output("file")
	output, errOutput := d.output("decode" + strconv.Itoa(channels))
	if err = errors.Join(err, errOutput); err != nil {
		return nil, 0, 0, err
	}
	content, err := tfbind.NewTensor([]string{string(file)})
	if err != nil {
		return nil, 0, 0, err
	}
	defer content.Close()
	found, err := d.tf.Run(context.Background(), tfbind.Feeds{input: content}, []tfbind.Output{output},
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

func jpegGraph() *graphdef.Graph {
	g := new(graphdef.Graph).Placeholder("file", tfbind.String)
	for _, channels := range []int{1, 3} {
		g.Add("decode"+strconv.Itoa(channels), "DecodeJpeg", graphdef.Attrs{"channels": graphdef.Int(channels)}, "file")
	}
	return g
}
