// The functions that Go calls. Each call crosses once from Go into C; a
// training step needs only one call.
#ifndef STEADYFIT_SHIM_H_
#define STEADYFIT_SHIM_H_

#include "tfapi.h"

// A prepared step: the arguments of TF_SessionRun. Go reads and writes the
// arrays directly, since they are C memory.
typedef struct sf_step {
  TF_Session* session;
  TF_Status* status;

  int nfeeds;
  TF_Output* feeds;
  TF_Tensor** inputs;   // owned; NULL until the first sf_step_resize
  void** input_data;    // start of each input's buffer
  TF_Tensor** borrowed; // owned; used instead of inputs where not NULL
  TF_Tensor** fed;      // scratch: the inputs of the current run

  int nfetches;
  TF_Output* fetches;
  TF_Tensor** outputs;  // owned; replaced by the next run
  double* scalars;      // value of each one-element numeric output, else NaN

  int ntargets;
  const TF_Operation** targets;
} sf_step;

// Opens the two libraries. Returns NULL, or an error message that is valid
// until the next call.
const char* sf_load(const char* framework, const char* library);
// Returns 1 if TensorFlow computes with oneDNN, 0 if not, -1 if unknown.
int sf_onednn(void);
const char* sf_version(void);

TF_Status* sf_new_status(void);
void sf_delete_status(TF_Status*);
unsigned int sf_code(const TF_Status*);
const char* sf_message(const TF_Status*);

TF_Tensor* sf_new_tensor(unsigned int dtype, const int64_t* dims, int ndims,
                         size_t bytes, void** data);
// Frees a tensor. owned_strings is the number of TF_TString elements in it that
// steadyfit initialised (0 for tensors that TensorFlow made).
void sf_delete_tensor(TF_Tensor*, int64_t owned_strings);
// Copies one string per element from one flat buffer; lengths has the size of
// each element.
void sf_set_strings(TF_Tensor*, const char* flat, const int64_t* lengths,
                    int64_t count);
void sf_get_string(const TF_Tensor*, int64_t index, const char** data,
                   size_t* size);
void sf_describe_tensor(const TF_Tensor*, unsigned int* dtype, int* ndims,
                        int64_t* bytes, int64_t* elements, void** data);
int64_t sf_tensor_dim(const TF_Tensor*, int);

TF_Graph* sf_new_graph(void);
void sf_delete_graph(TF_Graph*);
void sf_import_graph(TF_Graph*, const void* def, size_t size,
                     const char* prefix, TF_Status*);
TF_Operation* sf_find_operation(TF_Graph*, const char* name);
const char* sf_operation_name(TF_Operation*);
int sf_operation_outputs(TF_Operation*);
unsigned int sf_output_dtype(TF_Operation*, int index);

TF_Session* sf_new_session(TF_Graph*, const void* config, size_t size,
                           TF_Status*);
// target is the address of a server, or NULL for a session in this process.
TF_Session* sf_load_saved_model(TF_Graph*, const char* target, const char* dir,
                                const char* const* tags, int ntags,
                                const void* config, size_t size, TF_Status*);
// Starts a server, which runs until the process ends. Returns its address, or
// NULL if the status is an error.
const char* sf_new_server(const void* def, size_t size, TF_Status*);
void sf_close_session(TF_Session*, TF_Status*);
void sf_delete_session(TF_Session*, TF_Status*);
TF_DeviceList* sf_list_devices(TF_Session*, TF_Status*);
int sf_device_count(const TF_DeviceList*);
const char* sf_device_name(const TF_DeviceList*, int, TF_Status*);
const char* sf_device_type(const TF_DeviceList*, int, TF_Status*);
int64_t sf_device_bytes(const TF_DeviceList*, int, TF_Status*);
void sf_delete_devices(TF_DeviceList*);

sf_step* sf_new_step(TF_Session*, int nfeeds, int nfetches, int ntargets);
void sf_delete_step(sf_step*);
void sf_step_set_feed(sf_step*, int i, TF_Operation*, int index);
void sf_step_set_fetch(sf_step*, int i, TF_Operation*, int index);
void sf_step_set_target(sf_step*, int i, TF_Operation*);
// Gives input i a new buffer of that shape. Returns 0 if there is no memory.
int sf_step_resize(sf_step*, int i, unsigned int dtype, const int64_t* dims,
                   int ndims, size_t bytes);
// Makes runs read input i from the caller's memory until sf_step_release. Sets
// the int32_t at held to 1. It becomes 0 once TensorFlow no longer refers to
// the memory; this can happen in another thread, and after the step was
// deleted. Returns 0 if there is no memory for the tensor.
int sf_step_borrow(sf_step*, int i, unsigned int dtype, const int64_t* dims,
                   int ndims, uintptr_t data, size_t bytes, uintptr_t held);
void sf_step_release(sf_step*, int i);
// Transfers output i to the caller. Returns NULL if it was already transferred.
TF_Tensor* sf_step_take(sf_step*, int i);
// Runs the step; options and metadata may be NULL. Returns the status code.
unsigned int sf_step_run(sf_step*, const TF_Buffer* options,
                         TF_Buffer* metadata);
// Like sf_step_run, but with the caller's tensors as the inputs of this run.
unsigned int sf_step_run_with(sf_step*, TF_Tensor* const* inputs,
                              const TF_Buffer* options, TF_Buffer* metadata);

TF_Buffer* sf_new_buffer(const void* data, size_t size);
void sf_read_buffer(const TF_Buffer*, const void** data, size_t* size);
void sf_delete_buffer(TF_Buffer*);

// Statistics of this process's malloc; they do not need TensorFlow. malloc.go
// has the names of the allocators in the same order. Amounts are in bytes, -1
// if unknown.
enum { SF_UNKNOWN_MALLOC, SF_GLIBC, SF_JEMALLOC, SF_TCMALLOC, SF_MIMALLOC };
typedef struct sf_malloc_info {
  int allocator;
  int64_t in_use, free, arenas, mapped;
} sf_malloc_info;
sf_malloc_info sf_ask_malloc(void);
// Returns 0 if the allocator has no such function.
int sf_trim_malloc(void);

// Sets glibc's mmap threshold, and its trim threshold to twice that. Returns 0
// if malloc is not glibc's.
int sf_set_mmap_threshold(int bytes);

#endif  // STEADYFIT_SHIM_H_
