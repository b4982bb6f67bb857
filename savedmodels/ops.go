package savedmodels

// unsafeOps are the operations that reach outside the computation, with what
// they do. The list was made by going through all 1908 operations that
// TensorFlow 2.21 registers, and those of earlier releases, for kernels that
// open a path, an address or a program given in the graph.
// `saved_model_cli scan` knows ReadFile, WriteFile and PrintV2 (PrintV2 with
// output_stream="file://..." appends to a file: see printsToFile).
//
// CacheDataset writes files only where it is given a name (see cachesInFile).
//
// TensorFlow's SECURITY.md names the principle: models are programs.
var unsafeOps = func() map[string]string {
	ops := map[string]string{}
	for does, names := range map[string][]string{
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
			// What it runs is bytes that may be computed, so that nothing can
			// be said about it (scanners are known to be passed by this way).
			"DatasetFromGraph", "DeserializeIterator", "RemoteFusedGraphExecute",
		},
		"ends the process": {"Abort"},
	} {
		for _, name := range names {
			ops[name] = does
		}
	}
	return ops
}()

// fleetingOps are the operations that keep state in no variable, with what that is:
// checkpoints and snapshots leave it out, and a model that is loaded anew begins it
// anew. Stateless random operations and those of tf.random.Generator are not among
// them. Tables that do not change are loaded as they were.
var fleetingOps = func() map[string]string {
	ops := map[string]string{}
	for keeps, names := range map[string][]string{
		"draws random numbers": {
			"RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal",
			"ParameterizedTruncatedNormal", "RandomGamma", "RandomPoisson", "RandomPoissonV2",
			"RandomShuffle", "RandomCrop", "Multinomial", "SampleDistortedBoundingBox",
			"SampleDistortedBoundingBoxV2", "FractionalMaxPool", "FractionalAvgPool",
			"UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler",
			"ThreadUnsafeUnigramCandidateSampler", "FixedUnigramCandidateSampler", "AllCandidateSampler",
		},
		"keeps a table that changes": {
			"MutableHashTable", "MutableHashTableV2", "MutableHashTableOfTensors", "MutableHashTableOfTensorsV2",
			"MutableDenseHashTable", "MutableDenseHashTableV2", "AnonymousMutableHashTable",
			"AnonymousMutableHashTableOfTensors", "AnonymousMutableDenseHashTable",
		},
		"keeps its position in a dataset": {"Iterator", "IteratorV2", "OneShotIterator", "MultiDeviceIterator"},
		"keeps a queue": {
			"FIFOQueue", "FIFOQueueV2", "PaddingFIFOQueue", "PaddingFIFOQueueV2", "RandomShuffleQueue",
			"RandomShuffleQueueV2", "PriorityQueue", "PriorityQueueV2", "Barrier", "Stage", "MapStage", "OrderedMapStage",
		},
	} {
		for _, name := range names {
			ops[name] = keeps
		}
	}
	return ops
}()

// Fleeting reports whether an operation of that type keeps state in no variable, and
// what that is, as in "draws random numbers" or "keeps a queue": no checkpoint has it.
func Fleeting(op string) (keeps string, ok bool) {
	keeps, ok = fleetingOps[op]
	return keeps, ok
}

// checkpointOps are normal in the functions that save and restore a model.
var checkpointOps = map[string]bool{
	"Save": true, "SaveSlices": true, "SaveV2": true, "MergeV2Checkpoints": true,
	"Restore": true, "RestoreSlice": true, "RestoreV2": true, "DTensorRestoreV2": true,
	"DistributedSave": true,
}

// vocabularyOps are normal while a model is loaded, if what they read is an
// asset of the model.
var vocabularyOps = map[string]bool{
	"InitializeTableFromTextFile": true, "InitializeTableFromTextFileV2": true,
}

// passesThrough are the operations whose outputs may be a handle that they were
// given. Those in TensorFlow 1 form make loops and conditions of plain nodes.
var passesThrough = map[string]bool{
	"Identity": true, "IdentityN": true, "RefIdentity": true,
	"Switch": true, "RefSwitch": true, "Merge": true, "RefMerge": true, "_SwitchN": true,
	"Enter": true, "RefEnter": true, "Exit": true, "RefExit": true,
	"NextIteration": true, "RefNextIteration": true, "RefSelect": true,
	"StopGradient": true, "PreventGradient": true,
}

// createsVariable are the operations that make a variable or a handle to one.
var createsVariable = map[string]bool{
	"VarHandleOp": true, "VariableV2": true, "Variable": true, "AutoReloadVariable": true,
}

// heavyMath are the operations that 16-bit training spends its time in, and
// whose gradients underflow without loss scaling.
var heavyMath = map[string]bool{
	"MatMul": true, "BatchMatMul": true, "BatchMatMulV2": true, "BatchMatMulV3": true, "Einsum": true,
	"Conv1D": true, "Conv2D": true, "Conv3D": true, "DepthwiseConv2dNative": true,
	"_FusedMatMul": true, "_FusedConv2D": true,
}
