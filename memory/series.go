package memory

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// defaultKeep is the default of Series.Keep.
const defaultKeep = 2048

// minimumKeep is the minimum of Series.Keep. It leaves enough samples for a verdict.
const minimumKeep = 64

// errSeries means that a JSON text is not a series.
var errSeries = errors.New("not a series of memory samples")

// Series holds the samples of one run in the order of time. It is for one goroutine at a time.
//
// The memory of a series is bounded: 32 bytes per sample, allocated with the first one, and 8 bytes
// per sample and layer, allocated when a layer first appears. The pages of both are resident from
// then on. A full series drops one of each two neighbours, chosen at random with a fixed seed, and
// then stores one of each 2, 4, 8 ... new samples. Slopes and levels stay unbiased, noise keeps its
// shape, and a sawtooth does not become a slow wave. The first and the latest sample always remain.
// [Series.Max] covers all samples.
type Series struct {
	// Keep is the maximum number of stored samples; at least 64, and 0 means 2048. It must
	// not change after the first sample.
	Keep int

	layers []Layer
	steps  []int
	times  []time.Time
	// columns has the values of all rows for each layer, and high the largest value.
	columns [][]int64
	high    []int64

	total    int // number of appended samples
	stride   int // one of stride samples is stored; a power of 2
	position int // position of the next sample in its stride
	chosen   int // position of the sample to store
	random   *rand.Rand
	// passing means that the last row is the latest sample but was not chosen, so the next sample replaces it.
	passing bool
}

// absent stands for an unknown value. It differs from 0 so that filling a new column makes its
// pages resident.
const absent = math.MinInt64

// Append adds a copy of a sample. A sample older than the latest one is ignored.
func (s *Series) Append(sample *Sample) {
	if s.stride == 0 {
		s.begin()
	}
	row := len(s.steps)
	if row > 0 && (sample.Step < s.steps[row-1] || sample.At.Before(s.times[row-1])) {
		return
	}
	if s.passing {
		row--
	}
	s.steps, s.times = append(s.steps[:row], sample.Step), append(s.times[:row], sample.At)
	for _, c := range s.columns {
		c[row] = absent
	}
	for i := range sample.Values {
		v := &sample.Values[i]
		column := s.column(v.Layer)
		if v.Reading.OK {
			s.columns[column][row] = int64(v.Reading.Bytes)
			s.high[column] = max(s.high[column], int64(v.Reading.Bytes))
		}
	}
	s.total++
	s.passing = s.position != s.chosen
	if s.position++; s.position == s.stride {
		s.position, s.chosen = 0, s.random.IntN(s.stride)
	}
	if !s.passing && len(s.steps) == s.Keep {
		s.thin()
	}
}

// reserve allocates the columns of a sample in advance, so that they do not appear as growth.
func (s *Series) reserve(sample *Sample) {
	if s.stride == 0 {
		s.begin()
	}
	for i := range sample.Values {
		s.column(sample.Values[i].Layer)
	}
}

func (s *Series) begin() {
	s.Keep = max(cmp.Or(s.Keep, defaultKeep), minimumKeep)
	s.Keep += s.Keep % 2
	s.stride = 1
	s.random = rand.New(rand.NewPCG(1, 2))
	s.steps, s.times = resident[int](s.Keep), resident[time.Time](s.Keep)
}

// resident returns an empty slice of a capacity whose pages are resident, so that a series does not
// measure its own memory as growth.
func resident[T any](capacity int) []T {
	values := make([]T, capacity)
	clear(values) // make leaves new pages untouched
	return values[:0]
}

// column returns the index of the column of a layer, which it adds if necessary.
func (s *Series) column(layer Layer) int {
	i := slices.Index(s.layers, layer)
	if i < 0 {
		i = len(s.layers)
		values := make([]int64, s.Keep)
		for j := range values {
			values[j] = absent
		}
		s.layers, s.columns, s.high = append(s.layers, layer), append(s.columns, values), append(s.high, absent)
	}
	return i
}

// thin drops one of each two neighbouring rows.
func (s *Series) thin() {
	newest := len(s.steps) - 1
	kept, from := 0, 0
	keep := func(row int) {
		s.steps[kept], s.times[kept] = s.steps[row], s.times[row]
		for _, c := range s.columns {
			c[kept] = c[row]
		}
		kept++
	}
	for pair := 0; pair < newest; pair += 2 {
		if from = pair; pair > 0 {
			from += s.random.IntN(2)
		}
		keep(from)
	}
	if s.passing = from < newest; s.passing {
		keep(newest)
	}
	s.steps, s.times = s.steps[:kept], s.times[:kept]
	s.stride *= 2
	s.position, s.chosen = 0, s.random.IntN(s.stride)
}

// Total returns the number of samples appended.
func (s *Series) Total() int { return s.total }

// Samples returns copies of the stored samples.
func (s *Series) Samples() []Sample {
	list := make([]Sample, len(s.steps))
	for row := range list {
		list[row] = Sample{Step: s.steps[row], At: s.times[row], Values: make([]Value, len(s.layers))}
		for i, layer := range s.layers {
			list[row].Values[i] = Value{layer, reading(s.columns[i][row])}
		}
	}
	return list
}

// reading returns the reading of a value in a column.
func reading(v int64) Reading {
	if v == absent {
		return Reading{}
	}
	return Known(Bytes(v))
}

// Thin returns a copy with at most samples samples, evenly spread from the first to the latest. Thin
// applies edit to each of these samples, and to the maximum of each layer. Times are
// rounded to tenths of a second.
func (s *Series) Thin(samples int, edit func(Sample) Sample) *Series {
	all := s.Samples()
	n := min(len(all), max(samples, 0))
	out := &Series{Keep: max(2*n, minimumKeep)}
	for i := range n {
		sample := all[i*(len(all)-1)/max(n-1, 1)]
		sample.At = time.Time{}.Add(sample.At.Sub(all[0].At).Round(time.Second / 10))
		sample = edit(sample)
		out.Append(&sample)
	}
	out.total = s.total
	for i, layer := range out.layers {
		high := edit(Sample{Values: []Value{{layer, s.Max(layer)}}})
		out.high[i] = int64(high.Get(layer).Bytes)
	}
	return out
}

// Max returns the largest value of a layer in all appended samples.
func (s *Series) Max(layer Layer) Reading {
	if i := slices.Index(s.layers, layer); i >= 0 {
		return reading(s.high[i])
	}
	return Reading{}
}

// points returns the known values of a layer over steps, or over minutes since the first sample. x
// increases strictly.
func (s *Series) points(layer Layer, perMinute bool) (x, y []float64) {
	column := slices.Index(s.layers, layer)
	if column < 0 {
		return nil, nil
	}
	for row, step := range s.steps {
		position := float64(step)
		if perMinute {
			position = s.times[row].Sub(s.times[0]).Minutes()
		}
		if v := s.columns[column][row]; v != absent && (len(x) == 0 || position > x[len(x)-1]) {
			x, y = append(x, position), append(y, float64(v))
		}
	}
	return x, y
}

type seriesJSON struct {
	Samples int                `json:"samples"`
	Start   time.Time          `json:"start"`
	Steps   []int              `json:"steps"`
	Seconds []float64          `json:"seconds"`
	Layers  map[Layer][]*int64 `json:"layers"`
	Max     map[Layer]int64    `json:"max"`
}

// MarshalJSON writes columns: "steps" and "seconds" since "start" have one entry per stored sample, and
// "layers" has one list per layer, with null for unknown values. "samples" is the number of samples
// appended; "max" covers all of them.
func (s *Series) MarshalJSON() ([]byte, error) {
	j := seriesJSON{Samples: s.total, Steps: append([]int{}, s.steps...), Seconds: []float64{},
		Layers: map[Layer][]*int64{}, Max: map[Layer]int64{}}
	for _, at := range s.times {
		j.Start = s.times[0]
		// Microseconds are finer than the precision of sampling.
		j.Seconds = append(j.Seconds, math.Round(at.Sub(j.Start).Seconds()*1e6)/1e6)
	}
	for i, layer := range s.layers {
		values := make([]*int64, len(s.steps))
		for row := range values {
			if v := &s.columns[i][row]; *v != absent {
				values[row] = v
			}
		}
		j.Layers[layer] = values
		if s.high[i] != absent {
			j.Max[layer] = s.high[i]
		}
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads the output of MarshalJSON. Lists of different lengths are an error.
func (s *Series) UnmarshalJSON(text []byte) error {
	var j seriesJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return fmt.Errorf("%w: %w", errSeries, err)
	}
	n := len(j.Steps)
	layers := make([]Layer, 0, len(j.Layers))
	for layer, values := range j.Layers {
		if len(values) != n {
			return fmt.Errorf("%w: %d steps but %d values of %s", errSeries, n, len(values), layer)
		}
		layers = append(layers, layer)
	}
	if len(j.Seconds) != n || j.Samples < n {
		return fmt.Errorf("%w: %d steps, %d times, %d samples", errSeries, n, len(j.Seconds), j.Samples)
	}
	slices.SortFunc(layers, cmp.Compare[Layer])
	// A file may contain thousands of series, so little spare capacity is reserved.
	*s = Series{Keep: min(max(2*n, minimumKeep), max(defaultKeep, n+1))}
	sample := Sample{Values: make([]Value, len(layers))}
	for row := range n {
		sample.Step = j.Steps[row]
		sample.At = j.Start.Add(time.Duration(math.Round(j.Seconds[row] * 1e9)))
		for i, layer := range layers {
			sample.Values[i] = Value{Layer: layer}
			if v := j.Layers[layer][row]; v != nil {
				sample.Values[i].Reading = Known(Bytes(*v))
			}
		}
		s.Append(&sample)
	}
	s.total = j.Samples
	for i, layer := range s.layers {
		if v, ok := j.Max[layer]; ok {
			s.high[i] = max(s.high[i], v)
		}
	}
	return nil
}
