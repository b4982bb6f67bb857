package data

import (
	"cmp"
	"fmt"
	"os"

	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// ImageOptions configure how a folder of images is read. Only Size, or Height and Width, is
// required.
type ImageOptions struct {
	// Size is the height and width of the samples in pixels, unless Height and Width are set.
	Size          int
	Height, Width int
	// Channels is 3 for red, green and blue (also for 0), or 1 for grey.
	Channels int
	// KeepAspect crops each image around its centre to the proportions of the samples. The default
	// is to stretch images, as Keras' image_dataset_from_directory does.
	KeepAspect bool
	// Smooth averages all pixels that one pixel of the sample covers, with a triangle filter like
	// Pillow's BILINEAR, and rounds; it is slower for large images. The default is to interpolate
	// between the nearest four pixels, as Keras does.
	Smooth bool
	// Float makes the samples float32, from 0 to 255 with the fractions of resized pixels, as in Keras.
	// The default is uint8, rounded, with a quarter of the memory.
	Float bool
	// Classes are the names of the class folders, in the order of their numbers. Empty means all
	// sub-folders, sorted. For a validation folder, set the FieldSpec.Classes of the training folder.
	Classes []string
	// MaxPixels is the maximum number of pixels of an image; 0 means 100 million. A larger image
	// is ErrTooLarge.
	MaxPixels int
	// DecodeBytes limits the estimated memory for decoding by all workers together; 0 means
	// 256 MiB. A worker waits while its image does not fit. An image above the limit is decoded
	// while all other workers wait.
	DecodeBytes int64
	jpeg        *jpegDecoder
}

func (o ImageOptions) complete() (ImageOptions, error) {
	o.Height, o.Width = cmp.Or(o.Height, o.Size), cmp.Or(o.Width, o.Size)
	o.Channels = cmp.Or(o.Channels, 3)
	o.MaxPixels = cmp.Or(o.MaxPixels, 100_000_000)
	o.DecodeBytes = cmp.Or(o.DecodeBytes, 256<<20)
	o.jpeg = new(jpegDecoder)
	const most = 1 << 14
	switch {
	case o.Height == 0 || o.Width == 0:
		return o, &option.Error{Option: "ImageOptions.Size", Reason: "images need one size, and none is given", Fix: "set the height and width that the model takes", Err: errOption}
	case o.Height < 1 || o.Width < 1 || o.Height > most || o.Width > most:
		return o, &option.Error{Option: "ImageOptions.Size", Value: fmt.Sprintf("%dx%d", o.Height, o.Width), Reason: fmt.Sprintf("expected 1 to %d pixels each", most), Err: errOption}
	case o.Channels != 1 && o.Channels != 3:
		return o, fmt.Errorf("%d channels, expected 1 (grey) or 3 (colour): %w", o.Channels, errOption)
	case o.MaxPixels < 0 || o.DecodeBytes < 0:
		return o, fmt.Errorf("limits of %d pixels and %d bytes, expected numbers above 0, or 0 for the default: %w", o.MaxPixels, o.DecodeBytes, errOption)
	}
	return o, nil
}

// imageDecoder decodes images to samples of shape [height width channels] with values from 0 to 255:
// uint8, or float32 with ImageOptions.Float.
//
// Formats are PNG, JPEG, GIF (the first picture), WebP, BMP and TIFF. Grey and paletted images are
// converted to colour, 16-bit channels are reduced to their upper 8 bits, transparency is dropped,
// and the orientation in EXIF data is ignored, as in Keras.
//
// The pixels of JPEG files differ from those of tf.io.decode_jpeg, unless InMemory.UseJPEG sets a
// decoder with the same pixels. Resizing may round differently on another processor architecture, and
// decoders may change with Go's version.
type imageDecoder struct {
	options  ImageOptions
	decoding gate
}

func newImageDecoder(o ImageOptions) (*imageDecoder, error) {
	o, err := o.complete()
	return &imageDecoder{options: o, decoding: gate{limit: o.DecodeBytes}}, err
}

func (d *imageDecoder) kind() *fileKind { return imageKind }

func (d *imageDecoder) column() column {
	o := d.options
	return column{shape: []int{o.Height, o.Width, o.Channels}, width: o.Height * o.Width * o.Channels, kind: o.kind(), pixels: true}
}

func (d *imageDecoder) describe() string { return d.options.describe() }

func (d *imageDecoder) decode(h *hand, dst vector, at int, file *os.File, size int64) error {
	return d.paint(h, dst, at, file, size)
}

// paint decodes an image of size bytes with the painter of a worker.
func (d *imageDecoder) paint(h *hand, dst vector, at int, from imageSource, size int64) error {
	p, ok := h.kept[d].(*painter)
	if !ok {
		p = newPainter(d.options)
		h.kept[d] = p
	}
	return p.paint(dst, at, from, size, &d.decoding)
}

// kind returns the element type of the samples.
func (o ImageOptions) kind() *dtype.Type {
	if o.Float {
		return dtype.For[float32]()
	}
	return dtype.For[uint8]()
}

func (o ImageOptions) describe() string {
	text := fmt.Sprintf("images %dx%dx%d, keep aspect %v, smooth %v, rounded %v", o.Height, o.Width, o.Channels, o.KeepAspect, o.Smooth, !o.Float)
	if o.jpeg.Load() != nil {
		text += ", JPEG files by another decoder than Go's"
	}
	return text
}
