package tfbind

var (
	ErrBusy        = errBusy
	ErrInterrupted = errInterrupted
	ErrNotFed      = errNotFed
)

// Element is a Go type for the elements of a tensor.
type Element = element

// TypeOf returns the element type of T.
func TypeOf[T Element]() DType { return dtypeOf[T]() }

func OutputName(o Output) string { return o.name() }

// Len returns the number of elements of a tensor.
func Len(t *Tensor) int { return int(t.info.elements) }

// Retained returns how often TensorFlow kept an input's buffer, so that the input got a new
// one.
func Retained(st *Step) int64 {
	if _, err := st.use(); err != nil {
		return 0
	}
	defer st.done()
	return *st.memory.retained
}
