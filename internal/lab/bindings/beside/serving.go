//go:build serving

package main

import (
	"fmt"

	"github.com/tensorflow/serving/tensorflow_serving/apis"
	"github.com/tensorflow/tensorflow/tensorflow/go/core/framework/tensor_go_proto"
	"github.com/tensorflow/tensorflow/tensorflow/go/core/framework/tensor_shape_go_proto"
	"github.com/tensorflow/tensorflow/tensorflow/go/core/framework/types_go_proto"
	"google.golang.org/protobuf/proto"
)

// other encodes and decodes a request as a client and a server of TensorFlow Serving do.
func other(string) (string, error) {
	sent, err := proto.Marshal(&apis.PredictRequest{
		ModelSpec: &apis.ModelSpec{Name: "digits"},
		Inputs: map[string]*tensor_go_proto.TensorProto{"x": {
			Dtype:       types_go_proto.DataType_DT_FLOAT,
			TensorShape: &tensor_shape_go_proto.TensorShapeProto{Dim: []*tensor_shape_go_proto.TensorShapeProto_Dim{{Size: 2}}},
			FloatVal:    []float32{1, 2},
		}},
	})
	if err != nil {
		return "", err
	}
	var got apis.PredictRequest
	if err := proto.Unmarshal(sent, &got); err != nil {
		return "", err
	}
	x := got.GetInputs()["x"]
	return fmt.Sprintf("%s of %s: %v %v", got.ProtoReflect().Descriptor().FullName(), got.GetModelSpec().GetName(),
		x.GetTensorShape().GetDim()[0].GetSize(), x.GetFloatVal()), nil
}
