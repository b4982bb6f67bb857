//go:build serving

package beside

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tensorflow/serving/tensorflow_serving/apis"
	"github.com/tensorflow/tensorflow/tensorflow/go/core/framework/tensor_go_proto"
	"github.com/tensorflow/tensorflow/tensorflow/go/core/framework/tensor_shape_go_proto"
	"github.com/tensorflow/tensorflow/tensorflow/go/core/framework/types_go_proto"
	"google.golang.org/protobuf/proto"
)

// A request passes through its encoding, as with a client and a server of TensorFlow Serving.
func TestBeside(t *testing.T) {
	trained(t)
	sent, err := proto.Marshal(&apis.PredictRequest{
		ModelSpec: &apis.ModelSpec{Name: "digits"},
		Inputs: map[string]*tensor_go_proto.TensorProto{"x": {
			Dtype:       types_go_proto.DataType_DT_FLOAT,
			TensorShape: &tensor_shape_go_proto.TensorShapeProto{Dim: []*tensor_shape_go_proto.TensorShapeProto_Dim{{Size: 2}}},
			FloatVal:    []float32{1, 2},
		}},
	})
	require.NoError(t, err)
	var got apis.PredictRequest
	require.NoError(t, proto.Unmarshal(sent, &got))
	x := got.GetInputs()["x"]
	require.EqualValues(t, "tensorflow.serving.PredictRequest", got.ProtoReflect().Descriptor().FullName())
	require.Equal(t, "digits", got.GetModelSpec().GetName())
	require.EqualValues(t, 2, x.GetTensorShape().GetDim()[0].GetSize())
	require.Equal(t, []float32{1, 2}, x.GetFloatVal())
}
