package contract

// fleeting lists operations that keep state outside of variables, by a description of the state.
// Checkpoints and snapshots do not include this state, and loading the model resets it. Stateless
// random operations, tf.random.Generator and constant tables are not in the list.
var fleeting = map[string][]string{
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
}

var fleetingOps = byName(fleeting)

// byName inverts a table from descriptions to operations.
func byName(table map[string][]string) map[string]string {
	ops := map[string]string{}
	for does, names := range table {
		for _, name := range names {
			ops[name] = does
		}
	}
	return ops
}

// Fleeting reports whether operations of type op keep state outside of variables, which no
// checkpoint includes. keeps describes the state, as in "keeps a queue".
func Fleeting(op string) (keeps string, ok bool) {
	keeps, ok = fleetingOps[op]
	return keeps, ok
}
