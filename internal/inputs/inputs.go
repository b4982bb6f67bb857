// Package inputs derives from the inputs of a signature how files of data are read.
package inputs

import (
	"cmp"
	"slices"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// CSVOptions returns the options to read a table or records for a signature:
//   - Input, if there is only one feature, and Row, if it takes a row of several values.
//   - Exact, if a feature has a type whose values float32 may not represent.
//   - Text or Bool, if the only feature takes text or bools.
//   - Columns, if there are several features, or one that takes text, and each takes one value
//     per sample.
func CSVOptions(model *savedmodels.Model, signature string) (o data.CSVOptions, err error) {
	sig, err := model.Signature(signature)
	if err != nil {
		return o, err
	}
	rounded := []tfbind.DType{tfbind.Float32, tfbind.Float16, tfbind.BFloat16, tfbind.Bool, tfbind.String}
	features := slices.DeleteFunc(sig.DataInputs(), func(in savedmodels.Tensor) bool { return IsLabel(model, in) })
	o.Names = classNames(model, sig)
	isText := func(in savedmodels.Tensor) bool { return in.DType == tfbind.String }
	isBool := func(in savedmodels.Tensor) bool { return in.DType == tfbind.Bool }
	o.Exact = slices.ContainsFunc(features, func(in savedmodels.Tensor) bool { return !slices.Contains(rounded, in.DType) })
	o.Text = len(features) == 1 && isText(features[0])
	o.Bool = len(features) == 1 && isBool(features[0])
	if len(features) == 1 {
		o.Input = features[0].Name
		o.Row = several(features[0]) && len(features[0].Shape) == 2
	}
	if (o.Text || len(features) > 1) && !slices.ContainsFunc(features, several) {
		for _, in := range features {
			o.Columns = append(o.Columns, data.FieldSpec{Name: in.Name, Type: in.DType.String()})
		}
	}
	return o, nil
}

// several reports whether an input takes several values per sample.
func several(in savedmodels.Tensor) bool {
	return in.UnknownRank || len(in.Shape) != 1 && (len(in.Shape) != 2 || in.Shape[1] != 1)
}

// IsLabel reports whether an input of a signature is a label.
func IsLabel(model *savedmodels.Model, in savedmodels.Tensor) bool {
	return in.Name == "y" || model.Metadata != nil && model.Metadata.Labels[in.Name].DType != ""
}

// classNames returns the class names of the model if sig takes a label, or nil.
func classNames(model *savedmodels.Model, sig *savedmodels.Signature) []string {
	if model.Metadata == nil || !slices.ContainsFunc(sig.DataInputs(), func(in savedmodels.Tensor) bool { return IsLabel(model, in) }) {
		return nil
	}
	return slices.Clone(model.Metadata.ClassNames)
}

// ImageOptions returns the options to read a folder of images for a signature: the size and channels of
// its image input, and the model's class names if the signature takes a label. A height or width of 0
// means that of the input; the option is 0 if the input has no fixed size. With a height and a width,
// an input of shape [batch values] is an image input, too, if it has one or three values for each
// pixel. The samples are floats if all image inputs are floats. scale is the range of values that the
// input expects; nil means 0 to 255 or unknown.
func ImageOptions(model *savedmodels.Model, signature string, height, width int) (o data.ImageOptions, scale *[2]float64, err error) {
	sig, err := model.Signature(signature)
	if err != nil {
		return o, nil, err
	}
	o.Height, o.Width = height, width
	var in *savedmodels.Tensor
	inputs := imageInputs(sig)
	if len(inputs) == 1 {
		in = &inputs[0]
		o.Height = cmp.Or(height, int(max(in.Shape[1], 0)))
		o.Width = cmp.Or(width, int(max(in.Shape[2], 0)))
		o.Channels = int(max(in.Shape[3], 0))
	}
	for _, t := range sig.DataInputs() {
		pixels := int64(height) * int64(width)
		if in == nil && pixels > 0 && !t.UnknownRank && len(t.Shape) == 2 && (t.Shape[1] == pixels || t.Shape[1] == 3*pixels) {
			in, o.Channels = &t, int(t.Shape[1]/pixels)
			inputs = append(inputs, t)
		}
	}
	o.Float = len(inputs) > 0 && !slices.ContainsFunc(inputs, func(t savedmodels.Tensor) bool {
		kind := dtype.ByCode(int32(t.DType))
		return kind == nil || kind.Kind != dtype.Float
	})
	if m := model.Metadata; in != nil && m != nil {
		o.Classes = classNames(model, sig)
		if scale = m.Inputs[in.Name].Range; scale != nil && *scale == [2]float64{0, 255} {
			scale = nil
		}
	}
	return o, scale, nil
}

// TakesImages reports whether a signature has an input of shape [batch height width channels].
func TakesImages(sig *savedmodels.Signature) bool { return len(imageInputs(sig)) > 0 }

// imageInputs returns the data inputs of shape [batch height width channels] with 1, 3 or an unknown
// number of channels.
func imageInputs(s *savedmodels.Signature) []savedmodels.Tensor {
	return slices.DeleteFunc(s.DataInputs(), func(t savedmodels.Tensor) bool {
		return t.UnknownRank || len(t.Shape) != 4 || t.Shape[3] != 1 && t.Shape[3] != 3 && t.Shape[3] >= 0
	})
}
