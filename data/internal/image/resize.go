package image

import (
	"image"
	"math"
)

// resizer has the memory of the function resize, which reuses it.
type resizer struct{ columns, rows []blend }

// blend interpolates between two pixels of a row or column.
type blend struct {
	lower, upper int
	share        float32 // the weight of the upper pixel
}

// blends appends the interpolations that turn size pixels of a row or column into n pixels. Each
// operation has the same precision as in TensorFlow.
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

// resize writes the first channels of the rectangle from of a picture to the sample dst, whose rows
// have width pixels. It resizes like tf.image.resize with bilinear interpolation and half pixel centres
// (core/kernels/image/resize_bilinear_op.cc). Bytes are rounded to the nearest whole number.
func resize[T uint8 | float32](z *resizer, dst []T, width, channels int, picture *image.RGBA, from image.Rectangle) {
	height := len(dst) / (width * channels)
	half := float32(0.5)
	if one := T(1); one/2 != 0 {
		half = 0
	}
	z.columns, z.rows = blends(z.columns[:0], width, from.Dx()), blends(z.rows[:0], height, from.Dy())
	for y, row := range z.rows {
		top := picture.Pix[picture.PixOffset(from.Min.X, from.Min.Y+row.lower):]
		bottom := picture.Pix[picture.PixOffset(from.Min.X, from.Min.Y+row.upper):]
		out := dst[y*width*channels:][:width*channels]
		for x, column := range z.columns {
			left, right := 4*column.lower, 4*column.upper
			for c := range channels {
				above := between(top[left+c], top[right+c], column.share)
				below := between(bottom[left+c], bottom[right+c], column.share)
				out[x*channels+c] = T(above + float32((below-above)*row.share) + half)
			}
		}
	}
}

// between interpolates two values. The conversion prevents a fused multiply-add, which rounds only once.
func between(from, to uint8, share float32) float32 {
	return float32(from) + float32((float32(to)-float32(from))*share)
}
