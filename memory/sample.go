package memory

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Layer names an amount of a [Sample]. The name determines the unit: names that end in " count" are
// counts, names that end in " time" are nanoseconds, and all other amounts are bytes.
//
// A [Source] may add any layer. [Series.Judge] derives the cause of growth from these: "malloc in use",
// "malloc free", "live native bytes" and "live native count" (native objects that are not released).
type Layer string

// Layers that a program may judge or add. A [Sampler] adds further ones: of /proc/PID/status ("file",
// "shared memory", "swap", "peak rss", "thread count"), of the Go runtime of this process ("go heap", "go heap
// live", "go total", "waiting cleanup count", "gc cycle count", "goroutine count"), and "step time".
const (
	RSS  Layer = "rss"  // resident memory: anonymous memory, pages of files, and shared memory
	Anon Layer = "anon" // anonymous memory: heaps and stacks

	MallocUsed Layer = "malloc in use" // allocated by the program
	MallocFree Layer = "malloc free"   // free, but not returned to the system
)

// Sample is the memory of a process at one moment.
type Sample struct {
	// Step is the number of steps done, counted by the caller.
	Step int
	At   time.Time
	// Values has an entry for each sampled layer, including layers with an unknown reading.
	Values []Value
}

// Value is the reading of one layer.
type Value struct {
	Layer   Layer
	Reading Reading
}

// Get returns the reading of a layer. A layer that is not in the sample is unknown.
func (s *Sample) Get(layer Layer) Reading {
	for i := range s.Values {
		if s.Values[i].Layer == layer {
			return s.Values[i].Reading
		}
	}
	return Reading{}
}

// Set adds or replaces the reading of a layer.
func (s *Sample) Set(layer Layer, r Reading) {
	for i := range s.Values {
		if s.Values[i].Layer == layer {
			s.Values[i].Reading = r
			return
		}
	}
	s.Values = append(s.Values, Value{layer, r})
}

type sampleJSON struct {
	Step   int              `json:"step"`
	At     time.Time        `json:"at"`
	Values map[Layer]*Bytes `json:"values"`
}

// MarshalJSON writes {"step": 3, "at": RFC 3339, "values": {"rss": 1024, "pss": null}}. null means
// unknown.
func (s Sample) MarshalJSON() ([]byte, error) {
	j := sampleJSON{s.Step, s.At, make(map[Layer]*Bytes, len(s.Values))}
	for i := range s.Values {
		v := &s.Values[i]
		if j.Values[v.Layer] = nil; v.Reading.OK {
			j.Values[v.Layer] = &v.Reading.Bytes
		}
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads the output of MarshalJSON. The layers are sorted by name.
func (s *Sample) UnmarshalJSON(text []byte) error {
	var j sampleJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return fmt.Errorf("memory sample: %w", err)
	}
	*s = Sample{Step: j.Step, At: j.At}
	for layer, b := range j.Values {
		v := Value{Layer: layer}
		if b != nil {
			v.Reading = Known(*b)
		}
		s.Values = append(s.Values, v)
	}
	slices.SortFunc(s.Values, func(a, b Value) int { return cmp.Compare(a.Layer, b.Layer) })
	return nil
}
