package savedmodels

import (
	_ "embed"
	"strings"
)

//go:embed ops/safe.txt
var safeText string

//go:embed ops/unsafe.txt
var unsafeText string

// safeOps and unsafeOps have all operations of TensorFlow 2.21, and unsafeOps says what each one does.
// An operation is unsafe if its kernel opens a path, an address or a program that the graph names, or
// if models have no use for it. Some are unsafe only with a certain attribute or input, which
// trace.harmless checks. Operations in neither list are unknown and are refused, too.
var safeOps, unsafeOps = setOf(safeText), reasons(unsafeText)

// reasons parses lines with an operation and what it does, separated by a space.
func reasons(text string) map[string]string {
	ops := map[string]string{}
	for line := range strings.Lines(text) {
		op, does, _ := strings.Cut(strings.TrimSpace(line), " ")
		ops[op] = does
	}
	return ops
}

func setOf(names string) map[string]bool {
	ops := map[string]bool{}
	for name := range strings.FieldsSeq(names) {
		ops[name] = true
	}
	return ops
}

var (
	// checkpointOps are safe in the functions that save and restore a model.
	checkpointOps = setOf("Save SaveSlices SaveV2 MergeV2Checkpoints Restore RestoreSlice RestoreV2 DTensorRestoreV2 " +
		"DistributedSave")

	// passesThrough are the operations that may return one of their inputs, such as a handle.
	// Loops and conditions of TensorFlow 1 consist of them.
	passesThrough = setOf("Identity IdentityN RefIdentity Switch RefSwitch Merge RefMerge _SwitchN " +
		"Enter RefEnter Exit RefExit NextIteration RefNextIteration RefSelect StopGradient PreventGradient")

	// createsVariable are the operations that create a variable or a handle to one.
	createsVariable = setOf("VarHandleOp VariableV2 Variable AutoReloadVariable")

	// heavyMath are the matrix products and convolutions.
	heavyMath = setOf("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Conv1D Conv2D Conv3D " +
		"DepthwiseConv2dNative Conv2DBackpropInput " +
		"_FusedMatMul _FusedConv2D")

	// pureOps are operations whose result depends only on their inputs and attributes, and which
	// treat samples, the first dimension of a batch, independently of each other unless their
	// axes or shapes say otherwise (part.mixes). Reading a variable is one of them.
	pureOps = setOf("Const Identity IdentityN Snapshot StopGradient PreventGradient NoOp ReadVariableOp ResourceGather " +
		"EnsureShape " +
		"Abs Add AddV2 AddN Sub Mul Div RealDiv DivNoNan MulNoNan FloorDiv FloorMod Mod Maximum Minimum Pow Square " +
		"SquaredDifference " +
		"Sqrt Rsqrt Reciprocal Inv Exp Expm1 Log Log1p Neg Sign Sin Cos Tan Asin Acos Atan Atan2 Sinh Cosh Tanh Erf Erfc " +
		"Sigmoid " +
		"Softplus Softsign Relu Relu6 LeakyRelu Elu Selu Floor Ceil Round Rint ClipByValue Cast Bitcast Select SelectV2 " +
		"Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot IsNan IsInf IsFinite " +
		"ZerosLike OnesLike " +
		"BiasAdd Shape ShapeN Size Rank Reshape ExpandDims Squeeze Transpose Pack Unpack ConcatV2 Split SplitV Slice " +
		"StridedSlice Tile " +
		"Pad PadV2 MirrorPad BroadcastTo BroadcastArgs Fill Range GatherV2 OneHot DepthToSpace SpaceToDepth " +
		"SpaceToBatchND BatchToSpaceND " +
		"ResizeBilinear ResizeNearestNeighbor ResizeBicubic MatrixBandPart " +
		"MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Conv1D Conv2D Conv3D DepthwiseConv2dNative " +
		"Conv2DBackpropInput " +
		"MaxPool MaxPool3D AvgPool AvgPool3D LRN FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 Softmax LogSoftmax " +
		"Sum Mean Max Min Prod All Any ArgMax ArgMin Cumsum")

	// shapeOps are the pure operations that return shapes of their inputs.
	shapeOps = setOf("Shape ShapeN Size")

	// sizeOps are the pure operations that compute shapes from shapes.
	sizeOps = setOf("Identity IdentityN Snapshot StopGradient EnsureShape Cast Add AddV2 Sub Mul FloorDiv Maximum " +
		"Minimum Reshape " +
		"ExpandDims Squeeze Pack Unpack ConcatV2 Slice StridedSlice GatherV2 Prod Sum Max Min")

	// boolOps are the pure operations whose result is bool.
	boolOps = setOf("Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot IsNan IsInf " +
		"IsFinite All Any")
)
