package data

import (
	"math"
	"strconv"
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

func (f *features) add(t *table, v float32, cell string) {
	exact := float64(v)
	if t.options.Exact && math.Abs(exact) >= 1<<24 {
		if w, err := strconv.ParseFloat(cell, 64); err == nil && w == math.Trunc(w) && math.Abs(w) < 1<<53 {
			exact = w
		}
	}
	if f.wide == nil && exact == float64(v) {
		f.narrow = added(t, f.narrow, v)
		return
	}
	if f.wide == nil {
		f.wide = make([]float64, len(f.narrow), cap(f.narrow)+1)
		for i, v := range f.narrow {
			f.wide[i] = float64(v)
		}
		f.narrow = nil
	}
	f.wide = added(t, f.wide, exact)
}

func (f *features) array(n int) Array {
	switch {
	case f.text:
		return Array{Shape: []int{n, len(f.texts) / n}, Values: compact(f.texts)}
	case f.bool:
		return Array{Shape: []int{n, len(f.bools) / n}, Values: compact(f.bools)}
	case f.wide != nil:
		return Array{Shape: []int{n, len(f.wide) / n}, Values: compact(f.wide)}
	}
	return Array{Shape: []int{n, len(f.narrow) / n}, Values: compact(f.narrow)}
}

// added appends a value. A large column gets the capacity for the whole file, since the copies that
// append makes would stay in memory until a collection.
func added[T any](t *table, column []T, v T) []T {
	const large = 1 << 14
	n := len(column)
	if n < cap(column) || n < large || t.options.size == 0 {
		return append(column, v)
	}
	// A file that another process is writing may be longer than options.size by now.
	all := max(float64(n), float64(n)*float64(t.options.size)/float64(t.lines.InputOffset()))
	if all > 4*float64(n) { // the rest of the file may be different
		all = 2 * float64(n)
	}
	longer := make([]T, n, int(1.01*all)+n/64)
	copy(longer, column)
	return append(longer, v)
}

// compact returns a column without much spare capacity.
func compact[T any](column []T) []T {
	if spare := cap(column) - len(column); spare > len(column)/32 {
		return append(make([]T, 0, len(column)), column...)
	}
	return column
}
