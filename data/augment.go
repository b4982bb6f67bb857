package data

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"steadyfit/internal/dtype"
)

// Augmentation configures the random changes that InMemory.Augment makes to images. The zero value makes none.
type Augmentation struct {
	// Flip mirrors half of the images left to right.
	Flip bool
	// Crop shifts the image by at most this many pixels in each direction, which equals padding
	// it by Crop pixels and cropping at random. Pixels beyond an edge mirror the image.
	Crop int
	// Jitter, from 0 to 1, multiplies brightness, contrast and, for colour images, saturation by random factors between
	// 1-Jitter and 1+Jitter. The results for uint8 fields and for decoded images are clamped to 0 to 255.
	Jitter float64
	// Seed seeds the random numbers. The changes depend only on Seed, the row and the epoch.
	Seed uint64
}

// ParseAugmentation parses a comma-separated list of flip, crop:PIXELS and jitter:AMOUNT, such as
// "flip,crop:4,jitter:0.1". Seed is not part of the text. Empty text gives the zero value.
func ParseAugmentation(text string) (Augmentation, error) {
	var a Augmentation
	refuse := func(format string, args ...any) (Augmentation, error) {
		return Augmentation{}, fmt.Errorf("augmentation %s: %s; expected flip, crop:PIXELS or jitter:AMOUNT, separated by "+
			"commas, as in flip,crop:4,jitter:0.1", quote(text), fmt.Sprintf(format, args...))
	}
	if strings.TrimSpace(text) == "" {
		return a, nil
	}
	seen := make(map[string]bool)
	for part := range strings.SplitSeq(text, ",") {
		name, value, valued := strings.Cut(strings.TrimSpace(part), ":")
		if seen[name] {
			return refuse("%s is given twice", quote(name))
		}
		seen[name] = true
		switch {
		case name == "flip" && !valued:
			a.Flip = true
		case name == "flip":
			return refuse("flip takes no value, found %s", quote(value))
		case name == "crop":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return refuse("crop takes a number of pixels of at least 1, found %s", quote(value))
			}
			a.Crop = n
		case name == "jitter":
			v, err := strconv.ParseFloat(value, 64)
			if err != nil || !(v > 0 && v <= 1) {
				return refuse("jitter takes a number above 0 and up to 1, found %s", quote(value))
			}
			a.Jitter = v
		default:
			return refuse("%s is not known", quote(name))
		}
	}
	return a, nil
}

// String returns the augmentation in the format of ParseAugmentation.
func (a Augmentation) String() string {
	var parts []string
	if a.Flip {
		parts = append(parts, "flip")
	}
	if a.Crop != 0 {
		parts = append(parts, "crop:"+strconv.Itoa(a.Crop))
	}
	if a.Jitter != 0 {
		parts = append(parts, "jitter:"+strconv.FormatFloat(a.Jitter, 'g', -1, 64))
	}
	return strings.Join(parts, ",")
}

// Augment returns a dataset that changes the images of a field at random, for training. Call
// Augment after Split, so that validation images stay unchanged. Images are uint8 or float32 of
// shape [height width] or [height width channels]; Jitter needs 1 or 3 channels.
func (m *InMemory) Augment(field string, a Augmentation) (*InMemory, error) {
	c, ok := m.column(field)
	if !ok {
		return nil, m.noField(field)
	}
	refuse := func(kind error, format string, args ...any) (*InMemory, error) {
		return nil, fmt.Errorf("%s: cannot augment field %q (%s): %s: %w", m.name, field, describeField(c.kind.Name, c.shape),
			fmt.Sprintf(format, args...), kind)
	}
	if len(c.shape) != 2 && len(c.shape) != 3 {
		return refuse(ErrField, "an image has the shape [height width] or [height width channels]")
	}
	p := picture{height: c.shape[0], width: c.shape[1], channels: 1}
	if len(c.shape) == 3 {
		p.channels = c.shape[2]
	}
	if a.Crop < 0 || a.Crop > p.height || a.Crop > p.width {
		return refuse(errOption, "crop %d: expected 0 to %d, the smaller side of the images", a.Crop, min(p.height, p.width))
	}
	if !(a.Jitter >= 0 && a.Jitter <= 1) {
		return refuse(errOption, "jitter %v: expected 0 to 1", a.Jitter)
	}
	if a.Jitter > 0 && p.channels != 1 && p.channels != 3 {
		return refuse(ErrField, "jitter: images have %d channels, expected 1 or 3", p.channels)
	}
	name := fmt.Sprintf("augment %s, seed %d", a, a.Seed)
	switch c.kind {
	case dtype.For[uint8]():
		return augment(m, c, name, p, a, func(v float32) uint8 { return uint8(min(max(v, 0), 255) + 0.5) })
	case dtype.For[float32]():
		return augment(m, c, name, p, a, func(v float32) float32 {
			if c.pixels {
				v = min(max(v, 0), 255)
			}
			return v
		})
	}
	return refuse(ErrField, "images are uint8 or float32")
}

func augment[T uint8 | float32](m *InMemory, c column, name string, p picture, a Augmentation,
	to func(float32) T) (*InMemory, error) {
	m, err := mapField(m, c.name, name, c.shape, false, func(s Sample, dst, src []T) error {
		d := a.draw(s)
		move(p, d, dst, src)
		if a.Jitter > 0 {
			jitter(p, d, dst, to)
		}
		return nil
	})
	if err == nil {
		_, at, _ := m.editable(c.name) // which mapField has found
		m.columns[at].pixels = c.pixels
	}
	return m, err
}

type picture struct{ height, width, channels int }

type draws struct {
	flip                             bool
	brightness, contrast, saturation float32
	down, right                      int // rows and columns by which the image moves up and left
}

// draw draws numbers for flip and jitter even if they are disabled, so that enabling a change does not
// alter the others. The crop comes last, since it draws a varying number of numbers.
func (a Augmentation) draw(s Sample) draws {
	source := s.Random(a.Seed)
	var d draws
	d.flip = source.Uint64()>>63 == 1 && a.Flip
	for _, factor := range []*float32{&d.brightness, &d.contrast, &d.saturation} {
		unit := float64(source.Uint64()>>11) / (1 << 53)
		*factor = float32(1 + float64(a.Jitter*(2*unit-1)))
	}
	d.down, d.right = a.shift(source), a.shift(source)
	return d
}

func (a Augmentation) shift(source *rand.PCG) int {
	if a.Crop == 0 {
		return 0
	}
	return int(below(source, uint64(2*a.Crop+1))) - a.Crop
}

func move[T uint8 | float32](p picture, d draws, dst, src []T) {
	row := p.width * p.channels
	for y := range p.height {
		to := dst[y*row : (y+1)*row]
		from := src[mirror(y+d.down, p.height)*row:][:row]
		if !d.flip && d.right == 0 {
			copy(to, from)
			continue
		}
		for x := range p.width {
			at := mirror(x+d.right, p.width)
			if d.flip {
				at = p.width - 1 - at
			}
			copy(to[x*p.channels:(x+1)*p.channels], from[at*p.channels:])
		}
	}
}

// mirror returns the position in an image of n pixels for a position up to n pixels outside it:
// positions -2 to 4 of 3 pixels are 1 0 | 0 1 2 | 2 1.
func mirror(at, n int) int {
	if at < 0 {
		return -at - 1
	}
	if at >= n {
		return 2*n - at - 1
	}
	return at
}

// Weights of the colours in a grey value (ITU-R BT.601).
const red, green, blue = 0.299, 0.587, 0.114

// jitter changes brightness, then contrast around the mean grey, then saturation. Conversions to
// float32 prevent fused multiply-adds, so that every processor rounds alike.
func jitter[T uint8 | float32](p picture, d draws, image []T, to func(float32) T) {
	sum := 0.0
	if p.channels == 3 {
		for i := 0; i+2 < len(image); i += 3 {
			sum += float64(grey(float32(image[i]), float32(image[i+1]), float32(image[i+2])))
		}
	} else {
		for _, v := range image {
			sum += float64(v)
		}
	}
	mean := float32(float32(sum/float64(p.height*p.width)) * d.brightness)
	factor := float32(d.brightness * d.contrast)
	offset := float32(mean * (1 - d.contrast))
	if p.channels != 3 {
		for i, v := range image {
			image[i] = to(float32(float32(v)*factor) + offset)
		}
		return
	}
	for i := 0; i+2 < len(image); i += 3 {
		r := float32(float32(image[i])*factor) + offset
		g := float32(float32(image[i+1])*factor) + offset
		b := float32(float32(image[i+2])*factor) + offset
		rest := float32(grey(r, g, b) * (1 - d.saturation))
		image[i] = to(float32(r*d.saturation) + rest)
		image[i+1] = to(float32(g*d.saturation) + rest)
		image[i+2] = to(float32(b*d.saturation) + rest)
	}
}

func grey(r, g, b float32) float32 {
	return float32(r*red) + float32(g*green) + float32(b*blue)
}
