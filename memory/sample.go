package memory

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Sample is what a process held at one moment. The zero value is empty and
// ready to be filled.
type Sample struct {
	// Step is the number of steps done, as the caller counts them.
	Step int
	// At is when the sample was taken.
	At time.Time
	// Values has one entry per layer, known or not, in the order in which the
	// sampler asked. A layer that nobody asked for has no entry.
	Values []Value
}

// Value is the reading of one layer.
type Value struct {
	Layer   Layer
	Reading Reading
}

// Get is the reading of a layer; it is unknown if the sample lacks the layer.
func (s *Sample) Get(layer Layer) Reading {
	for i := range s.Values {
		if s.Values[i].Layer == layer {
			return s.Values[i].Reading
		}
	}
	return Reading{}
}

// Set adds the reading of a layer, or replaces the one that is there.
func (s *Sample) Set(layer Layer, r Reading) {
	for i := range s.Values {
		if s.Values[i].Layer == layer {
			s.Values[i].Reading = r
			return
		}
	}
	s.Values = append(s.Values, Value{layer, r})
}

// Clone is a copy that shares nothing with s, which a sampler may refill.
func (s *Sample) Clone() Sample {
	c := *s
	c.Values = slices.Clone(s.Values)
	return c
}

type sampleJSON struct {
	Step   int              `json:"step"`
	At     time.Time        `json:"at"`
	Values map[Layer]*Bytes `json:"values"`
}

// MarshalJSON writes {"step": 3, "at": RFC 3339, "values": {"rss": 1024, "pss": null}};
// null is a layer that this machine does not tell.
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

// UnmarshalJSON reads what MarshalJSON wrote. Layers come back sorted by name.
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
	slices.SortFunc(s.Values, func(a, b Value) int {
		switch {
		case a.Layer < b.Layer:
			return -1
		case a.Layer > b.Layer:
			return 1
		}
		return 0
	})
	return nil
}
