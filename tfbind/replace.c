// The functions here replace functions of TensorFlow with the same names. TensorFlow's libraries
// call them through the dynamic linker, which prefers a definition that the executable exports
// (-rdynamic). The names contain the types of the parameters and the version of Abseil, so a
// TensorFlow with another interface calls its own functions. On a platform with a namespace per
// library, TensorFlow always calls its own functions.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

static atomic_bool serving;
static _Atomic uint64_t counter, numbers, aborts;

void sf_serving(void) { serving = true; }

void sf_replaced(uint64_t* n, uint64_t* a) {
  *n = numbers;
  *a = aborts;
}

static uint64_t start(void) {
  uint64_t seed = 0;
  struct timespec now;
  if (getentropy(&seed, sizeof seed) == 0) return seed | 1;
  clock_gettime(CLOCK_REALTIME, &now);
  return ((uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec ^
          (uint64_t)getpid() << 16) | 1;
}

// tsl::random::ThreadLocalNew64() returns a random number. TensorFlow's own function has a
// generator for each thread, with a seed of 32 bits. The session of a server runs each step in a
// new thread, and the server refuses a run whose number is one of the last 100,000. This happens to
// one in 2^32/100,000 = 43,000 runs. The cleanup of a refused run fails the exchange of the ranks
// that wait for it, with "Delete called on non-empty BufRendezvous". The numbers here do not repeat
// within a process: they are splitmix64 of a counter with a random start.
uint64_t _ZN3tsl6random16ThreadLocalNew64Ev(void) {
  numbers++;
  uint64_t zero = 0;
  if (counter == 0) atomic_compare_exchange_strong(&counter, &zero, start());
  uint64_t x = atomic_fetch_add(&counter, 0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// original returns the function with the given name in the library whose code contains the address,
// or in a library that this library needs.
static void* original(const char* name, const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0) return NULL;
  void* library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  return library == NULL ? NULL : dlsym(library, name);
}

#define LOCAL_RENDEZVOUS(function) \
  "_ZN10tensorflow15LocalRendezvous" function "ERKN4absl12lts_202508146StatusE"

typedef void abort_function(void* rendezvous, const void* status);
abort_function _ZN10tensorflow15LocalRendezvous10StartAbortERKN4absl12lts_202508146StatusE;

// tensorflow::LocalRendezvous::StartAbort(const absl::Status&) calls DoAbort and then keeps the
// rendezvous forever, because workers that ask for it later should get the status. A server calls
// StartAbort for each run whose cleanup begins before the thread that ended the run has released
// the rendezvous (BaseRendezvousMgr::Cleanup, GraphMgr::ExecuteAsync). On a busy machine, this is
// one run in five. No worker asks for the rendezvous of another rank, because the sessions of ranks
// have the devices of their own server only.
void _ZN10tensorflow15LocalRendezvous10StartAbortERKN4absl12lts_202508146StatusE(
    void* rendezvous, const void* status) {
  static _Atomic(abort_function*) functions[2];
  aborts++;
  int i = serving;
  abort_function* f = functions[i];
  if (f == NULL) {
    const void* caller = __builtin_return_address(0);
    if (i) *(void**)&f = original(LOCAL_RENDEZVOUS("7DoAbort"), caller);
    if (f == NULL)
      *(void**)&f = original(LOCAL_RENDEZVOUS("10StartAbort"), caller);
    if (f == NULL)
      *(void**)&f = dlsym(RTLD_NEXT, LOCAL_RENDEZVOUS("10StartAbort"));
    functions[i] = f;
  }
  if (f != NULL) f(rendezvous, status);
}
