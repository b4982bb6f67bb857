package data

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"

	"steadyfit/data/internal/image"
	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// ImageOptions configure how a folder of images is read. Only Size, or Height and Width, is required.
type ImageOptions struct {
	// Size is the height and width of the samples in pixels, unless Height and Width are set.
	Size          int
	Height, Width int
	// Channels is 3 for red, green and blue (also for 0), or 1 for grey.
	Channels int
	// Float makes the samples float32, from 0 to 255 with the fractions of resized pixels, as in Keras.
	// The default is uint8, rounded, with a quarter of the memory.
	Float bool
	// Classes are the names of the class folders, in the order of their numbers. Empty means all
	// sub-folders, sorted. For a validation folder, set the FieldSpec.Classes of the training folder.
	Classes []string
}

func (o ImageOptions) complete() (ImageOptions, error) {
	o.Height, o.Width = cmp.Or(o.Height, o.Size), cmp.Or(o.Width, o.Size)
	o.Channels = cmp.Or(o.Channels, 3)
	const most = 1 << 14
	switch {
	case o.Height == 0 || o.Width == 0:
		return o, &option.Error{Option: "ImageOptions.Size", Reason: "images need one size, and none is given",
			Fix: "set the height and width that the model takes", Err: errOption}
	case o.Height < 1 || o.Width < 1 || o.Height > most || o.Width > most:
		return o, &option.Error{Option: "ImageOptions.Size", Value: fmt.Sprintf("%dx%d", o.Height, o.Width),
			Reason: fmt.Sprintf("expected 1 to %d pixels each", most), Err: errOption}
	case o.Channels != 1 && o.Channels != 3:
		return o, fmt.Errorf("%d channels, expected 1 (grey) or 3 (colour): %w", o.Channels, errOption)
	}
	return o, nil
}

// imageDecoder decodes images to samples: uint8, or float32 with ImageOptions.Float. Resizing may round differently on
// another processor architecture, and decoders may change with Go's version.
type imageDecoder struct {
	options ImageOptions
	pixels  *image.Decoder
}

func newImageDecoder(o ImageOptions) (*imageDecoder, error) {
	o, err := o.complete()
	return &imageDecoder{o, &image.Decoder{Height: o.Height, Width: o.Width, Channels: o.Channels}}, err
}

func (d *imageDecoder) column() column {
	o := d.options
	kind := dtype.For[uint8]()
	if o.Float {
		kind = dtype.For[float32]()
	}
	return column{shape: []int{o.Height, o.Width, o.Channels}, width: o.Height * o.Width * o.Channels, kind: kind,
		pixels: true}
}

func (d *imageDecoder) describe() string {
	o := d.options
	text := fmt.Sprintf("images %dx%dx%d, rounded %v", o.Height, o.Width, o.Channels, !o.Float)
	if d.pixels.HasJPEG() {
		text += ", JPEG files by another decoder than Go's"
	}
	return text
}

// decode decodes an image of size bytes with the memory of a worker.
func (d *imageDecoder) decode(w *scratch, dst vector, at int, from image.Source, size int64) error {
	decoder, ok := w.state[d].(*image.Worker)
	if !ok {
		decoder = d.pixels.NewWorker()
		w.state[d] = decoder
	}
	n := d.options.Height * d.options.Width * d.options.Channels
	if to, ok := dst.(vec[uint8]); ok {
		return image.Decode(decoder, to[at:at+n], from, size)
	}
	return image.Decode(decoder, dst.(vec[float32])[at:at+n], from, size)
}

// imageTexts decodes images of a column in memory.
type imageTexts struct {
	fromFiles
	images *imageDecoder
	name   string
	parts  []filePart
	texts  vec[string]
}

func (f *imageTexts) make(w *scratch, dst vector, at, row int) error {
	if err := f.images.decode(w, dst, at, strings.NewReader(f.texts[row]), int64(len(f.texts[row]))); err != nil {
		if f.parts == nil {
			return fmt.Errorf("sample %d: %s: %w", row, f.name, err)
		}
		_, path, record := partOf(f.parts, row)
		return fmt.Errorf("%s: record %d: %s: %w", path, record, f.name, err)
	}
	return nil
}

// describe includes the content of the images.
func (f *imageTexts) describe() string {
	sum := sha256.New()
	for _, text := range f.texts {
		fmt.Fprintf(sum, "%d %s", len(text), text)
	}
	return fmt.Sprintf("%s %x", f.images.describe(), sum.Sum(nil))
}

// UseJPEG makes this dataset, and all datasets that share its images, decode JPEG files with a function, such as
// session.Session.DecodeJPEG. The function returns pixels of 1 byte (grey) or 3 bytes (colour), row by row. Several
// goroutines call it at the same time. nil, the default, means Go's decoder, whose pixels differ from TensorFlow's.
// Fingerprint depends on whether a function is set, even if no image is a JPEG file.
func (m *InMemory) UseJPEG(decode func(file []byte, channels int) (pixels []byte, width, height int, err error)) {
	for i := range m.columns {
		switch made := m.columns[i].bottom().made.(type) {
		case *classFiles:
			made.pixels.UseJPEG(decode)
		case *recordField:
			if made.image {
				made.set.images.pixels.UseJPEG(decode)
			}
		case *imageTexts:
			made.images.pixels.UseJPEG(decode)
		}
	}
}
