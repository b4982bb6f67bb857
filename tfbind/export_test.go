package tfbind

import "steadyfit/internal/eager"

// EagerTensor returns the value of a place as a tensor.
func EagerTensor(f eager.Frame, at int32) (*Tensor, error) { return f.(*eagerFrame).tensor(at) }
