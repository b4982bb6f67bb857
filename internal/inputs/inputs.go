// Package inputs derives from the inputs of a signature how files of data are read.
package inputs

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/savedmodels"
)

// CSVOptions returns the options to read a table or records for a signature: its inputs, and the class names
// of the model. If the signature has exactly one label, the inputs leave it out.
func CSVOptions(model *savedmodels.Model, signature string) (o data.CSVOptions, err error) {
	sig, err := model.Signature(signature)
	if err != nil {
		return o, err
	}
	o.Names, o.Numbers = classNames(model, sig), numbers(model, sig)
	labels := Labels(model, sig)
	for _, in := range slices.DeleteFunc(sig.DataInputs(), savedmodels.Tensor.IsSwitch) {
		if len(labels) != 1 || in.Name != labels[0].Name {
			o.Inputs = append(o.Inputs, data.FieldSpec{Name: in.Name, Type: in.DType.String(), Shape: sampleShape(in)})
		}
	}
	return o, nil
}

// Labels returns the data inputs of a signature that are labels.
func Labels(model *savedmodels.Model, sig *savedmodels.Signature) []savedmodels.Tensor {
	return slices.DeleteFunc(sig.DataInputs(), func(in savedmodels.Tensor) bool { return !IsLabel(model, in) })
}

// NumericLabels is data.CSVOptions.Numbers if the labels of a training were numbers.
const NumericLabels = "the labels of the training data are numbers"

// numbers returns the reason why the only label is a number (data.CSVOptions.Numbers): the labels of the training
// were numbers, or the loss takes numbers.
func numbers(model *savedmodels.Model, sig *savedmodels.Signature) (why string) {
	labels := Labels(model, sig)
	if model.Metadata != nil && model.Metadata.NumericLabels {
		return NumericLabels
	}
	if len(labels) != 1 {
		return ""
	}
	in := labels[0]
	kind := dtype.ByName(in.DType.String())
	loss, known := lossOf(model, in)
	switch {
	case kind == nil || kind.Kind != dtype.FloatKind || ofClasses(loss) || OneHot(model, in) > 0:
		return ""
	case known:
		return "the loss of the model, " + loss + ", takes numbers"
	}
	return "label " + in.Name + " of the model takes floats, and its loss is unknown"
}

// lossOf returns the name of the loss of a label. known is false if the model does not describe its losses.
func lossOf(model *savedmodels.Model, label savedmodels.Tensor) (loss string, known bool) {
	if model.Metadata == nil || len(model.Metadata.Loss) == 0 {
		return "", false
	}
	losses := model.Metadata.Loss
	if loss, known = losses[strings.TrimPrefix(label.Name, "y_")]; !known && len(losses) == 1 {
		loss = slices.Collect(maps.Values(losses))[0]
	}
	return loss, true
}

// ofClasses reports whether a loss takes numbers of classes, or vectors that stand for them.
func ofClasses(loss string) bool {
	return strings.Contains(loss, "crossentropy") || strings.Contains(loss, "hinge") || loss == "kl_divergence"
}

// OneHot returns the number of classes of a label that is a one-hot vector: a vector of floats for a loss of
// such vectors or an unknown loss. It is 0 for other labels.
func OneHot(model *savedmodels.Model, label savedmodels.Tensor) int {
	kind, n := dtype.ByName(label.DType.String()), len(label.Shape)
	if kind == nil || kind.Kind != dtype.FloatKind || n < 2 || label.Shape[n-1] < 2 || !IsLabel(model, label) {
		return 0
	}
	loss, known := lossOf(model, label)
	if known && !strings.HasPrefix(loss, "categorical_") && loss != "kl_divergence" {
		return 0
	}
	return int(label.Shape[n-1])
}

// Binary reports whether a label is a float that a loss of two classes takes.
func Binary(model *savedmodels.Model, label savedmodels.Tensor) bool {
	kind := dtype.ByName(label.DType.String())
	loss, known := lossOf(model, label)
	return kind != nil && kind.Kind == dtype.FloatKind && (!known || ofClasses(loss))
}

// sampleShape returns the shape of a sample of an input. It is empty for an input that takes one value per
// sample.
func sampleShape(in savedmodels.Tensor) (shape []int) {
	switch {
	case in.UnknownRank:
		return []int{-1, -1}
	case len(in.Shape) == 0 || len(in.Shape) == 2 && in.Shape[1] == 1:
		return nil
	}
	for _, size := range in.Shape[1:] {
		shape = append(shape, int(size))
	}
	return shape
}

// IsLabel reports whether an input of a signature is a label: y, or an input that the exporter describes as one.
// If the signatures train and predict share an input, those of train that predict lacks are labels, too.
func IsLabel(model *savedmodels.Model, in savedmodels.Tensor) bool {
	if in.Name == "y" || model.Metadata != nil && model.Metadata.Labels[in.Name].DType != "" {
		return true
	}
	predict, err := model.Signature(model.Roles.Predict)
	train, none := model.Signature(model.Roles.Train)
	if err != nil || none != nil {
		return false
	}
	takes := func(t savedmodels.Tensor) bool { return predict.Input(t.Name) != nil }
	return train.Input(in.Name) != nil && !takes(in) && slices.ContainsFunc(train.DataInputs(), takes)
}

// classNames returns the class names of the model if sig takes a label, or nil.
func classNames(model *savedmodels.Model, sig *savedmodels.Signature) []string {
	if model.Metadata == nil || len(Labels(model, sig)) == 0 {
		return nil
	}
	return slices.Clone(model.Metadata.ClassNames)
}

// ImageOptions returns the options to read a folder of images for a signature: the size and channels of
// its image input, and the model's class names if the signature takes a label. A height or width of 0
// becomes that of the input, and stays 0 if the input has no fixed size. With a height and a width, an
// input of shape [batch values] is an image input, too, if it has one or three values for each pixel.
// The samples are floats if all image inputs are floats. scale is the range of values that the input
// expects; nil means 0 to 255 or unknown.
func ImageOptions(model *savedmodels.Model, signature string, height, width int) (o data.ImageOptions,
	scale *[2]float64, err error) {
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
		if in == nil && pixels > 0 && !t.UnknownRank && len(t.Shape) == 2 &&
			(t.Shape[1] == pixels || t.Shape[1] == 3*pixels) {
			in, o.Channels = &t, int(t.Shape[1]/pixels)
			inputs = append(inputs, t)
		}
	}
	o.Float = len(inputs) > 0 && !slices.ContainsFunc(inputs, func(t savedmodels.Tensor) bool {
		kind := dtype.ByCode(int32(t.DType))
		return kind == nil || kind.Kind != dtype.FloatKind
	})
	if m := model.Metadata; in != nil && m != nil {
		o.Classes = classNames(model, sig)
		if scale = m.Inputs[in.Name].Range; scale != nil && *scale == [2]float64{0, 255} {
			scale = nil
		}
	}
	return o, scale, nil
}

// imageInputs returns the data inputs of shape [batch height width channels] with 1, 3 or an unknown
// number of channels.
func imageInputs(s *savedmodels.Signature) []savedmodels.Tensor {
	return slices.DeleteFunc(s.DataInputs(), func(t savedmodels.Tensor) bool {
		return t.UnknownRank || len(t.Shape) != 4 || t.Shape[3] != 1 && t.Shape[3] != 3 && t.Shape[3] >= 0
	})
}
