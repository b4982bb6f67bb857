package savedmodels

import (
	"strings"

	"steadyfit/internal/contract"
)

// unsafeOps maps operations that access files, the network or Python to a description of the
// access. It lists the operations whose kernels open a path, an address or a program that the graph
// names, among the 1908 of TensorFlow 2.21 and those of earlier versions. The list of
// `saved_model_cli scan` has only ReadFile, WriteFile and PrintV2. PrintV2 and CacheDataset write
// files only if they have a file name; reachesOutside checks them.
var unsafeOps = contract.ByName(map[string][]string{
	"reads files": {
		"ReadFile", "WholeFileReader", "WholeFileReaderV2", "TextLineReader", "TextLineReaderV2",
		"FixedLengthRecordReader", "FixedLengthRecordReaderV2", "TFRecordReader", "TFRecordReaderV2",
		"LMDBReader", "RecordInput", "InitializeTableFromTextFile", "InitializeTableFromTextFileV2",
		"TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2", "FixedLengthRecordDataset",
		"FixedLengthRecordDatasetV2", "CSVDataset", "CSVDatasetV2", "ExperimentalCSVDataset",
		"LMDBDataset", "ExperimentalLMDBDataset", "LoadDataset", "SnapshotDatasetReader",
		"SnapshotNestedDatasetReader", "SnapshotChunkDataset", "ListSnapshotChunksDataset",
		"GenerateVocabRemapping", "LoadAndRemapMatrix", "Restore", "RestoreSlice", "RestoreV2",
		"DTensorRestoreV2",
	},
	"lists folders": {
		"MatchingFiles", "MatchingFilesDataset", "ExperimentalMatchingFilesDataset",
	},
	"writes files": {
		"WriteFile", "Save", "SaveSlices", "SaveV2", "MergeV2Checkpoints", "DistributedSave",
		"SaveDataset", "SaveDatasetV2", "DatasetToTFRecord", "ExperimentalDatasetToTFRecord",
		"SnapshotDataset", "SnapshotDatasetV2", "CreateSummaryFileWriter", "CreateSummaryDbWriter",
		"DumpTensor", "CalibrationStatisticsSaver", "DebugIdentity", "DebugIdentityV2",
		"DebugIdentityV3", "DebugNanCount", "DebugNumericSummary",
	},
	"reads a database": {
		"SqlDataset", "ExperimentalSqlDataset", "BigQueryReader", "GenerateBigQueryReaderPartitions",
	},
	"changes how files are reached": {"FileSystemSetConfiguration"},
	"calls into Python":             {"PyFunc", "PyFuncStateless", "EagerPyFunc", "PyCall"},
	"uses the network": {
		"RpcCall", "RpcClient", "RpcServer", "RpcServerStart", "RpcServerRegister", "Rpc", "TryRpc",
		"DataServiceDataset", "DataServiceDatasetV2", "DataServiceDatasetV3", "DataServiceDatasetV4",
		"RegisterDataset", "RegisterDatasetV2", "ConfigureDistributedTPU", "ConfigureAndInitializeGlobalTPU",
		"ConnectTPUEmbeddingHosts", "Send", "Recv", "_Send", "_Recv", "_HostSend", "_HostRecv",
	},
	"runs a program held in a tensor": {
		// These operations run a program that the graph may compute, so a scan cannot examine it.
		"DatasetFromGraph", "DeserializeIterator", "RemoteFusedGraphExecute",
	},
	"ends the process": {"Abort"},
})

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

	// vocabularyOps are safe at load if they read an asset of the model.
	vocabularyOps = setOf("InitializeTableFromTextFile InitializeTableFromTextFileV2")

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
