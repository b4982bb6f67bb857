// The bare training loop over the TensorFlow C API: what the other arms of the
// benchmark are compared with. It loads a SavedModel, resolves feeds and fetches
// once, copies one batch from host memory into one reused input tensor per feed
// at each step, runs the step, reads the loss and frees the output.
//
//   cloop -model DIR -name NAME -batch N -feed NAME=DTYPE:SHAPE[:LIMIT] ...
//         -fetch NAME ... [-steps N] [-warmup N] [-chunks N]
//   cloop -dump -feed ...        prints the first values of each feed
//
// The first fetch is the loss. The batch, the measured loop and the result line
// are those of internal/measure (Go), which documents them.
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tensor.h"

enum { MAX_IO = 16, MAX_RANK = 8, MAX_CHUNKS = 1000 };

typedef struct {
  char name[256];  // operation, without the index
  int index;
  TF_DataType dtype;
  int rank;
  int64_t shape[MAX_RANK];
  size_t elements;
  uint32_t limit;
  void *batch;  // host memory, copied at each step
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

static Feed parse_feed(const char *text) {
  Feed f = {.limit = 10, .elements = 1};
  char copy[512];
  if (strlen(text) >= sizeof copy) die(text, "feed too long");
  strcpy(copy, text);
  char *rest = strchr(copy, '=');
  if (!rest) die(text, "feed is not NAME=DTYPE:SHAPE[:LIMIT]");
  *rest++ = 0;
  split_name(copy, f.name, sizeof f.name, &f.index);
  char *dtype = strsep(&rest, ":"), *shape = strsep(&rest, ":"), *limit = rest;
  if (!shape) die(text, "feed is not NAME=DTYPE:SHAPE[:LIMIT]");
  if (!strcmp(dtype, "float")) f.dtype = TF_FLOAT;
  else if (!strcmp(dtype, "int32")) f.dtype = TF_INT32;
  else if (!strcmp(dtype, "int64")) f.dtype = TF_INT64;
  else die(text, "dtype is not float, int32 or int64");
  for (char *d; *shape && (d = strsep(&shape, "x"));) {
    if (f.rank == MAX_RANK) die(text, "too many dimensions");
    f.shape[f.rank] = number(d, text);
    f.elements *= (size_t)f.shape[f.rank++];
    if (!shape) break;
  }
  if (limit) f.limit = (uint32_t)number(limit, text);
  return f;
}

static void fill(Feed *f, uint32_t seed) {
  f->batch = allocate(f->elements * TF_DataTypeSize(f->dtype));
  uint32_t s = seed;
  for (size_t k = 0; k < f->elements; k++) {
    s = s * 1664525u + 1013904223u;
    if (f->dtype == TF_FLOAT) ((float *)f->batch)[k] = (float)(s >> 8) / 16777216.0f;
    else if (f->dtype == TF_INT32) ((int32_t *)f->batch)[k] = (int32_t)((s >> 16) % f->limit);
    else ((int64_t *)f->batch)[k] = (int64_t)((s >> 16) % f->limit);
  }
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

typedef struct { int64_t rss, anon, peak; } Memory;

static Memory read_memory(void) {
  Memory m = {0};
  char line[256];
  FILE *f = fopen("/proc/self/status", "r");
  if (!f) die("/proc/self/status", "cannot be read");
  while (fgets(line, sizeof line, f)) {
    sscanf(line, "VmRSS: %ld", &m.rss);
    sscanf(line, "RssAnon: %ld", &m.anon);
    sscanf(line, "VmHWM: %ld", &m.peak);
  }
  fclose(f);
  m.rss *= 1024, m.anon *= 1024, m.peak *= 1024;
  return m;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *v, size_t n) {
  if (n == 0) return 0;
  qsort(v, n, sizeof *v, by_value);
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double theil_sen(const double *x, const double *y, size_t n) {
  double *slopes = allocate(sizeof(double) * (n * (n - 1) / 2 + 1));
  size_t k = 0;
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j < i; j++) slopes[k++] = (y[i] - y[j]) / (x[i] - x[j]);
  double m = median(slopes, k);
  free(slopes);
  return m;
}

static TF_Output resolve(TF_Graph *graph, const char *name, int index) {
  TF_Operation *op = TF_GraphOperationByName(graph, name);
  if (!op) die(name, "no such operation in the graph");
  if (index >= TF_OperationNumOutputs(op)) die(name, "no such output");
  return (TF_Output){op, index};
}

int main(int argc, char **argv) {
  const char *model = NULL, *name = "model", *fetch_names[MAX_IO];
  Feed feeds[MAX_IO];
  int nfeeds = 0, nfetches = 0, dump = 0;
  long batch = 0, steps = 1000, warmup = 50, chunks = 50;
  for (int i = 1; i < argc; i++) {
    const char *flag = argv[i] + (argv[i][0] == '-') + (argv[i][0] == '-' && argv[i][1] == '-');
    if (!strcmp(flag, "dump")) {
      dump = 1;
      continue;
    }
    if (i + 1 == argc) die(argv[i], "unknown, or its value is missing");
    const char *value = argv[++i];
    if (!strcmp(flag, "model")) model = value;
    else if (!strcmp(flag, "name")) name = value;
    else if (!strcmp(flag, "batch")) batch = number(value, "batch");
    else if (!strcmp(flag, "steps")) steps = number(value, "steps");
    else if (!strcmp(flag, "warmup")) warmup = number(value, "warmup");
    else if (!strcmp(flag, "chunks")) chunks = number(value, "chunks");
    else if (!strcmp(flag, "feed") && nfeeds < MAX_IO) feeds[nfeeds++] = parse_feed(value);
    else if (!strcmp(flag, "fetch") && nfetches < MAX_IO) fetch_names[nfetches++] = value;
    else die(argv[i - 1], "unknown flag, or too many of it");
  }
  for (int i = 0; i < nfeeds; i++) fill(&feeds[i], (uint32_t)i + 1);
  if (dump) {
    for (int i = 0; i < nfeeds; i++)
      for (size_t k = 0; k < feeds[i].elements && k < 4; k++)
        printf("%s %zu %.8f\n", feeds[i].name, k,
               feeds[i].dtype == TF_FLOAT ? ((float *)feeds[i].batch)[k]
               : feeds[i].dtype == TF_INT32 ? ((int32_t *)feeds[i].batch)[k]
                                            : (double)((int64_t *)feeds[i].batch)[k]);
    return 0;
  }
  if (!model || nfeeds == 0 || nfetches == 0) die("usage", "-model, -feed and -fetch are needed");
  if (chunks > MAX_CHUNKS || steps < chunks) die("steps", "at least one per chunk, at most 1000 chunks");

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

  float loss = NAN, first = NAN;
  double means[MAX_CHUNKS], at[MAX_CHUNKS], anon[MAX_CHUNKS];
  int64_t total = 0;
  Memory memory = {0};
  long size = steps / chunks;
  // Chunk -1 is the warm-up.
  for (long c = -1; c < chunks; c++) {
    int64_t start = now();
    for (long s = 0; s < (c < 0 ? warmup : size); s++) {
      for (int i = 0; i < nfeeds; i++)
        memcpy(TF_TensorData(feeds[i].tensor), feeds[i].batch, TF_TensorByteSize(feeds[i].tensor));
      TF_SessionRun(session, NULL, inputs, values, nfeeds, outputs, results, nfetches, NULL, 0, NULL, status);
      check(status, "step");
      loss = *(float *)TF_TensorData(results[0]);
      for (int i = 0; i < nfetches; i++) TF_DeleteTensor(results[i]);
      if (c < 0 && s == 0) first = loss;
    }
    if (c < 0) continue;
    int64_t took = now() - start;
    total += took;
    // Outside the clock: reading /proc costs about as much as a small step.
    memory = read_memory();
    means[c] = (double)took / (double)size;
    at[c] = (double)((c + 1) * size);
    anon[c] = (double)memory.anon;
  }
  double low = INFINITY, high = 0;
  for (long c = 0; c < chunks; c++) {
    if (anon[c] < low) low = anon[c];
    if (anon[c] > high) high = anon[c];
  }
  double slope = theil_sen(at, anon, (size_t)chunks);
  printf("BenchmarkStep/impl=c/model=%s/batch=%ld\t%ld\t%.0f ns/op\t%.0f mean-ns/op\t%ld rss-bytes\t%ld anon-bytes\t"
         "%ld peak-bytes\t%.1f anon-B/step\t%.0f anon-range-bytes\t%.9g first-loss\t%.9g last-loss\n",
         name, batch, size * chunks, median(means, (size_t)chunks), (double)total / (double)(size * chunks),
         memory.rss, memory.anon, memory.peak, slope, high - low, (double)first, (double)loss);

  for (int i = 0; i < nfeeds; i++) {
    TF_DeleteTensor(feeds[i].tensor);
    free(feeds[i].batch);
  }
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
