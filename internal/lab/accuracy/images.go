package main

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"steadyfit/data"
	measuring "steadyfit/internal/lab/measure"
)

// The generated images have ten classes of equal size. An image is grey, plus the pattern of
// its class, plus smooth noise, plus noise of single pixels. Patterns and smooth noise are
// random values on a coarse grid with linear interpolation. A model can learn the task, but not
// perfectly.
const (
	imagesTrain, imagesTest = 320, 320

	imageSize, imageChannels, imageClasses = 224, 3, 10

	grid         = 8    // squares of the coarse grid in each direction
	patternScale = 0.08 // standard deviations, on a scale where black is 0 and white is 1
	smoothScale  = 0.16
	pixelScale   = 0.10

	patternSeed, trainSeed, testSeed = 1, 2, 3
)

func makeImages(dir string) error {
	return errors.Join(
		makePart(filepath.Join(dir, "train"), imagesTrain, trainSeed),
		makePart(filepath.Join(dir, "test"), imagesTest, testSeed))
}

// makePart writes x.npy (uint8 [n,224,224,3]) and then y.npy (int64 [n]). A folder with y.npy
// is complete.
func makePart(dir string, n int, seed uint64) error {
	if _, err := os.Stat(filepath.Join(dir, "y.npy")); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	x, y := images(n, seed)
	if err := measuring.WriteArray(filepath.Join(dir, "x.npy"),
		data.Array{Shape: []int{n, imageSize, imageSize, imageChannels}, Values: x}); err != nil {
		return err
	}
	return measuring.WriteArray(filepath.Join(dir, "y.npy"), data.Array{Shape: []int{n}, Values: y})
}

func images(n int, seed uint64) (x []uint8, y []int64) {
	const width = imageSize * imageSize * imageChannels
	patterns := make([][]float32, imageClasses)
	random := rand.New(rand.NewPCG(patternSeed, 0))
	for c := range patterns {
		patterns[c] = make([]float32, width)
		addSmooth(patterns[c], patternScale, random)
	}
	random = rand.New(rand.NewPCG(seed, 0))
	x, y = make([]uint8, n*width), make([]int64, n)
	values := make([]float32, width)
	for i := range n {
		c := i % imageClasses
		y[i] = int64(c)
		copy(values, patterns[c])
		addSmooth(values, smoothScale, random)
		for k, v := range values {
			v += 0.5 + float32(pixelScale*random.NormFloat64())
			x[i*width+k] = uint8(math.Round(255 * float64(min(max(v, 0), 1))))
		}
	}
	return x, y
}

// addSmooth adds normally distributed values on the grid, with linear interpolation.
func addSmooth(values []float32, scale float64, random *rand.Rand) {
	var at [grid + 1][grid + 1][imageChannels]float32
	for i := range at {
		for j := range at[i] {
			for c := range at[i][j] {
				at[i][j][c] = float32(scale * random.NormFloat64())
			}
		}
	}
	const square = imageSize / grid
	for r := range imageSize {
		i, u := r/square, float32(r%square)/square
		for s := range imageSize {
			j, v := s/square, float32(s%square)/square
			for c := range imageChannels {
				above := at[i][j][c]*(1-v) + at[i][j+1][c]*v
				below := at[i+1][j][c]*(1-v) + at[i+1][j+1][c]*v
				values[(r*imageSize+s)*imageChannels+c] += above*(1-u) + below*u
			}
		}
	}
}
