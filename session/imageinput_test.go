package session

import (
	"steadyfit/internal/contract"
	"steadyfit/savedmodels"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestImageInput(t *testing.T) {
	in := func(name string, shape ...int64) savedmodels.Tensor {
		return savedmodels.Tensor{Name: name, Shape: shape}
	}
	for _, c := range []struct {
		inputs []savedmodels.Tensor
		want   string
	}{
		{[]savedmodels.Tensor{in("x", -1, 224, 224, 3), in("y", -1)}, "x"},
		{[]savedmodels.Tensor{in("x", 32, 8, 8, 1)}, "x"},
		{[]savedmodels.Tensor{in("x", -1, -1, -1, -1)}, "x"},
		{[]savedmodels.Tensor{in("x", -1, 64)}, ""},
		{[]savedmodels.Tensor{in("x", -1, 5, 8, 8)}, ""},
		{[]savedmodels.Tensor{{Name: "x", UnknownRank: true}}, ""},
		{[]savedmodels.Tensor{in("left", -1, 8, 8, 3), in("right", -1, 8, 8, 3)}, ""},
		{[]savedmodels.Tensor{in(contract.InputSampleWeight, -1, 8, 8, 3)}, ""},
		{nil, ""},
	} {
		found := imageInput(&savedmodels.Signature{Inputs: c.inputs})
		if c.want == "" {
			require.Nil(t, found, "%v", c.inputs)
			continue
		}
		require.NotNil(t, found, "%v", c.inputs)
		require.Equal(t, c.want, found.Name)
	}
}
