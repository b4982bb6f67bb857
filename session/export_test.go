package session

import (
	"fmt"

	"steadyfit/data"
)

// Set sets one input as Feed does.
func (st *Step) Set(name string, a data.Array) error {
	for i := range st.inputs {
		if st.inputs[i].Name == name {
			return st.put(i, a.Values, a.Shape, whole, false)
		}
	}
	return fmt.Errorf("no input %q", name)
}
