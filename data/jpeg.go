package data

import (
	"bufio"
	"fmt"
	"image"
	"io"
	"sync/atomic"
)

// decodeJPEG is the type of the argument of UseJPEG.
type decodeJPEG func(file []byte, channels int) (pixels []byte, width, height int, err error)

// UseJPEG makes this dataset, and all datasets that share its images, decode JPEG files with a
// function, such as session.Session.DecodeJPEG. The function returns pixels of 1 byte (grey) or 3 bytes
// (colour), row by row. Several goroutines call it at the same time. nil, the default, means Go's
// decoder, whose pixels differ from TensorFlow's. Fingerprint depends on whether a function is set,
// even if no image is a JPEG file.
func (m *InMemory) UseJPEG(decode func(file []byte, channels int) (pixels []byte, width, height int, err error)) {
	use := (*decodeJPEG)(&decode)
	if decode == nil {
		use = nil
	}
	for i := range m.columns {
		for c := &m.columns[i]; c != nil && c.made != nil; c = c.made.under() {
			switch made := c.made.(type) {
			case *classFiles:
				if images, ok := made.fileDecoder.(*imageDecoder); ok {
					images.options.jpeg.Store(use)
				}
			case *recordField:
				if made.image {
					made.set.images.options.jpeg.Store(use)
				}
			}
		}
	}
}

// jpegDecoder holds the function of UseJPEG, or nil if none is set.
type jpegDecoder = atomic.Pointer[decodeJPEG]

// decoder returns the function of UseJPEG for a format; nil if Go decodes it.
func (p *painter) decoder(format imageFormat) *decodeJPEG {
	if format.name != "JPEG" {
		return nil
	}
	return p.options.jpeg.Load()
}

// decodeJPEG decodes a file of size bytes with the function of UseJPEG.
func (p *painter) decodeJPEG(decode decodeJPEG, r *bufio.Reader, size int64) (image.Image, error) {
	p.file = append(p.file[:0], make([]byte, size)...)
	if _, err := io.ReadFull(r, p.file); err != nil {
		return nil, err
	}
	pixels, width, height, err := decode(p.file, p.options.Channels)
	if err != nil {
		return nil, err
	}
	at := image.Rect(0, 0, width, height)
	if len(pixels) != width*height*p.options.Channels {
		return nil, fmt.Errorf("%d bytes of pixels, expected %d for %dx%d pixels", len(pixels), width*height*p.options.Channels, width, height)
	}
	if p.options.Channels == 1 {
		return &image.Gray{Pix: pixels, Stride: width, Rect: at}, nil
	}
	picture := image.NewRGBA(at)
	for i := range width * height {
		copy(picture.Pix[4*i:], pixels[3*i:3*i+3])
		picture.Pix[4*i+3] = 0xff
	}
	return picture, nil
}
