package tfbind

// #cgo CFLAGS: -std=c11 -O2 -Wall -Wextra
// #cgo LDFLAGS: -ldl -lm
// #include <stdlib.h>
// #include "shim.h"
// #cgo noescape sf_describe_tensor
// #cgo nocallback sf_describe_tensor
import "C"

import (
	"errors"
	"unsafe"
)

func init() { capi = cgoAPI{} }

// cgoAPI implements native with the C functions of shim.h.
type cgoAPI struct{}

func (cgoAPI) load(framework, library string) error {
	f, l := C.CString(framework), C.CString(library)
	defer C.free(ptr(f))
	defer C.free(ptr(l))
	if message := C.sf_load(f, l); message != nil {
		return errors.New(C.GoString(message))
	}
	return nil
}

func (cgoAPI) oneDNN() int { return int(C.sf_onednn()) }

func (cgoAPI) version() string { return C.GoString(C.sf_version()) }

func statusError(s *C.TF_Status, op string) error {
	code := int(C.sf_code(s))
	if code == 0 {
		return nil
	}
	return &Error{Op: op, Code: codeName(code), Message: C.GoString(C.sf_message(s))}
}

func withStatus(op string, call func(*C.TF_Status)) error {
	s := C.sf_new_status()
	defer C.sf_delete_status(s)
	call(s)
	return statusError(s, op)
}

func (cgoAPI) newTensor(dtype DType, dims []int64, bytes int64) (tensor, data ptr) {
	t := C.sf_new_tensor(C.uint(dtype), (*C.int64_t)(unsafe.SliceData(dims)), C.int(len(dims)), C.size_t(bytes), &data)
	return ptr(t), data
}

func (cgoAPI) deleteTensor(tensor ptr, ownedStrings int64) {
	C.sf_delete_tensor((*C.TF_Tensor)(tensor), C.int64_t(ownedStrings))
}

func (cgoAPI) describeTensor(tensor ptr, shape []int64) tensorInfo {
	t := (*C.TF_Tensor)(tensor)
	var (
		dtype           C.uint
		ndims           C.int
		bytes, elements C.int64_t
		data            ptr
	)
	C.sf_describe_tensor(t, &dtype, &ndims, &bytes, &elements, &data)
	info := tensorInfo{
		dtype: DType(dtype), shape: shape,
		bytes: int64(bytes), elements: int64(elements), data: data,
	}
	for i := range int(ndims) {
		info.shape = append(info.shape, int64(C.sf_tensor_dim(t, C.int(i))))
	}
	return info
}

func (cgoAPI) setStrings(tensor ptr, values []string) {
	var flat []byte
	lengths := make([]int64, len(values))
	for i, s := range values {
		flat = append(flat, s...)
		lengths[i] = int64(len(s))
	}
	C.sf_set_strings((*C.TF_Tensor)(tensor), (*C.char)(ptr(unsafe.SliceData(flat))),
		(*C.int64_t)(unsafe.SliceData(lengths)), C.int64_t(len(values)))
}

func (cgoAPI) getString(tensor ptr, i int) string {
	var (
		data *C.char
		size C.size_t
	)
	C.sf_get_string((*C.TF_Tensor)(tensor), C.int64_t(i), &data, &size)
	return string(unsafe.Slice((*byte)(ptr(data)), int(size)))
}

func (cgoAPI) newGraph() ptr         { return ptr(C.sf_new_graph()) }
func (cgoAPI) deleteGraph(graph ptr) { C.sf_delete_graph((*C.TF_Graph)(graph)) }

func (cgoAPI) importGraph(graph ptr, def []byte, prefix string) error {
	p := C.CString(prefix)
	defer C.free(ptr(p))
	return withStatus("import graph", func(s *C.TF_Status) {
		C.sf_import_graph((*C.TF_Graph)(graph), ptr(unsafe.SliceData(def)), C.size_t(len(def)), p, s)
	})
}

func (cgoAPI) findOperation(graph ptr, name string) ptr {
	n := C.CString(name)
	defer C.free(ptr(n))
	return ptr(C.sf_find_operation((*C.TF_Graph)(graph), n))
}

func (cgoAPI) describeOperation(op ptr) (name string, outputs int) {
	o := (*C.TF_Operation)(op)
	return C.GoString(C.sf_operation_name(o)), int(C.sf_operation_outputs(o))
}

func (cgoAPI) outputDType(op ptr, index int) DType {
	return DType(C.sf_output_dtype((*C.TF_Operation)(op), C.int(index)))
}

func (cgoAPI) newSession(graph ptr, config []byte) (session ptr, err error) {
	err = withStatus("new session", func(s *C.TF_Status) {
		session = ptr(C.sf_new_session((*C.TF_Graph)(graph), ptr(unsafe.SliceData(config)), C.size_t(len(config)), s))
	})
	return session, err
}

func (cgoAPI) startServer(def []byte) (target string, err error) {
	err = withStatus("start server", func(s *C.TF_Status) {
		target = C.GoString(C.sf_new_server(ptr(unsafe.SliceData(def)), C.size_t(len(def)), s))
	})
	return target, err
}

func (cgoAPI) loadSavedModel(target, dir string, tags []string, config []byte) (session, graph ptr, err error) {
	d := C.CString(dir)
	defer C.free(ptr(d))
	var t *C.char
	if target != "" {
		t = C.CString(target)
		defer C.free(ptr(t))
	}
	ctags := make([]*C.char, len(tags)+1)
	for i, t := range tags {
		ctags[i] = C.CString(t)
		defer C.free(ptr(ctags[i]))
	}
	g := C.sf_new_graph()
	err = withStatus("load SavedModel "+dir, func(s *C.TF_Status) {
		session = ptr(C.sf_load_saved_model(g, t, d, &ctags[0], C.int(len(tags)),
			ptr(unsafe.SliceData(config)), C.size_t(len(config)), s))
	})
	if err != nil {
		C.sf_delete_graph(g)
		return nil, nil, err
	}
	return session, ptr(g), nil
}

func (cgoAPI) closeSession(session ptr) error {
	return withStatus("close session", func(s *C.TF_Status) {
		C.sf_close_session((*C.TF_Session)(session), s)
	})
}

// deleteSession ignores the status, which is always OK (TF_DeleteSession in c_api.cc,
// TensorFlow 2.21).
func (cgoAPI) deleteSession(session ptr) {
	s := C.sf_new_status()
	defer C.sf_delete_status(s)
	C.sf_delete_session((*C.TF_Session)(session), s)
}

func (cgoAPI) listDevices(session ptr) ([]Device, error) {
	var devices []Device
	err := withStatus("list devices", func(s *C.TF_Status) {
		l := C.sf_list_devices((*C.TF_Session)(session), s)
		if C.sf_code(s) != 0 {
			return
		}
		defer C.sf_delete_devices(l)
		for i := range C.sf_device_count(l) {
			d := Device{Name: C.GoString(C.sf_device_name(l, i, s))}
			if C.sf_code(s) == 0 {
				d.Type = C.GoString(C.sf_device_type(l, i, s))
			}
			if C.sf_code(s) == 0 {
				d.MemoryBytes = int64(C.sf_device_bytes(l, i, s))
			}
			if C.sf_code(s) != 0 {
				return
			}
			devices = append(devices, d)
		}
	})
	return devices, err
}

func (cgoAPI) newStep(session ptr, feeds, fetches []Output, targets []ptr) stepMemory {
	s := C.sf_new_step((*C.TF_Session)(session), C.int(len(feeds)), C.int(len(fetches)), C.int(len(targets)))
	if s == nil {
		return stepMemory{}
	}
	for i, o := range feeds {
		C.sf_step_set_feed(s, C.int(i), (*C.TF_Operation)(o.op), C.int(o.index))
	}
	for i, o := range fetches {
		C.sf_step_set_fetch(s, C.int(i), (*C.TF_Operation)(o.op), C.int(o.index))
	}
	for i, o := range targets {
		C.sf_step_set_target(s, C.int(i), (*C.TF_Operation)(o))
	}
	return stepMemory{
		step:    ptr(s),
		data:    unsafe.Slice((*ptr)(ptr(s.input_data)), len(feeds)),
		scalars: unsafe.Slice((*float64)(ptr(s.scalars)), len(fetches)),
	}
}

func (cgoAPI) deleteStep(step ptr) { C.sf_delete_step((*C.sf_step)(step)) }

func (cgoAPI) resizeInput(step ptr, i int, dtype DType, dims []int64, bytes int64) bool {
	return C.sf_step_resize((*C.sf_step)(step), C.int(i), C.uint(dtype),
		(*C.int64_t)(unsafe.SliceData(dims)), C.int(len(dims)), C.size_t(bytes)) != 0
}

func (api cgoAPI) setInputStrings(step ptr, i int, values []string) {
	inputs := unsafe.Slice((*ptr)(ptr((*C.sf_step)(step).inputs)), i+1)
	api.setStrings(inputs[i], values)
}

// borrowInput passes addresses of pinned memory as integers. For a pointer, cgo would search
// the whole allocation for Go pointers.
func (cgoAPI) borrowInput(step ptr, i int, dtype DType, dims []int64, data ptr, bytes int64, held *int32) bool {
	return C.sf_step_borrow((*C.sf_step)(step), C.int(i), C.uint(dtype), (*C.int64_t)(unsafe.SliceData(dims)),
		C.int(len(dims)),
		C.uintptr_t(uintptr(data)), C.size_t(bytes), C.uintptr_t(uintptr(ptr(held)))) != 0
}

func (cgoAPI) releaseInput(step ptr, i int) { C.sf_step_release((*C.sf_step)(step), C.int(i)) }

func (cgoAPI) output(step ptr, i int) ptr {
	s := (*C.sf_step)(step)
	return unsafe.Slice((*ptr)(ptr(s.outputs)), int(s.nfetches))[i]
}

func (cgoAPI) takeOutput(step ptr, i int) ptr {
	return ptr(C.sf_step_take((*C.sf_step)(step), C.int(i)))
}

func (cgoAPI) runStep(step, options, metadata ptr) int {
	return int(C.sf_step_run((*C.sf_step)(step), (*C.TF_Buffer)(options), (*C.TF_Buffer)(metadata)))
}

func (cgoAPI) runStepWith(step ptr, inputs []ptr, options ptr) int {
	return int(C.sf_step_run_with((*C.sf_step)(step), (**C.TF_Tensor)(ptr(unsafe.SliceData(inputs))),
		(*C.TF_Buffer)(options), nil))
}

func (cgoAPI) stepError(step ptr, op string) error {
	return statusError((*C.sf_step)(step).status, op)
}

func (cgoAPI) newBuffer(content []byte) ptr {
	return ptr(C.sf_new_buffer(ptr(unsafe.SliceData(content)), C.size_t(len(content))))
}

func (cgoAPI) readBuffer(buffer ptr) []byte {
	var (
		data ptr
		size C.size_t
	)
	C.sf_read_buffer((*C.TF_Buffer)(buffer), &data, &size)
	return append([]byte(nil), unsafe.Slice((*byte)(data), int(size))...)
}

func (cgoAPI) deleteBuffer(buffer ptr) { C.sf_delete_buffer((*C.TF_Buffer)(buffer)) }

func (cgoAPI) mallocInfo() (allocator int, inUse, free, arenas, mapped int64) {
	m := C.sf_ask_malloc()
	return int(m.allocator), int64(m.in_use), int64(m.free), int64(m.arenas), int64(m.mapped)
}

func (cgoAPI) trimMalloc() bool { return C.sf_trim_malloc() != 0 }

func (cgoAPI) setMmapThreshold(bytes int) bool { return C.sf_set_mmap_threshold(C.int(bytes)) != 0 }
