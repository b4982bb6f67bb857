package tfbind

// native is the interface to C, implemented in capi.go. Because of the interface, packages that
// import tfbind build with CGO_ENABLED=0.
type native interface {
	load(framework, library string) error
	version() string
	oneDNN() int

	newTensor(dtype DType, dims []int64, bytes int64) (tensor, data ptr)
	deleteTensor(tensor ptr, ownedStrings int64)
	// describeTensor appends the shape to shape.
	describeTensor(tensor ptr, shape []int64) tensorInfo
	setStrings(tensor ptr, values []string)
	getString(tensor ptr, i int) string

	newGraph() ptr
	deleteGraph(graph ptr)
	importGraph(graph ptr, def []byte, prefix string) error
	findOperation(graph ptr, name string) ptr
	describeOperation(op ptr) (name string, outputs int)
	outputDType(op ptr, index int) DType

	newSession(graph ptr, config []byte) (ptr, error)
	loadSavedModel(target, dir string, tags []string, config []byte) (session, graph ptr, err error)
	startServer(def []byte) (target string, err error)
	closeSession(session ptr) error
	deleteSession(session ptr)
	listDevices(session ptr) ([]Device, error)

	newStep(session ptr, feeds, fetches []Output, targets []ptr) stepMemory
	deleteStep(step ptr)
	resizeInput(step ptr, i int, dtype DType, dims []int64, bytes int64) bool
	setInputStrings(step ptr, i int, values []string)
	borrowInput(step ptr, i int, dtype DType, dims []int64, data ptr, bytes int64, held *int32) bool
	releaseInput(step ptr, i int)
	output(step ptr, i int) ptr
	takeOutput(step ptr, i int) ptr
	runStep(step, options, metadata ptr) int
	runStepWith(step ptr, inputs []ptr, options ptr) int
	stepError(step ptr, op string) error

	newBuffer(content []byte) ptr
	readBuffer(buffer ptr) []byte
	deleteBuffer(buffer ptr)

	mallocInfo() (allocator int, inUse, free, arenas, mapped int64)
	trimMalloc() bool
	setMmapThreshold(bytes int) bool
}

// capi is nil in a build without cgo.
var capi native

type tensorInfo struct {
	dtype    DType
	shape    []int64
	bytes    int64
	elements int64
	data     ptr
}

// stepMemory is a prepared step in C memory, with its arrays as Go slices.
type stepMemory struct {
	step    ptr
	data    []ptr     // start of each input's buffer
	scalars []float64 // value of each one-element output; NaN for other outputs
}
