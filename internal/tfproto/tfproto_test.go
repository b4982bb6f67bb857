package tfproto_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"steadyfit/internal/tfproto"
	_ "steadyfit/train" // and with it every package of the library
)

// A message keeps the fields that it does not know: the object graph of a SavedModel, for example.
func TestUnknownFieldsAreKept(t *testing.T) {
	for _, model := range []string{"keras", "half"} {
		path := filepath.Join("..", "..", "savedmodels", "testdata", model, "saved_model.pb")
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		var m tfproto.SavedModel
		require.NoError(t, proto.Unmarshal(raw, &m))
		require.NotEmpty(t, m.GetMetaGraphs()[0].ProtoReflect().GetUnknown())
		require.Equal(t, len(raw), proto.Size(&m))
	}
}

// Other bindings register the messages of TensorFlow under TensorFlow's names.
func TestNamesOfTensorFlowAreFree(t *testing.T) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		require.NotRegexp(t, "^tensorflow", f.Package())
		require.NotRegexp(t, "^tensorflow/", f.Path())
		return true
	})
	require.Equal(t, "steadyfit.tfproto.GraphDef", string((&tfproto.GraphDef{}).ProtoReflect().Descriptor().FullName()))
}
