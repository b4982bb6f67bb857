#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#if defined(__linux__)
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#endif
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static struct {
#define SF_FIELD(result, name, params) result(*name) params;
  SF_FUNCTIONS(SF_FIELD)
#undef SF_FIELD
} tf;

static void* loaded;

static char message[4096];

static const char* load_error(const char* format, const char* a,
                              const char* b) {
  snprintf(message, sizeof message, format, a, b);
  return message;
}

#if defined(__linux__)
// Releases the pages of a library's segments that are never written, if base is
// the address of the library. A library with text relocations is skipped, since
// the dynamic linker writes to its code.
static int release_segments(struct dl_phdr_info* info, size_t size,
                            void* base) {
  (void)size;
  if (info->dlpi_addr != *(ElfW(Addr)*)base) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const ElfW(Dyn)* d = (void*)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; d->d_tag != DT_NULL; d++)
      if (d->d_tag == DT_TEXTREL ||
          (d->d_tag == DT_FLAGS && (d->d_un.d_val & DF_TEXTREL)))
        return 1;
  }
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)* p = &info->dlpi_phdr[i];
    if (p->p_type != PT_LOAD || (p->p_flags & PF_W)) continue;
    uintptr_t start = info->dlpi_addr + p->p_vaddr;
    uintptr_t end = (start + p->p_filesz) & ~(page - 1);
    start = (start + page - 1) & ~(page - 1);
    if (start < end) madvise((void*)start, end - start, MADV_DONTNEED);
  }
  return 1;
}

// Opening TensorFlow makes 240 MiB of its libraries resident, and a training
// uses a quarter of them. A page that is used later is mapped again from the
// page cache.
static void release_pages(void* library) {
  struct link_map* map;
  if (library != NULL && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0)
    dl_iterate_phdr(release_segments, &map->l_addr);
}
#else
static void release_pages(void* library) { (void)library; }
#endif

#if defined(__GLIBC__)
// The constructors of libtensorflow_framework log that oneDNN is on, in two lines, before
// a program can set the level of the log. pass writes all other lines to the standard
// error.
static ssize_t pass(void* cookie, const char* text, size_t size) {
  (void)cookie;
  static const char* const known[] = {
      "All log messages before absl::InitializeLog() is called",
      "oneDNN custom operations are on."};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (memmem(text, size, known[i], strlen(known[i])) != NULL) return size;
  for (size_t n = 0; n < size;) {
    ssize_t wrote = write(STDERR_FILENO, text + n, size - n);
    if (wrote > 0) n += wrote;
    else if (errno != EINTR) break;
  }
  return size;
}

// open_quietly opens a library while the standard error of C, which Go does not use,
// leads to pass. A level of 0 asks for all lines. The filter stays open, because another
// thread may be writing to it.
static void* open_quietly(const char* library) {
  static FILE* filter;
  const char* level = getenv("TF_CPP_MIN_LOG_LEVEL");
  if (filter == NULL && (level == NULL || strcmp(level, "0") != 0)) {
    filter = fopencookie(NULL, "w", (cookie_io_functions_t){.write = pass});
    if (filter != NULL) setvbuf(filter, NULL, _IONBF, 0);
  }
  FILE* own = stderr;
  if (filter != NULL) stderr = filter;
  void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  stderr = own;
  return opened;
}
#else
static void* open_quietly(const char* library) {
  return dlopen(library, RTLD_NOW | RTLD_LOCAL);
}
#endif

const char* sf_load(const char* framework, const char* library) {
  // The framework library must be opened first: the other library needs it, and
  // would otherwise search the system's path and might find another version.
  void* first = NULL;
  if (framework[0] != '\0') {
    first = open_quietly(framework);
    if (first == NULL) return load_error("%s%s", dlerror(), "");
  }
  void* lib = open_quietly(library);
  if (lib == NULL) return load_error("%s%s", dlerror(), "");
#define SF_RESOLVE(result, name, params)                                  \
  *(void**)&tf.name = dlsym(lib, #name);                                  \
  if (tf.name == NULL)                                                    \
    return load_error("%s has no function %s", library, #name);
  SF_FUNCTIONS(SF_RESOLVE)
#undef SF_RESOLVE
  release_pages(first);
  release_pages(lib);
  loaded = lib;
  return NULL;
}

int sf_onednn(void) {
  // This is tensorflow::IsMKLEnabled() of tensorflow/core/util/util.h, a C++
  // function without a counterpart in the C API.
  bool (*enabled)(void);
  *(void**)&enabled =
      loaded == NULL ? NULL : dlsym(loaded, "_ZN10tensorflow12IsMKLEnabledEv");
  return enabled == NULL ? -1 : enabled();
}

const char* sf_version(void) { return tf.TF_Version(); }

TF_Status* sf_new_status(void) { return tf.TF_NewStatus(); }
void sf_delete_status(TF_Status* s) { tf.TF_DeleteStatus(s); }
unsigned int sf_code(const TF_Status* s) { return tf.TF_GetCode(s); }
const char* sf_message(const TF_Status* s) { return tf.TF_Message(s); }

enum { DT_STRING = 7 };

TF_Tensor* sf_new_tensor(unsigned int dtype, const int64_t* dims, int ndims,
                         size_t bytes, void** data) {
  TF_Tensor* t = tf.TF_AllocateTensor(dtype, dims, ndims, bytes);
  if (t == NULL) return NULL;
  *data = tf.TF_TensorData(t);
  // TF_AllocateTensor of 0 bytes returns no buffer; that is not an error.
  if (*data == NULL && bytes > 0) {
    tf.TF_DeleteTensor(t);
    return NULL;
  }
  if (dtype == DT_STRING) {
    TF_TString* s = *data;
    for (size_t i = 0; i < bytes / sizeof(TF_TString); i++)
      tf.TF_StringInit(&s[i]);
  }
  return t;
}

void sf_delete_tensor(TF_Tensor* t, int64_t owned_strings) {
  if (t == NULL) return;
  // TF_DeleteTensor frees the buffer but not the memory outside it that strings
  // longer than 22 bytes use. While TensorFlow shares the buffer (because a
  // variable took it), steadyfit must not free the strings.
  if (owned_strings > 0 && tf.TF_TensorMaybeMove(t) != NULL) {
    TF_TString* s = tf.TF_TensorData(t);
    for (int64_t i = 0; i < owned_strings; i++) tf.TF_StringDealloc(&s[i]);
  }
  tf.TF_DeleteTensor(t);
}

void sf_set_strings(TF_Tensor* t, const char* flat, const int64_t* lengths,
                    int64_t count) {
  TF_TString* s = tf.TF_TensorData(t);
  for (int64_t i = 0; i < count; i++) {
    tf.TF_StringCopy(&s[i], flat, (size_t)lengths[i]);
    flat += lengths[i];
  }
}

void sf_get_string(const TF_Tensor* t, int64_t index, const char** data,
                   size_t* size) {
  const TF_TString* s = tf.TF_TensorData(t);
  *data = tf.TF_StringGetDataPointer(&s[index]);
  *size = tf.TF_StringGetSize(&s[index]);
}

void sf_describe_tensor(const TF_Tensor* t, unsigned int* dtype, int* ndims,
                        int64_t* bytes, int64_t* elements, void** data) {
  *dtype = tf.TF_TensorType(t);
  *ndims = tf.TF_NumDims(t);
  *bytes = (int64_t)tf.TF_TensorByteSize(t);
  *elements = tf.TF_TensorElementCount(t);
  *data = tf.TF_TensorData(t);
}

int64_t sf_tensor_dim(const TF_Tensor* t, int i) { return tf.TF_Dim(t, i); }

TF_Graph* sf_new_graph(void) { return tf.TF_NewGraph(); }
void sf_delete_graph(TF_Graph* g) { tf.TF_DeleteGraph(g); }

void sf_import_graph(TF_Graph* g, const void* def, size_t size,
                     const char* prefix, TF_Status* status) {
  TF_Buffer* buffer = tf.TF_NewBufferFromString(def, size);
  TF_ImportGraphDefOptions* options = tf.TF_NewImportGraphDefOptions();
  tf.TF_ImportGraphDefOptionsSetPrefix(options, prefix);
  tf.TF_GraphImportGraphDef(g, buffer, options, status);
  tf.TF_DeleteImportGraphDefOptions(options);
  tf.TF_DeleteBuffer(buffer);
}

TF_Operation* sf_find_operation(TF_Graph* g, const char* name) {
  return tf.TF_GraphOperationByName(g, name);
}
const char* sf_operation_name(TF_Operation* o) { return tf.TF_OperationName(o); }
int sf_operation_outputs(TF_Operation* o) {
  return tf.TF_OperationNumOutputs(o);
}
unsigned int sf_output_dtype(TF_Operation* o, int index) {
  TF_Output output = {o, index};
  return tf.TF_OperationOutputType(output);
}

static TF_SessionOptions* new_options(const void* config, size_t size,
                                      TF_Status* status) {
  TF_SessionOptions* options = tf.TF_NewSessionOptions();
  if (size > 0) tf.TF_SetConfig(options, config, size, status);
  return options;
}

TF_Session* sf_new_session(TF_Graph* g, const void* config, size_t size,
                           TF_Status* status) {
  TF_Session* session = NULL;
  TF_SessionOptions* options = new_options(config, size, status);
  if (tf.TF_GetCode(status) == 0)
    session = tf.TF_NewSession(g, options, status);
  tf.TF_DeleteSessionOptions(options);
  return session;
}

TF_Session* sf_load_saved_model(TF_Graph* g, const char* target,
                                const char* dir, const char* const* tags,
                                int ntags, const void* config, size_t size,
                                TF_Status* status) {
  TF_Session* session = NULL;
  TF_SessionOptions* options = new_options(config, size, status);
  if (target) tf.TF_SetTarget(options, target);
  if (tf.TF_GetCode(status) == 0)
    session = tf.TF_LoadSessionFromSavedModel(options, NULL, dir, tags, ntags,
                                              g, NULL, status);
  tf.TF_DeleteSessionOptions(options);
  return session;
}

const char* sf_new_server(const void* def, size_t size, TF_Status* status) {
  TF_Server* server = tf.TF_NewServer(def, size, status);
  if (tf.TF_GetCode(status) == 0) tf.TF_ServerStart(server, status);
  return tf.TF_GetCode(status) == 0 ? tf.TF_ServerTarget(server) : NULL;
}

void sf_close_session(TF_Session* s, TF_Status* status) {
  tf.TF_CloseSession(s, status);
}
void sf_delete_session(TF_Session* s, TF_Status* status) {
  tf.TF_DeleteSession(s, status);
}

TF_DeviceList* sf_list_devices(TF_Session* s, TF_Status* status) {
  return tf.TF_SessionListDevices(s, status);
}
int sf_device_count(const TF_DeviceList* l) { return tf.TF_DeviceListCount(l); }
const char* sf_device_name(const TF_DeviceList* l, int i, TF_Status* s) {
  return tf.TF_DeviceListName(l, i, s);
}
const char* sf_device_type(const TF_DeviceList* l, int i, TF_Status* s) {
  return tf.TF_DeviceListType(l, i, s);
}
int64_t sf_device_bytes(const TF_DeviceList* l, int i, TF_Status* s) {
  return tf.TF_DeviceListMemoryBytes(l, i, s);
}
void sf_delete_devices(TF_DeviceList* l) { tf.TF_DeleteDeviceList(l); }

sf_step* sf_new_step(TF_Session* session, int nfeeds, int nfetches,
                     int ntargets) {
  sf_step* s = calloc(1, sizeof *s);
  if (s == NULL) return NULL;
  s->session = session;
  s->status = tf.TF_NewStatus();
  s->nfeeds = nfeeds;
  s->nfetches = nfetches;
  s->ntargets = ntargets;
  // One more element than needed, so that a step without feeds has a non-NULL
  // address.
  s->feeds = calloc((size_t)nfeeds + 1, sizeof *s->feeds);
  s->inputs = calloc((size_t)nfeeds + 1, sizeof *s->inputs);
  s->input_data = calloc((size_t)nfeeds + 1, sizeof *s->input_data);
  s->borrowed = calloc((size_t)nfeeds + 1, sizeof *s->borrowed);
  s->fed = calloc((size_t)nfeeds + 1, sizeof *s->fed);
  s->fetches = calloc((size_t)nfetches + 1, sizeof *s->fetches);
  s->outputs = calloc((size_t)nfetches + 1, sizeof *s->outputs);
  s->scalars = calloc((size_t)nfetches + 1, sizeof *s->scalars);
  s->targets = calloc((size_t)ntargets + 1, sizeof *s->targets);
  if (!s->feeds || !s->inputs || !s->input_data || !s->borrowed || !s->fed ||
      !s->fetches || !s->outputs || !s->scalars || !s->targets) {
    sf_delete_step(s);
    return NULL;
  }
  return s;
}

// Output strings belong to TensorFlow or to an input, so they are not freed
// here.
static void drop_outputs(sf_step* s) {
  for (int i = 0; i < s->nfetches; i++) {
    if (s->outputs[i] != NULL) tf.TF_DeleteTensor(s->outputs[i]);
    s->outputs[i] = NULL;
    s->scalars[i] = NAN;
  }
}

static void drop_input(sf_step* s, int i) {
  TF_Tensor* t = s->inputs[i];
  bool strings = t != NULL && tf.TF_TensorType(t) == DT_STRING;
  sf_delete_tensor(t, strings ? tf.TF_TensorElementCount(t) : 0);
  s->inputs[i] = NULL;
  s->input_data[i] = NULL;
}

void sf_delete_step(sf_step* s) {
  if (s == NULL) return;
  if (s->outputs && s->scalars) drop_outputs(s);
  for (int i = 0; i < s->nfeeds; i++) {
    if (s->inputs && s->input_data) drop_input(s, i);
    if (s->borrowed) sf_step_release(s, i);
  }
  if (s->status) tf.TF_DeleteStatus(s->status);
  free(s->feeds);
  free(s->inputs);
  free(s->input_data);
  free(s->borrowed);
  free(s->fed);
  free(s->fetches);
  free(s->outputs);
  free(s->scalars);
  free(s->targets);
  free(s);
}

void sf_step_set_feed(sf_step* s, int i, TF_Operation* o, int index) {
  s->feeds[i] = (TF_Output){o, index};
}
void sf_step_set_fetch(sf_step* s, int i, TF_Operation* o, int index) {
  s->fetches[i] = (TF_Output){o, index};
}
void sf_step_set_target(sf_step* s, int i, TF_Operation* o) {
  s->targets[i] = o;
}

int sf_step_resize(sf_step* s, int i, unsigned int dtype, const int64_t* dims,
                   int ndims, size_t bytes) {
  // The old buffer is freed first, so that the two never exist at once.
  drop_input(s, i);
  s->inputs[i] = sf_new_tensor(dtype, dims, ndims, bytes, &s->input_data[i]);
  return s->inputs[i] != NULL;
}

static void end_borrow(void* data, size_t bytes, void* held) {
  (void)data;
  (void)bytes;
  __atomic_store_n((int32_t*)held, 0, __ATOMIC_RELEASE);
}

int sf_step_borrow(sf_step* s, int i, unsigned int dtype, const int64_t* dims,
                   int ndims, uintptr_t data, size_t bytes, uintptr_t held) {
  sf_step_release(s, i);
  int32_t* flag = (int32_t*)held;
  __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
  s->borrowed[i] = tf.TF_NewTensor(dtype, dims, ndims, (void*)data, bytes,
                                   end_borrow, flag);
  if (s->borrowed[i] == NULL) __atomic_store_n(flag, 0, __ATOMIC_RELAXED);
  return s->borrowed[i] != NULL;
}

void sf_step_release(sf_step* s, int i) {
  if (s->borrowed[i] != NULL) tf.TF_DeleteTensor(s->borrowed[i]);
  s->borrowed[i] = NULL;
}

TF_Tensor* sf_step_take(sf_step* s, int i) {
  TF_Tensor* t = s->outputs[i];
  s->outputs[i] = NULL;
  return t;
}

static double half_to_double(uint16_t h) {
  int exponent = (h >> 10) & 31, mantissa = h & 1023;
  double v = exponent == 31 ? (mantissa ? NAN : INFINITY)
             : exponent     ? ldexp(1024 + mantissa, exponent - 25)
                            : ldexp(mantissa, -24);
  return h >> 15 ? -v : v;
}

static double bfloat16_to_double(uint16_t b) {
  uint32_t bits = (uint32_t)b << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static double scalar_value(const TF_Tensor* t) {
  if (tf.TF_TensorElementCount(t) != 1) return NAN;
  const void* p = tf.TF_TensorData(t);
  if (p == NULL) return NAN;
  switch (tf.TF_TensorType(t)) {
    case 1: return *(const float*)p;
    case 2: return *(const double*)p;
    case 3: return *(const int32_t*)p;
    case 4: return *(const uint8_t*)p;
    case 5: return *(const int16_t*)p;
    case 6: return *(const int8_t*)p;
    case 9: return (double)*(const int64_t*)p;
    case 10: return *(const uint8_t*)p != 0;
    case 14: return bfloat16_to_double(*(const uint16_t*)p);
    case 17: return *(const uint16_t*)p;
    case 19: return half_to_double(*(const uint16_t*)p);
    case 22: return *(const uint32_t*)p;
    case 23: return (double)*(const uint64_t*)p;
  }
  return NAN;
}

// A model may keep the buffer of an input: a variable that is assigned the
// input shares its memory. Writing the next batch there would change the
// variable, so such an input gets a new buffer. Strings do not need one: each
// sf_step_resize makes new ones.
static void renew_retained(sf_step* s) {
  for (int i = 0; i < s->nfeeds; i++) {
    TF_Tensor* old = s->inputs[i];
    if (old == NULL || tf.TF_TensorType(old) == DT_STRING ||
        tf.TF_TensorMaybeMove(old) != NULL)
      continue;
    int64_t dims[254];  // maxRank in tensor.go
    int ndims = tf.TF_NumDims(old);
    size_t bytes = tf.TF_TensorByteSize(old);
    if (bytes == 0) continue;  // nothing is shared
    for (int d = 0; d < ndims; d++) dims[d] = tf.TF_Dim(old, d);
    void* data = NULL;
    TF_Tensor* fresh =
        sf_new_tensor(tf.TF_TensorType(old), dims, ndims, bytes, &data);
    if (fresh != NULL) memcpy(data, tf.TF_TensorData(old), bytes);
    s->inputs[i] = fresh;
    s->input_data[i] = data;
    tf.TF_DeleteTensor(old);
  }
}

// flush_denormals makes this thread flush denormal numbers to zero, and returns
// the previous control register. TensorFlow's threads flush them
// (EigenEnvironment::CreateThread, threadpool.cc). A thread that runs operations
// of a step itself must do the same, or the step has other bits and is slower.
static uint64_t flush_denormals(void) {
#if defined(__x86_64__)
  unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // FTZ and DAZ
  return before;
#elif defined(__aarch64__)
  uint64_t before;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" : : "r"(before | (1u << 24)));  // FZ
  return before;
#else
  return 0;
#endif
}

static void restore_denormals(uint64_t before) {
#if defined(__x86_64__)
  _mm_setcsr((unsigned int)before);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
  (void)before;
#endif
}

unsigned int sf_step_run_with(sf_step* s, TF_Tensor* const* inputs,
                              const TF_Buffer* options, TF_Buffer* metadata) {
  drop_outputs(s);
  uint64_t control = flush_denormals();
  tf.TF_SessionRun(s->session, options, s->feeds, inputs, s->nfeeds,
                   s->fetches, s->outputs, s->nfetches, s->targets,
                   s->ntargets, metadata, s->status);
  restore_denormals(control);
  unsigned int code = tf.TF_GetCode(s->status);
  if (code != 0) return code;
  for (int i = 0; i < s->nfetches; i++)
    s->scalars[i] = scalar_value(s->outputs[i]);
  return 0;
}

unsigned int sf_step_run(sf_step* s, const TF_Buffer* options,
                         TF_Buffer* metadata) {
  for (int i = 0; i < s->nfeeds; i++)
    s->fed[i] = s->borrowed[i] != NULL ? s->borrowed[i] : s->inputs[i];
  unsigned int code = sf_step_run_with(s, s->fed, options, metadata);
  renew_retained(s);
  return code;
}

TF_Buffer* sf_new_buffer(const void* data, size_t size) {
  return size > 0 ? tf.TF_NewBufferFromString(data, size) : tf.TF_NewBuffer();
}
void sf_read_buffer(const TF_Buffer* b, const void** data, size_t* size) {
  *data = b->data;
  *size = b->length;
}
void sf_delete_buffer(TF_Buffer* b) { tf.TF_DeleteBuffer(b); }
