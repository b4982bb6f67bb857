// Package image decodes image files and resizes them to samples.
//
// Formats are PNG, JPEG, GIF (the first picture), WebP and BMP. Grey and paletted images are
// converted to colour, 16-bit channels are reduced to their upper 8 bits, transparency is dropped,
// and the orientation in EXIF data is ignored, as in Keras.
//
// Decoding takes at most about 256 MiB, whatever the number of goroutines: a worker waits while its image
// does not fit, and a larger image is decoded while all other workers wait.
package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"io"
	"io/fs"
	"slices"
	"sync/atomic"

	"golang.org/x/image/bmp"
	"golang.org/x/image/draw"
	"golang.org/x/image/webp"
	"golang.org/x/sync/semaphore"

	"steadyfit/data/internal/fault"
)

const (
	maxPixels   = 100_000_000 // of an image
	decodeBytes = 256 << 20   // of all images that are decoded at a time
)

// decoding limits the memory of all decoders to decodeBytes.
var decoding = semaphore.NewWeighted(decodeBytes)

// imageFormat is an image format. The registry of package image is not used, since other packages
// of a program may change it.
type imageFormat struct {
	name string
	// magic is the start of every file in this format; ? stands for any byte.
	magic  string
	config func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
}

var imageFormats = []imageFormat{
	{"JPEG", "\xff\xd8", jpeg.DecodeConfig, jpeg.Decode},
	{"PNG", "\x89PNG\r\n\x1a\n", png.DecodeConfig, png.Decode},
	{"GIF", "GIF8?a", gif.DecodeConfig, gif.Decode},
	{"WebP", "RIFF????WEBPVP8", webp.DecodeConfig, webp.Decode},
	{"BMP", "BM", bmp.DecodeConfig, bmp.Decode},
}

// detect returns the format of an image that begins with head.
func detect(head []byte) (imageFormat, bool) {
	for _, f := range imageFormats {
		fits := len(head) >= len(f.magic)
		for i := 0; fits && i < len(f.magic); i++ {
			fits = f.magic[i] == '?' || f.magic[i] == head[i]
		}
		if fits {
			return f, true
		}
	}
	return imageFormat{}, false
}

// IsImage reports whether a file that begins with head is an image.
func IsImage(head []byte) bool {
	_, ok := detect(head)
	return ok
}

// JPEG is a function that decodes JPEG files to pixels of 1 byte (grey) or 3 bytes (colour), row by row.
type JPEG func(file []byte, channels int) (pixels []byte, width, height int, err error)

// Decoder decodes images to samples of shape [Height Width Channels] with values from 0 to 255. It is safe
// for concurrent use.
type Decoder struct {
	Height, Width int
	Channels      int // 3, or 1 for grey

	jpeg atomic.Pointer[JPEG]
}

// UseJPEG sets the function that decodes JPEG files; nil means Go's decoder.
func (d *Decoder) UseJPEG(decode JPEG) {
	if d.jpeg.Store(nil); decode != nil {
		d.jpeg.Store(&decode)
	}
}

// HasJPEG reports whether UseJPEG has set a function.
func (d *Decoder) HasJPEG() bool { return d.jpeg.Load() != nil }

// Worker has the memory with which one goroutine at a time decodes images.
type Worker struct {
	of      *Decoder
	buffer  *bufio.Reader
	resizer resizer
	pixels  []uint8 // the memory of the method whole
	file    []byte  // the memory of the method decodeJPEG
}

// NewWorker returns the memory for a goroutine.
func (d *Decoder) NewWorker() *Worker {
	return &Worker{of: d, buffer: bufio.NewReaderSize(nil, 64<<10)}
}

// Source is the content of an image.
type Source interface {
	io.Reader
	io.ReaderAt
	io.Seeker
}

// Decode decodes an image of size bytes into a sample. Bytes are rounded to the nearest whole number, and
// floats have the fractions of resized pixels.
func Decode[T uint8 | float32](w *Worker, sample []T, from Source, size int64) error {
	format, config, err := w.identify(from, size)
	if err != nil {
		return err
	}
	cost := min(w.cost(format, config, size), decodeBytes) // a larger image is decoded alone
	if err := decoding.Acquire(context.Background(), cost); err != nil {
		return err
	}
	defer decoding.Release(cost)
	picture, err := w.decode(format, from, size)
	if err != nil {
		return broken(format, err)
	}
	write(w, sample, picture)
	return nil
}

// write resizes a picture to a sample.
func write[T uint8 | float32](w *Worker, sample []T, picture image.Image) {
	picture = opaque(picture)
	whole, place := w.whole(picture, picture.Bounds())
	if w.of.Channels == 1 {
		toGrey(whole, place)
	}
	resize(&w.resizer, sample, w.of.Width, w.of.Channels, whole, place)
}

// identify returns the format and the size of an image that can be decoded.
func (w *Worker) identify(from Source, size int64) (format imageFormat, config image.Config, err error) {
	var head [16]byte
	n, err := from.ReadAt(head[:], 0)
	if err != nil && err != io.EOF {
		return format, config, fault.Read(err)
	}
	if n == 0 {
		return format, config, fmt.Errorf("%w: it is empty; was the download interrupted? Replace or remove it",
			fault.ErrFormat)
	}
	format, ok := detect(head[:n])
	if !ok {
		return format, config, fmt.Errorf("%w: it starts with %q, unlike a PNG, JPEG, GIF, WebP or BMP image; "+
			"convert or remove it", fault.ErrUnsupported, head[:min(n, 8)])
	}
	if config, err = w.config(format, from); err != nil {
		return format, config, broken(format, err)
	}
	switch {
	case config.Width < 1 || config.Height < 1:
		err = broken(format, fmt.Errorf("%dx%d pixels", config.Width, config.Height))
	case config.Width > maxPixels/config.Height:
		err = fmt.Errorf("%w: %dx%d pixels, more than the limit of %d: make it smaller", fault.ErrTooLarge, config.Width,
			config.Height, maxPixels)
	case w.decoder(format) != nil && w.of.Channels == 1 && config.ColorModel == color.CMYKModel:
		err = fmt.Errorf("%w: a JPEG image in CMYK, which TensorFlow does not convert to grey: convert it to RGB or grey",
			fault.ErrUnsupported)
	}
	return format, config, err
}

func broken(format imageFormat, err error) error {
	if errors.As(err, new(*fs.PathError)) {
		return fault.Read(err)
	}
	return fmt.Errorf("a damaged %s image (%w): replace or remove it: %w", format.name, err, fault.ErrFormat)
}

func (w *Worker) config(format imageFormat, r Source) (c image.Config, err error) {
	defer fault.Recovered(&err)
	from, err := w.rewind(r)
	if err != nil {
		return c, err
	}
	return format.config(from)
}

func (w *Worker) decode(format imageFormat, r Source, size int64) (picture image.Image, err error) {
	defer fault.Recovered(&err)
	from, err := w.rewind(r)
	if err != nil {
		return nil, err
	}
	if decode := w.decoder(format); decode != nil {
		picture, err = w.decodeJPEG(*decode, w.buffer, size)
	} else {
		picture, err = format.decode(from)
	}
	if err == nil && picture.Bounds().Empty() {
		err = errors.New("no pixels")
	}
	return picture, err
}

// rewind returns a buffered reader at the start of the file.
func (w *Worker) rewind(r Source) (io.Reader, error) {
	_, err := r.Seek(0, io.SeekStart)
	w.buffer.Reset(r)
	return w.buffer, err
}

// decoder returns the function of UseJPEG for a format; nil if Go decodes it.
func (w *Worker) decoder(format imageFormat) *JPEG {
	if format.name != "JPEG" {
		return nil
	}
	return w.of.jpeg.Load()
}

// decodeJPEG decodes a file of size bytes with the function of UseJPEG.
func (w *Worker) decodeJPEG(decode JPEG, r *bufio.Reader, size int64) (image.Image, error) {
	w.file = append(w.file[:0], make([]byte, size)...)
	if _, err := io.ReadFull(r, w.file); err != nil {
		return nil, err
	}
	pixels, width, height, err := decode(w.file, w.of.Channels)
	if err != nil {
		return nil, err
	}
	at := image.Rect(0, 0, width, height)
	if len(pixels) != width*height*w.of.Channels {
		return nil, fmt.Errorf("%d bytes of pixels, expected %d for %dx%d pixels", len(pixels), width*height*w.of.Channels,
			width, height)
	}
	if w.of.Channels == 1 {
		return &image.Gray{Pix: pixels, Stride: width, Rect: at}, nil
	}
	picture := image.NewRGBA(at)
	for i := range width * height {
		copy(picture.Pix[4*i:], pixels[3*i:3*i+3])
		picture.Pix[4*i+3] = 0xff
	}
	return picture, nil
}

// cost estimates the memory for decoding an image, with the copy that is resized.
func (w *Worker) cost(format imageFormat, c image.Config, size int64) int64 {
	perPixel, more := int64(12), int64(0) // pixels of 16 bits per channel
	switch {
	case w.decoder(format) != nil:
		perPixel, more = 14, 3*size // TensorFlow's pixels, a copy, the picture, the file and its copies
	case format.name == "JPEG":
		perPixel = 20 // a progressive image also has coefficients of 4 bytes
	}
	return perPixel*int64(c.Width)*int64(c.Height) + more
}

// whole returns an RGBA image that contains a rectangle of a picture, and the place of the rectangle in that image.
func (w *Worker) whole(picture image.Image, from image.Rectangle) (*image.RGBA, image.Rectangle) {
	if whole, ok := picture.(*image.RGBA); ok {
		return whole, from
	}
	n := 4 * from.Dx() * from.Dy()
	w.pixels = slices.Grow(w.pixels[:0], n)[:n]
	whole := &image.RGBA{Pix: w.pixels, Stride: 4 * from.Dx(), Rect: image.Rect(0, 0, from.Dx(), from.Dy())}
	draw.Draw(whole, whole.Rect, picture, from.Min, draw.Src)
	return whole, whole.Rect
}

// toGrey replaces the first channel of a rectangle of a picture by the grey of its pixels.
func toGrey(picture *image.RGBA, of image.Rectangle) {
	for y := of.Min.Y; y < of.Max.Y; y++ {
		for c := range slices.Chunk(picture.Pix[picture.PixOffset(of.Min.X, y):][:4*of.Dx()], 4) {
			// tf.io.decode_png uses this formula of libpng, which truncates the result.
			c[0] = uint8((9797*uint32(c[0]) + 19234*uint32(c[1]) + 3737*uint32(c[2])) >> 15)
		}
	}
}

// opaque removes transparency without changing the colours. It may modify the image.
func opaque(picture image.Image) image.Image {
	switch m := picture.(type) {
	case *image.NRGBA:
		for i := 3; i < len(m.Pix); i += 4 {
			m.Pix[i] = 0xff
		}
	case *image.NRGBA64:
		for i := 6; i+1 < len(m.Pix); i += 8 {
			m.Pix[i], m.Pix[i+1] = 0xff, 0xff
		}
	case *image.NYCbCrA:
		return &m.YCbCr
	case *image.Paletted:
		palette := make(color.Palette, len(m.Palette))
		for i, c := range m.Palette {
			plain := color.NRGBAModel.Convert(c).(color.NRGBA)
			plain.A = 0xff
			palette[i] = plain
		}
		m.Palette = palette
	}
	return picture
}
