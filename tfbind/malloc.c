#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

#include "shim.h"

// struct mallinfo2 of malloc.h in glibc 2.33 and later. It is declared here so
// that the code also builds with an older glibc.
struct sf_mallinfo2 {
  size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks,
      fordblks, keepcost;
};

// These functions are looked up at run time, so that no allocator is linked and
// a preloaded one is found.
static struct {
  int allocator;
  struct sf_mallinfo2 (*mallinfo2)(void);
  int (*malloc_trim)(size_t);
  int (*mallopt)(int, int);
  int (*mallctl)(const char*, void*, size_t*, void*, size_t);
  int (*tc_property)(const char*, size_t*);
  void (*tc_release)(void);
  void (*mi_collect)(bool);
} m;

// Looks up a function in the library that malloc comes from, and only there.
// With a preloaded jemalloc, glibc's malloc_trim also exists but has no effect.
static void* beside(const void* home, const char* name) {
  void* f = dlsym(RTLD_DEFAULT, name);
  Dl_info info;
  return f != NULL && dladdr(f, &info) != 0 && info.dli_fbase == home ? f
                                                                      : NULL;
}

static void find_allocator(void) {
  Dl_info info;
  void* f = dlsym(RTLD_DEFAULT, "malloc");
  if (f == NULL || dladdr(f, &info) == 0) return;
  const void* home = info.dli_fbase;
  *(void**)&m.mallctl = beside(home, "mallctl");
  *(void**)&m.tc_property =
      beside(home, "MallocExtension_GetNumericProperty");
  *(void**)&m.tc_release = beside(home, "MallocExtension_ReleaseFreeMemory");
  *(void**)&m.mi_collect = beside(home, "mi_collect");
  *(void**)&m.malloc_trim = beside(home, "malloc_trim");
  *(void**)&m.mallinfo2 = beside(home, "mallinfo2");
  *(void**)&m.mallopt = beside(home, "mallopt");
  // tcmalloc also has mallinfo2 and malloc_trim, so glibc is checked last.
  if (m.mallctl != NULL)
    m.allocator = SF_JEMALLOC;
  else if (m.tc_property != NULL)
    m.allocator = SF_TCMALLOC;
  else if (m.mi_collect != NULL)
    m.allocator = SF_MIMALLOC;
  else if (m.malloc_trim != NULL)
    m.allocator = SF_GLIBC;
}

static int allocator(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_allocator);
  return m.allocator;
}

static int64_t je_stat(const char* name) {
  size_t value = 0, size = sizeof value;
  return m.mallctl(name, &value, &size, NULL, 0) == 0 ? (int64_t)value : -1;
}

static int64_t tc_stat(const char* name) {
  size_t value = 0;
  return m.tc_property(name, &value) ? (int64_t)value : -1;
}

sf_malloc_info sf_ask_malloc(void) {
  sf_malloc_info info = {allocator(), -1, -1, -1, -1};
  switch (info.allocator) {
    case SF_GLIBC:
      if (m.mallinfo2 != NULL) {
        struct sf_mallinfo2 g = m.mallinfo2();
        info.in_use = (int64_t)(g.uordblks + g.hblkhd);
        info.arenas = (int64_t)(g.arena + g.hblkhd);
        info.mapped = (int64_t)g.hblkhd;
      }
      break;
    case SF_JEMALLOC: {
      // jemalloc updates its statistics when the epoch is set.
      uint64_t epoch = 1;
      size_t size = sizeof epoch;
      if (m.mallctl("epoch", &epoch, &size, &epoch, size) != 0) break;
      info.in_use = je_stat("stats.allocated");
      info.arenas = je_stat("stats.resident");
      break;
    }
    case SF_TCMALLOC: {
      int64_t heap = tc_stat("generic.heap_size");
      int64_t unmapped = tc_stat("tcmalloc.pageheap_unmapped_bytes");
      info.in_use = tc_stat("generic.current_allocated_bytes");
      if (heap >= 0 && unmapped >= 0) info.arenas = heap - unmapped;
      break;
    }
  }
  // The two values are read one after the other, while other threads allocate.
  if (info.in_use >= 0 && info.arenas >= 0)
    info.free = info.arenas > info.in_use ? info.arenas - info.in_use : 0;
  return info;
}

int sf_trim_malloc(void) {
  switch (allocator()) {
    case SF_GLIBC:
      m.malloc_trim(0);
      return 1;
    case SF_JEMALLOC:
      // 4096 is MALLCTL_ARENAS_ALL.
      return m.mallctl("arena.4096.purge", NULL, NULL, NULL, 0) == 0;
    case SF_TCMALLOC:
      if (m.tc_release == NULL) return 0;
      m.tc_release();
      return 1;
    case SF_MIMALLOC:
      m.mi_collect(true);
      return 1;
  }
  return 0;
}

int sf_set_mmap_threshold(int bytes) {
  // The parameters of mallopt in glibc's malloc.h.
  enum { trim_threshold = -1, mmap_threshold = -3 };
  if (allocator() != SF_GLIBC || m.mallopt == NULL) return 0;
  return m.mallopt(mmap_threshold, bytes) != 0 &&
         m.mallopt(trim_threshold, 2 * bytes) != 0;
}
