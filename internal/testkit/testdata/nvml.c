// A libnvidia-ml.so.1 with GPUS GPUs, for tests of how the library is loaded and called, and of what
// it fills in. With OLD it is a library from before driver 510, which has no
// nvmlDeviceGetMemoryInfo_v2. The process that asks is listed second of three, with 7 MiB. With FORBIDDEN
// this user may not see processes. With SILENT the last GPU does not report its memory.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long bytes;
typedef struct { unsigned number; } device;

enum { success = 0, uninitialized = 1, invalid_argument = 2, not_supported = 3, no_permission = 4, insufficient_size = 7, version_mismatch = 25 };

#ifndef GPUS
#define GPUS 1
#endif
#ifndef SILENT
#define SILENT 0
#endif
static int silent(device *d) { return SILENT && d->number == GPUS - 1; }

static int opened;
static device gpus[GPUS];
#define MIB (1ULL << 20)

int nvmlInit_v2(void) { opened++; return success; }
const char *nvmlErrorString(int r) { return r == uninitialized ? "Uninitialized" : "an error"; }

int nvmlDeviceGetCount_v2(unsigned *n) { *n = GPUS; return success; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device **d) {
  if (i >= GPUS) return invalid_argument;
  gpus[i].number = i;
  *d = &gpus[i];
  return success;
}

int nvmlDeviceGetName(device *d, char *text, unsigned n) {
  snprintf(text, n, "Test GPU");
  return success;
}

typedef struct { unsigned pid; bytes used; unsigned gpu_instance, compute_instance; } process2;

static const bytes each[] = {100 * MIB, 7 * MIB, ~0ULL};

int nvmlDeviceGetComputeRunningProcesses_v2(device *d, unsigned *n, process2 *into) {
  if (opened <= 0) return uninitialized;
#ifdef FORBIDDEN
  return no_permission;
#endif
  unsigned room = *n;
  *n = 3;
  if (room < 3) return insufficient_size;
  unsigned pids[] = {1, (unsigned)getpid(), 2};
  for (int i = 0; i < 3; i++) {
    into[i] = (process2){pids[i], each[i], ~0u, ~0u};
  }
  return success;
}
// In some drivers this function writes larger entries, so it must not be called.
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, void *into) { abort(); }

#ifndef OLD
typedef struct { unsigned version; bytes total, reserved, free, used; } memory2;
int nvmlDeviceGetMemoryInfo_v2(device *d, memory2 *m) {
  if (opened <= 0) return uninitialized;
  if (silent(d)) return not_supported;
  if (m->version != (sizeof *m | 2u << 24)) return version_mismatch;
  m->total = 1000 * MIB, m->reserved = 30 * MIB, m->used = 100 * MIB, m->free = 870 * MIB;
  return success;
}

unsigned layout(unsigned long long *into, unsigned room) {
  unsigned long long all[] = {
      sizeof(memory2), offsetof(memory2, version), offsetof(memory2, total), offsetof(memory2, reserved), offsetof(memory2, free), offsetof(memory2, used),
      sizeof(process2), offsetof(process2, pid), offsetof(process2, used), offsetof(process2, gpu_instance), offsetof(process2, compute_instance),
  };
  unsigned n = sizeof all / sizeof *all;
  if (n > room) return 0;
  memcpy(into, all, sizeof all);
  return n;
}
#endif
