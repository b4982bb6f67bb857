package data

import (
	"bufio"
	"encoding/binary"
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
	"sync"

	"golang.org/x/image/bmp"
	"golang.org/x/image/draw"
	"golang.org/x/image/tiff"
	"golang.org/x/image/webp"
)

// imageFormat is an image format. The registry of package image is not used, since other packages
// of a program may change it.
type imageFormat struct {
	name string
	// magic is the start of every file in this format; ? stands for any byte.
	magic  string
	config func(io.Reader) (image.Config, error)
	decode func(io.Reader) (image.Image, error)
	// density is the maximum number of pixels per byte of a file; 0 means no limit. It detects a
	// false header before memory is allocated. Deflate expands a byte to at most 1032 bytes of 8
	// pixels each.
	density int64
}

var imageFormats = []imageFormat{
	{"JPEG", "\xff\xd8", jpeg.DecodeConfig, jpeg.Decode, 8256},
	{"PNG", "\x89PNG\r\n\x1a\n", png.DecodeConfig, png.Decode, 8256},
	{"GIF", "GIF8?a", gif.DecodeConfig, gif.Decode, 8256},
	// A WebP image of one colour takes almost no bits per pixel, so there is no limit.
	{"WebP", "RIFF????WEBPVP8", webp.DecodeConfig, webp.Decode, 0},
	{"BMP", "BM", bmp.DecodeConfig, bmp.Decode, 8256},
	{"TIFF", "II*\x00", tiff.DecodeConfig, tiff.Decode, 8256},
	{"TIFF", "MM\x00*", tiff.DecodeConfig, tiff.Decode, 8256},
}

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

// painter decodes image files and resizes them to samples. Only one goroutine may use a painter at a
// time.
type painter struct {
	options ImageOptions
	buffer  *bufio.Reader
	resizer resizer
	pixels  []uint8 // the memory of the method whole
	file    []byte  // the memory of the method decodeJPEG
}

// keptBytes is the maximum size of a picture whose memory is reused.
const keptBytes = 16 << 20

func newPainter(o ImageOptions) *painter {
	return &painter{options: o, buffer: bufio.NewReaderSize(nil, 64<<10)}
}

func (p *painter) width() int { return p.options.Height * p.options.Width * p.options.Channels }

type imageSource interface {
	io.Reader
	io.ReaderAt
	io.Seeker
}

// paint decodes an image of size bytes into a sample of dst, starting at index at. The gate decoding
// limits the memory of all painters together.
func (p *painter) paint(dst vector, at int, r imageSource, size int64, decoding *gate) error {
	var head [16]byte
	n, err := r.ReadAt(head[:], 0)
	if err != nil && err != io.EOF {
		return readError(err)
	}
	if n == 0 {
		return fmt.Errorf("%w: it is empty; was the download interrupted? Replace or remove it", ErrFormat)
	}
	format, ok := detect(head[:n])
	if !ok {
		return fmt.Errorf("%w: it starts with %q, unlike a PNG, JPEG, GIF, WebP, BMP or TIFF image; convert or remove it", ErrUnsupported, head[:min(n, 8)])
	}
	config, err := p.config(format, r)
	if err != nil {
		return p.broken(format, err)
	}
	switch pixels := int64(config.Width) * int64(config.Height); {
	case config.Width < 1 || config.Height < 1:
		return p.broken(format, fmt.Errorf("%dx%d pixels", config.Width, config.Height))
	case config.Width > p.options.MaxPixels/config.Height:
		return fmt.Errorf("%w: %dx%d pixels, more than the limit of %d: make it smaller, or raise the limit", ErrTooLarge, config.Width, config.Height, p.options.MaxPixels)
	case format.density > 0 && pixels/format.density > size:
		return p.broken(format, fmt.Errorf("%dx%d pixels do not fit in %d bytes", config.Width, config.Height, size))
	case format.name == "JPEG" && size > 16<<20+8*pixels:
		return fmt.Errorf("%w: a JPEG file of %d bytes with %dx%d pixels: replace or remove it", ErrTooLarge, size, config.Width, config.Height)
	}
	if p.decoder(format) != nil && p.options.Channels == 1 && config.ColorModel == color.CMYKModel {
		return fmt.Errorf("%w: a JPEG image in CMYK, which TensorFlow does not convert to grey: convert it to RGB or grey", ErrUnsupported)
	}
	cost := p.cost(format, config, r)
	if p.decoder(format) != nil {
		cost += 3 * size // the file, and TensorFlow's copies
	}
	decoding.enter(cost)
	defer decoding.leave(cost)
	if err := p.decode(dst, at, format, r, size); err != nil {
		return p.broken(format, err)
	}
	return nil
}

func (p *painter) broken(format imageFormat, err error) error {
	if errors.As(err, new(*fs.PathError)) {
		return readError(err)
	}
	return fmt.Errorf("a damaged %s image (%w): replace or remove it: %w", format.name, err, ErrFormat)
}

// readError returns the error for a read that failed with err, without the path in err.
func readError(err error) error { return fmt.Errorf("read error: %w", withoutPath(err)) }

func (p *painter) config(format imageFormat, r imageSource) (c image.Config, err error) {
	defer recovered(&err)
	from, err := p.rewind(format, r)
	if err != nil {
		return c, err
	}
	return format.config(from)
}

func (p *painter) decode(dst vector, at int, format imageFormat, r imageSource, size int64) (err error) {
	defer recovered(&err)
	from, err := p.rewind(format, r)
	if err != nil {
		return err
	}
	var picture image.Image
	if decode := p.decoder(format); decode != nil {
		picture, err = p.decodeJPEG(*decode, p.buffer, size)
	} else {
		picture, err = format.decode(from)
	}
	if err != nil {
		return err
	}
	if picture.Bounds().Empty() {
		return errors.New("no pixels")
	}
	p.draw(dst, at, picture)
	return nil
}

// rewind returns a reader at the start of the file. It is buffered except for TIFF, whose decoder
// seeks.
func (p *painter) rewind(format imageFormat, r imageSource) (io.Reader, error) {
	_, err := r.Seek(0, io.SeekStart)
	if format.name == "TIFF" {
		return r, err
	}
	p.buffer.Reset(r)
	return p.buffer, err
}

// recovered converts a panic of a decoder, which a damaged file may cause, to an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the decoder failed: %v: %w", p, ErrFormat)
	}
}

func (p *painter) cost(format imageFormat, c image.Config, r io.ReaderAt) int64 {
	perPixel := int64(4)
	switch c.ColorModel {
	case color.GrayModel:
		perPixel = 1
	case color.Gray16Model:
		perPixel = 2
	case color.YCbCrModel:
		perPixel = 3
	case color.RGBA64Model, color.NRGBA64Model:
		perPixel = 8
	}
	if _, paletted := c.ColorModel.(color.Palette); paletted {
		perPixel = 1
	}
	switch {
	case format.name == "JPEG" && progressive(r):
		perPixel *= 5 // the decoder also stores coefficients of 4 bytes
	case p.decoder(format) != nil:
		perPixel = 10 // TensorFlow's pixels, a copy, and the picture
	case format.name == "WebP":
		perPixel = 8
	}
	bytes := (perPixel + 4) * int64(c.Width) * int64(c.Height) // 4 more for the RGBA copy that is resized
	if p.options.Smooth {
		bytes += 32 * int64(p.options.Width) * int64(c.Height) // an intermediate image of four float64 per pixel
	}
	return bytes
}

// progressive reports whether the frame marker of a JPEG file says progressive.
func progressive(r io.ReaderAt) bool {
	at := int64(2)
	for range 256 {
		var segment [4]byte
		if _, err := r.ReadAt(segment[:], at); err != nil || segment[0] != 0xff {
			return false
		}
		switch segment[1] {
		case 0xc0, 0xc1:
			return false
		case 0xc2:
			return true
		case 0xff: // padding
			at++
		default:
			at += 2 + int64(binary.BigEndian.Uint16(segment[2:]))
		}
	}
	return false
}

// draw writes a picture as a sample.
func (p *painter) draw(dst vector, at int, picture image.Image) {
	picture = opaque(picture)
	from := picture.Bounds()
	if p.options.KeepAspect {
		from = centre(from, p.options.Width, p.options.Height)
	}
	if to := image.Rect(0, 0, p.options.Width, p.options.Height); p.options.Smooth && from.Size() != to.Size() {
		smooth := image.NewRGBA(to)
		draw.BiLinear.Scale(smooth, to, picture, from, draw.Src, nil)
		picture, from = smooth, to
	}
	whole, from := p.whole(picture, from)
	if p.options.Channels == 1 {
		toGrey(whole, from)
	}
	switch o := p.options; dst := dst.(type) {
	case vec[uint8]:
		resize(&p.resizer, dst[at:at+p.width()], o.Width, o.Channels, whole, from)
	case vec[float32]:
		resize(&p.resizer, dst[at:at+p.width()], o.Width, o.Channels, whole, from)
	}
}

// whole returns an RGBA image that contains a rectangle of a picture, and the place of the rectangle in
// that image.
func (p *painter) whole(picture image.Image, from image.Rectangle) (*image.RGBA, image.Rectangle) {
	if whole, ok := picture.(*image.RGBA); ok {
		return whole, from
	}
	n := 4 * from.Dx() * from.Dy()
	pixels := slices.Grow(p.pixels[:0], n)[:n]
	if n <= keptBytes {
		p.pixels = pixels
	}
	whole := &image.RGBA{Pix: pixels, Stride: 4 * from.Dx(), Rect: image.Rect(0, 0, from.Dx(), from.Dy())}
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

// centre returns the largest central part of a rectangle with the proportions width:height.
func centre(r image.Rectangle, width, height int) image.Rectangle {
	w, h := r.Dx(), r.Dy()
	if w*height > h*width {
		w = max(h*width/height, 1)
	} else {
		h = max(w*height/width, 1)
	}
	left, top := r.Min.X+(r.Dx()-w)/2, r.Min.Y+(r.Dy()-h)/2
	return image.Rect(left, top, left+w, top+h)
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

// gate limits the number of bytes in use by several goroutines.
type gate struct {
	limit int64

	mu         sync.Mutex
	free       sync.Cond
	used, peak int64
}

// enter waits until n more bytes fit in the limit, or no bytes are in use.
func (g *gate) enter(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.free.L == nil {
		g.free.L = &g.mu
	}
	for g.used > 0 && g.used+n > g.limit {
		g.free.Wait()
	}
	g.used += n
	g.peak = max(g.peak, g.used)
}

func (g *gate) leave(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used -= n
	g.free.Broadcast()
}
