package data

import (
	"image"
	"image/draw"
	"math"
	"slices"
)

// resizer resizes pictures like tf.image.resize with bilinear interpolation and half pixel centres
// (core/kernels/image/resize_bilinear_op.cc), but rounds the result to whole numbers.
type resizer struct {
	whole         []uint8 // reused
	columns, rows []blend
}

// blend interpolates between two pixels of a row or column.
type blend struct {
	lower, upper int
	share        float32 // of the upper one
}

// keptBytes is the maximum size of a picture whose memory is reused.
const keptBytes = 16 << 20

// blends appends how n pixels are made of size pixels. Each operation has the precision of TensorFlow's.
func blends(all []blend, n, size int) []blend {
	scale := float32(size) / float32(n)
	for i := range n {
		at := (float32(i)+0.5)*scale - 0.5
		floor := float32(math.Floor(float64(at)))
		lower := min(max(int(floor), 0), size-1)
		upper := min(int(math.Ceil(float64(at))), size-1)
		all = append(all, blend{lower, upper, at - floor})
	}
	return all
}

// scale writes a rectangle of a picture into dst, whose size is another.
func (z *resizer) scale(dst *image.RGBA, picture image.Image, from image.Rectangle) {
	whole, ok := picture.(*image.RGBA)
	if !ok {
		n := 4 * from.Dx() * from.Dy()
		pixels := slices.Grow(z.whole[:0], n)[:n]
		if n <= keptBytes {
			z.whole = pixels
		}
		whole = &image.RGBA{Pix: pixels, Stride: 4 * from.Dx(), Rect: image.Rect(0, 0, from.Dx(), from.Dy())}
		draw.Draw(whole, whole.Rect, picture, from.Min, draw.Src)
		from = whole.Rect
	}
	z.columns, z.rows = blends(z.columns[:0], dst.Rect.Dx(), from.Dx()), blends(z.rows[:0], dst.Rect.Dy(), from.Dy())
	for y, row := range z.rows {
		top := whole.Pix[whole.PixOffset(from.Min.X, from.Min.Y+row.lower):]
		bottom := whole.Pix[whole.PixOffset(from.Min.X, from.Min.Y+row.upper):]
		out := dst.Pix[y*dst.Stride:]
		for x, column := range z.columns {
			left, right := 4*column.lower, 4*column.upper
			for c := range 3 {
				above := between(top[left+c], top[right+c], column.share)
				below := between(bottom[left+c], bottom[right+c], column.share)
				out[4*x+c] = uint8(above + float32((below-above)*row.share) + 0.5)
			}
			out[4*x+3] = 0xff
		}
	}
}

// between interpolates two values. The conversion prevents a fused multiplication, which rounds once less.
func between(from, to uint8, share float32) float32 {
	return float32(from) + float32((float32(to)-float32(from))*share)
}
