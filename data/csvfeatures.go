package data

import (
	"math"
	"strconv"
	"strings"
)

type features struct {
	name   string
	text   bool
	narrow []float32
	wide   []float64 // replaces narrow once an integer needs it
	texts  []string
	bool   bool
	bools  []bool
}

func (f *features) add(v float32, cell string, keepExact bool) {
	exact := float64(v)
	if keepExact && math.Abs(exact) >= 1<<24 {
		if w, err := strconv.ParseFloat(cell, 64); err == nil && w == math.Trunc(w) && math.Abs(w) < 1<<53 {
			exact = w
		}
	}
	if f.wide == nil && exact == float64(v) {
		f.narrow = append(f.narrow, v)
		return
	}
	if f.wide == nil {
		f.wide = make([]float64, len(f.narrow), len(f.narrow)+len(f.narrow)/4+1)
		for i, v := range f.narrow {
			f.wide[i] = float64(v)
		}
		f.narrow = nil
	}
	f.wide = append(f.wide, exact)
}

func (f *features) array(n int) Array {
	switch {
	case f.text:
		return Array{Shape: []int{n, len(f.texts) / n}, Values: f.texts}
	case f.bool:
		return Array{Shape: []int{n, len(f.bools) / n}, Values: f.bools}
	case f.wide != nil:
		return Array{Shape: []int{n, len(f.wide) / n}, Values: f.wide}
	}
	return Array{Shape: []int{n, len(f.narrow) / n}, Values: f.narrow}
}

// truth returns the value of a bool, and whether the cell is one.
func truth(cell string) (value, ok bool) {
	switch strings.ToLower(cell) {
	case "true", "1":
		return true, true
	case "false", "0":
		return false, true
	}
	return false, false
}
