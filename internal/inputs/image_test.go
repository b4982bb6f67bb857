package inputs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/contract"
	"steadyfit/savedmodels"
)

func TestImageInputs(t *testing.T) {
	in := func(name string, shape ...int64) savedmodels.Tensor {
		return savedmodels.Tensor{Name: name, Shape: shape}
	}
	for _, c := range []struct {
		inputs []savedmodels.Tensor
		want   []string
	}{
		{[]savedmodels.Tensor{in("x", -1, 224, 224, 3), in("y", -1)}, []string{"x"}},
		{[]savedmodels.Tensor{in("x", 32, 8, 8, 1)}, []string{"x"}},
		{[]savedmodels.Tensor{in("x", -1, -1, -1, -1)}, []string{"x"}},
		{[]savedmodels.Tensor{in("x", -1, 64)}, nil},
		{[]savedmodels.Tensor{in("x", -1, 5, 8, 8)}, nil},
		{[]savedmodels.Tensor{{Name: "x", UnknownRank: true}}, nil},
		{[]savedmodels.Tensor{in("left", -1, 8, 8, 3), in("right", -1, 8, 8, 3)}, []string{"left", "right"}},
		{[]savedmodels.Tensor{in(contract.InputSampleWeight, -1, 8, 8, 3)}, nil},
		{nil, nil},
	} {
		var found []string
		for _, in := range imageInputs(&savedmodels.Signature{Inputs: c.inputs}) {
			found = append(found, in.Name)
		}
		require.Equal(t, c.want, found, "%v", c.inputs)
	}
}
