package data

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// repeated returns a dataset of n equal images.
func repeated[T element](t testing.TB, n int, shape []int, image []T) *InMemory {
	t.Helper()
	var values []T
	for range n {
		values = append(values, image...)
	}
	m, err := New("repeated", Field{"x", Array{append([]int{n}, shape...), values}})
	require.NoError(t, err)
	return m
}

// augmented returns the images of one pass over the augmented dataset.
func augmented[T element](t testing.TB, m *InMemory, a Augmentation, epoch int) []T {
	t.Helper()
	v, err := m.Augment("x", a)
	require.NoError(t, err)
	for b, err := range v.Workers(1).Batches(Pass{Batch: m.Len(), Epoch: epoch}) {
		require.NoError(t, err)
		return append([]T{}, b.Fields[0].Values.([]T)...)
	}
	return nil
}

// requireCount requires that got, a number of n events of probability p, differs from the mean by less
// than five standard deviations.
func requireCount(t testing.TB, n int, p float64, got int, what string) {
	t.Helper()
	require.InDelta(t, float64(n)*p, got, 5*math.Sqrt(float64(n)*p*(1-p)), what)
}

func TestFlipMirrorsHalf(t *testing.T) {
	const n = 4000
	m := repeated(t, n, []int{2, 3}, []uint8{1, 2, 3, 4, 5, 6})
	for epoch := range 3 {
		got := augmented[uint8](t, m, Augmentation{Flip: true, Seed: 1}, epoch)
		flips := 0
		for i := range n {
			switch image := fmt.Sprint(got[6*i : 6*i+6]); image {
			case "[3 2 1 6 5 4]":
				flips++
			case "[1 2 3 4 5 6]":
			default:
				t.Fatal(image)
			}
		}
		requireCount(t, n, 0.5, flips, "flips")
	}
	// Over many epochs, half of the changes to one sample are flips.
	one := repeated(t, 1, []int{1, 2}, []uint8{1, 2})
	flips := 0
	for epoch := range 1000 {
		if augmented[uint8](t, one, Augmentation{Flip: true}, epoch)[0] == 2 {
			flips++
		}
	}
	requireCount(t, 1000, 0.5, flips, "flips of one sample")
}

//lane:skip race (one goroutine)
func TestCropsAreUniform(t *testing.T) {
	const n, crop, side = 10_000, 2, 8
	image := make([]uint8, side*side)
	for i := range image {
		image[i] = uint8(i)
	}
	got := augmented[uint8](t, repeated(t, n, []int{side, side, 1}, image), Augmentation{Crop: crop, Seed: 3}, 0)
	found := make(map[[2]int]int)
	for i := range n {
		at := got[i*side*side:][:side*side]
		centre := int(at[4*side+4])
		down, right := centre/side-4, centre%side-4
		found[[2]int{down, right}]++
		for y := range side {
			for x := range side {
				want := mirror(y+down, side)*side + mirror(x+right, side)
				require.EqualValues(t, want, at[y*side+x])
			}
		}
	}
	require.Len(t, found, (2*crop+1)*(2*crop+1))
	for position, count := range found {
		requireCount(t, n, 1.0/25, count, fmt.Sprint(position))
	}
}

func TestMirror(t *testing.T) {
	var got []int
	for at := -3; at < 6; at++ {
		got = append(got, mirror(at, 3))
	}
	require.Equal(t, []int{2, 1, 0, 0, 1, 2, 2, 1, 0}, got)
}

func TestJitter(t *testing.T) {
	const n = 4000
	// An image of one grey level has no contrast and no saturation.
	flat := augmented[float32](t, repeated(t, n, []int{1, 2, 3}, []float32{100, 100, 100, 100, 100, 100}),
		Augmentation{Jitter: 0.2, Seed: 1}, 0)
	var bins [10]int
	for i := range n {
		v := flat[6*i]
		for _, other := range flat[6*i : 6*i+6] {
			require.InDelta(t, v, other, 1e-3)
		}
		require.True(t, v > 79.99 && v < 120.01, "%v", v)
		bins[min(max(int((v-80)/4), 0), 9)]++
	}
	for _, count := range bins {
		requireCount(t, n, 0.1, count, "a tenth of the range")
	}
	// Contrast changes keep the mean of two grey levels, relative to the brightness.
	two := augmented[float32](t, repeated(t, n, []int{1, 2}, []float32{50, 150}), Augmentation{Jitter: 0.2, Seed: 1}, 0)
	sum := 0.0
	for i := range n {
		mean := float64(two[2*i]+two[2*i+1]) / 2
		require.InDelta(t, flat[6*i], mean, 1e-3, "the draw of the brightness")
		contrast := float64(two[2*i+1]-two[2*i]) / mean
		require.True(t, contrast > 0.799 && contrast < 1.201, "%v", contrast)
		sum += contrast
	}
	require.InDelta(t, 1, sum/n, 5*0.4/math.Sqrt(12*n))
	// uint8 results are clamped to 0 to 255.
	bytes := augmented[uint8](t, repeated(t, 200, []int{1, 2, 3}, []uint8{0, 0, 255, 255, 255, 255}),
		Augmentation{Jitter: 1, Seed: 1}, 0)
	require.Contains(t, bytes, uint8(255))
	require.Contains(t, bytes, uint8(0))
	// A saturation of 0 gives grey, and 1 leaves the image unchanged.
	image := []float32{10, 20, 30, 200, 100, 50}
	jitter(picture{1, 2, 3}, draws{brightness: 1, contrast: 1, saturation: 1}, image, func(v float32) float32 { return v })
	require.InDeltaSlice(t, []float32{10, 20, 30, 200, 100, 50}, image, 1e-4)
	jitter(picture{1, 2, 3}, draws{brightness: 1, contrast: 1, saturation: 0}, image, func(v float32) float32 { return v })
	require.InDelta(t, 0.299*10+0.587*20+0.114*30, image[0], 1e-4)
	require.Equal(t, image[0], image[2])
}

// Enabling a change does not alter the draws of other changes.
func TestDrawsAreIndependent(t *testing.T) {
	all := Augmentation{Flip: true, Crop: 3, Jitter: 0.5, Seed: 11}
	for row := range 200 {
		s := Sample{Row: row, Epoch: row % 3}
		d := all.draw(s)
		require.Equal(t, d.flip, Augmentation{Flip: true, Seed: 11}.draw(s).flip)
		shift := Augmentation{Crop: 3, Seed: 11}.draw(s)
		require.Equal(t, []int{d.down, d.right}, []int{shift.down, shift.right})
		require.Equal(t, d.brightness, Augmentation{Jitter: 0.5, Seed: 11}.draw(s).brightness)
		require.Equal(t, draws{brightness: 1, contrast: 1, saturation: 1}, Augmentation{Seed: 11}.draw(s))
	}
}

// A training that is resumed years later must draw the same numbers (see shuffleOrder).
func TestDrawsGolden(t *testing.T) {
	a := Augmentation{Flip: true, Crop: 4, Jitter: 0.1, Seed: 42}
	var got []string
	for _, s := range []Sample{{0, 0}, {1, 0}, {0, 1}, {1 << 40, 7}} {
		got = append(got, fmt.Sprintf("%+v", a.draw(s)))
	}
	require.Equal(t, []string{
		"{flip:false brightness:1.0717928 contrast:1.0480949 saturation:1.0698177 down:3 right:0}",
		"{flip:true brightness:0.9767514 contrast:0.9917993 saturation:0.9469829 down:4 right:2}",
		"{flip:true brightness:0.9006617 contrast:0.97663915 saturation:0.98234683 down:-4 right:4}",
		"{flip:true brightness:1.0270647 contrast:1.0365214 saturation:0.9988527 down:-4 right:2}",
	}, got)
}

func TestAugmentRefuses(t *testing.T) {
	m, err := New("set",
		Field{"flat", Array{[]int{1, 64}, make([]uint8, 64)}}, Field{"x", Array{[]int{1, 4, 6, 3}, make([]uint8, 72)}},
		Field{"two", Array{[]int{1, 4, 4, 2}, make([]uint8, 32)}}, Field{"long", Array{[]int{1, 4, 4}, make([]int64, 16)}})
	require.NoError(t, err)
	for _, c := range []struct {
		field string
		a     Augmentation
		kind  error
		says  string
	}{
		{"z", Augmentation{}, ErrField, `no field "z"`},
		{"flat", Augmentation{Flip: true}, ErrField, "[height width]"},
		{"long", Augmentation{Flip: true}, ErrField, "uint8 or float32"},
		{"x", Augmentation{Crop: 5}, errOption, "crop 5: expected 0 to 4"},
		{"x", Augmentation{Crop: -1}, errOption, "crop -1"},
		{"x", Augmentation{Jitter: 1.5}, errOption, "jitter 1.5"},
		{"x", Augmentation{Jitter: math.NaN()}, errOption, "jitter NaN"},
		{"two", Augmentation{Jitter: 0.1}, ErrField, "2 channels"},
	} {
		_, err := m.Augment(c.field, c.a)
		require.ErrorIs(t, err, c.kind)
		require.ErrorContains(t, err, c.says)
	}
	_, err = m.Augment("two", Augmentation{Flip: true, Crop: 4})
	require.NoError(t, err)
}

func TestParseAugmentation(t *testing.T) {
	for text, want := range map[string]Augmentation{
		"":                          {},
		" ":                         {},
		"flip":                      {Flip: true},
		"crop:4":                    {Crop: 4},
		"jitter:0.1, flip , crop:8": {Flip: true, Crop: 8, Jitter: 0.1},
		"jitter:1":                  {Jitter: 1},
	} {
		got, err := ParseAugmentation(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	require.Equal(t, "flip,crop:4,jitter:0.1", Augmentation{Flip: true, Crop: 4, Jitter: 0.1, Seed: 9}.String())
	for text, says := range map[string]string{
		"flip,": `"" is not known`, "rotate:3": `"rotate" is not known`, "flip:2": "takes no value", "flip,flip": "twice",
		"crop": "number of pixels", "crop:0": "number of pixels", "crop:x": "number of pixels", "jitter:2": "above 0",
		"jitter:-1": "above 0", "jitter:NaN": "above 0",
	} {
		_, err := ParseAugmentation(text)
		require.ErrorContains(t, err, says, text)
		require.ErrorContains(t, err, "as in flip,crop:4,jitter:0.1")
	}
}

func FuzzParseAugmentation(f *testing.F) {
	for _, text := range []string{"flip,crop:4,jitter:0.1", "", "flip", "crop:-1", "jitter:1e-300", "jitter:0x1p-3",
		"crop:99999999999999999999", ",,"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseAugmentation(text)
		if err != nil {
			require.Equal(t, Augmentation{}, a)
			return
		}
		require.True(t, a.Crop >= 0 && a.Jitter >= 0 && a.Jitter <= 1)
		again, err := ParseAugmentation(a.String())
		require.NoError(t, err)
		require.Equal(t, a, again)
		require.False(t, strings.Contains(a.String(), " "))
	})
}
