// Compiles only if every prototype, structure and constant that steadyfit
// declares for itself in tfapi.h is what TensorFlow's headers say. Nothing here
// is linked or run: see the abi target of the Makefile.
#include <stdbool.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tensor.h"
#include "tensorflow/c/tf_tstring.h"

#define STEADYFIT_ABI_CHECK
#include "../tfapi.h"

#define SF_CHECK(result, name, params)                                        \
  _Static_assert(                                                             \
      __builtin_types_compatible_p(__typeof__(&name), result(*) params),      \
      #name ": prototype differs from TensorFlow's header");
SF_FUNCTIONS(SF_CHECK)

// tfapi.h declares both enums as unsigned int.
_Static_assert(__builtin_types_compatible_p(TF_Code, unsigned int), "TF_Code");
_Static_assert(__builtin_types_compatible_p(TF_DataType, unsigned int),
               "TF_DataType");

_Static_assert(sizeof(TF_TString) == 24, "TF_TString: size");
_Static_assert(offsetof(TF_Buffer, data) == 0, "TF_Buffer.data");
_Static_assert(offsetof(TF_Buffer, length) == sizeof(void*), "TF_Buffer.length");
_Static_assert(sizeof(TF_Buffer) == 3 * sizeof(void*), "TF_Buffer: size");
_Static_assert(offsetof(TF_Output, index) == sizeof(void*), "TF_Output.index");

// The numbers in dtype.go and errors.go.
_Static_assert(TF_FLOAT == 1 && TF_DOUBLE == 2 && TF_INT32 == 3 &&
                   TF_UINT8 == 4 && TF_INT16 == 5 && TF_INT8 == 6 &&
                   TF_STRING == 7 && TF_INT64 == 9 && TF_BOOL == 10 &&
                   TF_BFLOAT16 == 14 && TF_UINT16 == 17 && TF_HALF == 19 &&
                   TF_UINT32 == 22 && TF_UINT64 == 23,
               "dtype.go");
_Static_assert(TF_OK == 0 && TF_CANCELLED == 1 && TF_UNKNOWN == 2 &&
                   TF_INVALID_ARGUMENT == 3 && TF_DEADLINE_EXCEEDED == 4 &&
                   TF_NOT_FOUND == 5 && TF_ALREADY_EXISTS == 6 &&
                   TF_PERMISSION_DENIED == 7 && TF_RESOURCE_EXHAUSTED == 8 &&
                   TF_FAILED_PRECONDITION == 9 && TF_ABORTED == 10 &&
                   TF_OUT_OF_RANGE == 11 && TF_UNIMPLEMENTED == 12 &&
                   TF_INTERNAL == 13 && TF_UNAVAILABLE == 14 &&
                   TF_DATA_LOSS == 15 && TF_UNAUTHENTICATED == 16,
               "errors.go");
