// The bare training loop over the TensorFlow C API, the reference for the other variants
// of the benchmark. It loads a SavedModel, resolves feeds and fetches
// once, copies the next batch from host memory into one reused input tensor per feed
// at each step, runs the step, reads the loss and frees the output.
//
//   cloop -model DIR -data DIR -feed TENSOR=FIELD ... -fetch TENSOR ...
//         -batch N -steps N -epochs N
//
// FIELD.npy in the folder of the data has the batches of one epoch: steps x batch
// samples. One epoch to warm up comes before the measured ones. The first fetch is the
// loss. Prints one JSON object, which BenchmarkTrain in internal/lab/bindings reads.
//
// With -steps 1 -mode predict, the program reads lines THREADS CALLS instead of training, runs
// the calls on the batch in that many threads, and answers with its anonymous memory in bytes.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tensor.h"

enum { MAX_IO = 16, MAX_RANK = 8, MAX_EPOCHS = 1000 };

typedef struct {
  char name[256];  // operation, without the index
  int index;
  TF_DataType dtype;
  int rank;
  int64_t shape[MAX_RANK];  // of all samples, then of a batch
  size_t elements;          // of the shape
  char *samples;            // host memory; each step copies a batch of it
  TF_Tensor *tensor;
} Feed;

static void die(const char *what, const char *detail) {
  fprintf(stderr, "cloop: %s: %s\n", what, detail);
  exit(1);
}

static void check(TF_Status *s, const char *what) {
  if (TF_GetCode(s) != TF_OK) die(what, TF_Message(s));
}

static void *allocate(size_t n) {
  void *p = malloc(n);
  if (!p) die("memory", "malloc failed");
  return p;
}

static long number(const char *text, const char *what) {
  char *end;
  long n = strtol(text, &end, 10);
  if (*text == 0 || *end != 0 || n < 1) die(what, "not a positive number");
  return n;
}

// Splits "op:index"; a name without an index means output 0.
static void split_name(const char *tensor, char *name, size_t size, int *index) {
  if (strlen(tensor) >= size) die(tensor, "name too long");
  strcpy(name, tensor);
  *index = 0;
  char *colon = strrchr(name, ':');
  if (colon) {
    *colon = 0;
    *index = atoi(colon + 1);
  }
}

// Reads a file of numpy.save: little-endian, in C order.
static void read_npy(Feed *f, const char *path) {
  FILE *file = fopen(path, "rb");
  unsigned char start[12];
  char header[4096];
  if (!file) die(path, "cannot be opened");
  if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6)) die(path, "not a .npy file");
  size_t length = start[8] + 256u * start[9];
  if (start[6] > 1) {
    if (fread(start + 10, 1, 2, file) != 2) die(path, "cut off");
    length += 65536u * start[10];
  }
  if (length >= sizeof header || fread(header, 1, length, file) != length) die(path, "header too long, or cut off");
  header[length] = 0;
  if (strstr(header, "'<f4'")) f->dtype = TF_FLOAT;
  else if (strstr(header, "'<i4'")) f->dtype = TF_INT32;
  else if (strstr(header, "'<i8'")) f->dtype = TF_INT64;
  else die(path, "not float32, int32 or int64");
  char *at = strstr(header, "'shape'");
  if (!at || !(at = strchr(at, '(')) || strstr(header, "True")) die(path, "no shape, or in Fortran order");
  f->elements = 1;
  for (at++; f->rank < MAX_RANK; at++) {
    char *end;
    long n = strtol(at, &end, 10);
    if (end == at) break;
    f->shape[f->rank++] = n;
    f->elements *= (size_t)n;
    if (*(at = end) != ',') break;
  }
  size_t bytes = f->elements * TF_DataTypeSize(f->dtype);
  f->samples = allocate(bytes);
  if (f->rank == 0 || fread(f->samples, 1, bytes, file) != bytes) die(path, "no samples, or cut off");
  fclose(file);
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

typedef struct { int64_t anon, peak; } Memory;

static Memory read_memory(void) {
  Memory m = {0};
  char line[256];
  FILE *f = fopen("/proc/self/status", "r");
  if (!f) die("/proc/self/status", "cannot be read");
  while (fgets(line, sizeof line, f)) {
    sscanf(line, "RssAnon: %ld", &m.anon);
    sscanf(line, "VmHWM: %ld", &m.peak);
  }
  fclose(f);
  m.anon *= 1024, m.peak *= 1024;
  return m;
}

static TF_Output resolve(TF_Graph *graph, const char *name, int index) {
  TF_Operation *op = TF_GraphOperationByName(graph, name);
  if (!op) die(name, "no such operation in the graph");
  if (index >= TF_OperationNumOutputs(op)) die(name, "no such output");
  return (TF_Output){op, index};
}

// The graph, and the calls of one thread.
typedef struct {
  TF_Session *session;
  const Feed *feeds;
  const TF_Output *inputs, *outputs;
  int nfeeds, nfetches;
  long calls;
} Calls;

static void *predict(void *argument) {
  const Calls *c = argument;
  TF_Status *status = TF_NewStatus();
  TF_Tensor *values[MAX_IO], *results[MAX_IO];
  for (int i = 0; i < c->nfeeds; i++) {
    const Feed *f = &c->feeds[i];
    values[i] = TF_AllocateTensor(f->dtype, f->shape, f->rank, TF_TensorByteSize(f->tensor));
    if (!values[i]) die(f->name, "TF_AllocateTensor failed");
  }
  volatile char seen;  // a result is read
  for (long n = 0; n < c->calls; n++) {
    for (int i = 0; i < c->nfeeds; i++) memcpy(TF_TensorData(values[i]), c->feeds[i].samples, TF_TensorByteSize(values[i]));
    TF_SessionRun(c->session, NULL, c->inputs, values, c->nfeeds, c->outputs, results, c->nfetches, NULL, 0, NULL, status);
    check(status, "prediction");
    for (int i = 0; i < c->nfetches; i++) {
      seen = *(char *)TF_TensorData(results[i]);
      TF_DeleteTensor(results[i]);
    }
  }
  (void)seen;
  for (int i = 0; i < c->nfeeds; i++) TF_DeleteTensor(values[i]);
  TF_DeleteStatus(status);
  return NULL;
}

static void predictions(Calls all) {
  enum { MAX_THREADS = 1024 };
  pthread_t threads[MAX_THREADS];
  Calls shares[MAX_THREADS];
  long n, calls;
  while (scanf("%ld %ld", &n, &calls) == 2 && n >= 1 && n <= MAX_THREADS) {
    for (long i = 0; i < n; i++) {
      shares[i] = all;
      shares[i].calls = calls / n + (i < calls % n);
      if (pthread_create(&threads[i], NULL, predict, &shares[i])) die("threads", "cannot be started");
    }
    for (long i = 0; i < n; i++) pthread_join(threads[i], NULL);
    printf("%ld\n", read_memory().anon);
    fflush(stdout);
  }
}

int main(int argc, char **argv) {
  const char *model = NULL, *data = NULL, *mode = "train", *fetch_names[MAX_IO];
  Feed feeds[MAX_IO] = {0};
  char files[MAX_IO][4096];
  int nfeeds = 0, nfetches = 0;
  long batch = 0, steps = 0, epochs = 0;
  for (int i = 1; i < argc; i++) {
    if (i + 1 == argc) die(argv[i], "unknown, or its value is missing");
    const char *flag = argv[i], *value = argv[++i];
    if (!strcmp(flag, "-model")) model = value;
    else if (!strcmp(flag, "-data")) data = value;
    else if (!strcmp(flag, "-mode")) mode = value;
    else if (!strcmp(flag, "-batch")) batch = number(value, "batch");
    else if (!strcmp(flag, "-steps")) steps = number(value, "steps");
    else if (!strcmp(flag, "-epochs")) epochs = number(value, "epochs");
    else if (!strcmp(flag, "-feed") && nfeeds < MAX_IO && data) {
      const char *field = strchr(value, '=');
      char tensor[256];
      if (!field || (size_t)(field - value) >= sizeof tensor) die(value, "not TENSOR=FIELD");
      snprintf(tensor, sizeof tensor, "%.*s", (int)(field - value), value);
      split_name(tensor, feeds[nfeeds].name, sizeof feeds[nfeeds].name, &feeds[nfeeds].index);
      snprintf(files[nfeeds], sizeof files[nfeeds], "%s/%s.npy", data, field + 1);
      nfeeds++;
    } else if (!strcmp(flag, "-fetch") && nfetches < MAX_IO) fetch_names[nfetches++] = value;
    else die(flag, "unknown flag, too many of it, or -feed before -data");
  }
  if (!model || !batch || !steps || !epochs || nfeeds == 0 || nfetches == 0) die("usage", "a flag is missing");
  if (epochs > MAX_EPOCHS) die("epochs", "at most 1000");
  for (int i = 0; i < nfeeds; i++) {
    Feed *f = &feeds[i];
    read_npy(f, files[i]);
    if (f->shape[0] != batch * steps) die(files[i], "not as many samples as an epoch has");
    f->shape[0] = batch;
    f->elements /= (size_t)steps;
  }

  TF_Status *status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  const char *tags[] = {"serve"};
  TF_Session *session = TF_LoadSessionFromSavedModel(options, NULL, model, tags, 1, graph, NULL, status);
  check(status, "load");

  TF_Output inputs[MAX_IO], outputs[MAX_IO];
  TF_Tensor *values[MAX_IO], *results[MAX_IO];
  for (int i = 0; i < nfeeds; i++) {
    Feed *f = &feeds[i];
    inputs[i] = resolve(graph, f->name, f->index);
    f->tensor = TF_AllocateTensor(f->dtype, f->shape, f->rank, f->elements * TF_DataTypeSize(f->dtype));
    if (!f->tensor) die(f->name, "TF_AllocateTensor failed");
    values[i] = f->tensor;
  }
  for (int i = 0; i < nfetches; i++) {
    char op[256];
    int index;
    split_name(fetch_names[i], op, sizeof op, &index);
    outputs[i] = resolve(graph, op, index);
  }

  if (!strcmp(mode, "predict")) {
    predictions((Calls){session, feeds, inputs, outputs, nfeeds, nfetches, 0});
    return 0;
  }
  double times[MAX_EPOCHS], loss = 0;
  int64_t anon[MAX_EPOCHS];
  Memory memory = {0};
  // Epoch -1 is the warm-up.
  for (long e = -1; e < epochs; e++) {
    double sum = 0;
    int64_t start = now();
    for (long s = 0; s < steps; s++) {
      for (int i = 0; i < nfeeds; i++) {
        size_t bytes = TF_TensorByteSize(feeds[i].tensor);
        memcpy(TF_TensorData(feeds[i].tensor), feeds[i].samples + (size_t)s * bytes, bytes);
      }
      TF_SessionRun(session, NULL, inputs, values, nfeeds, outputs, results, nfetches, NULL, 0, NULL, status);
      check(status, "step");
      sum += *(float *)TF_TensorData(results[0]);
      for (int i = 0; i < nfetches; i++) TF_DeleteTensor(results[i]);
    }
    if (e < 0) {
      loss = sum / (double)steps;
      continue;
    }
    times[e] = (double)(now() - start) / (double)steps;
    // This is not timed: reading /proc takes about as long as a small step.
    memory = read_memory();
    anon[e] = memory.anon;
  }
  printf("{\"step_ns\":[");
  for (long e = 0; e < epochs; e++) printf("%s%.1f", e ? "," : "", times[e]);
  printf("],\"anon_bytes\":[");
  for (long e = 0; e < epochs; e++) printf("%s%ld", e ? "," : "", anon[e]);
  printf("],\"peak_bytes\":%ld,\"warmup_loss\":%.9g}\n", memory.peak, loss);

  for (int i = 0; i < nfeeds; i++) {
    TF_DeleteTensor(feeds[i].tensor);
    free(feeds[i].samples);
  }
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
