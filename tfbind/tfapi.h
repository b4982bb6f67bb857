// The part of the TensorFlow C API that steadyfit uses. SF_FUNCTIONS lists each
// function once: the loader fills its table from the list, and abi/abi_check.c
// compares the list with TensorFlow's headers at compile time.
#ifndef STEADYFIT_TFAPI_H_
#define STEADYFIT_TFAPI_H_

#include <stddef.h>
#include <stdint.h>

#ifndef STEADYFIT_ABI_CHECK

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_Graph TF_Graph;
typedef struct TF_Operation TF_Operation;
typedef struct TF_Session TF_Session;
typedef struct TF_SessionOptions TF_SessionOptions;
typedef struct TF_ImportGraphDefOptions TF_ImportGraphDefOptions;
typedef struct TF_DeviceList TF_DeviceList;
typedef struct TF_Server TF_Server;

// C gives an enum without negative values the type unsigned int.
typedef unsigned int TF_Code;
typedef unsigned int TF_DataType;

typedef struct TF_Buffer {
  const void* data;
  size_t length;
  void (*data_deallocator)(void* data, size_t length);
} TF_Buffer;

typedef struct TF_Output {
  TF_Operation* oper;
  int index;
} TF_Output;

// The layout of these 24 bytes is private to TensorFlow.
typedef struct TF_TString {
  uint64_t opaque[3];
} TF_TString;

#endif  // STEADYFIT_ABI_CHECK

// X(result, name, parameters)
#define SF_FUNCTIONS(X)                                                        \
  X(const char*, TF_Version, (void))                                           \
  X(TF_Status*, TF_NewStatus, (void))                                          \
  X(void, TF_DeleteStatus, (TF_Status*))                                       \
  X(TF_Code, TF_GetCode, (const TF_Status*))                                   \
  X(const char*, TF_Message, (const TF_Status*))                               \
  X(TF_Buffer*, TF_NewBuffer, (void))                                          \
  X(TF_Buffer*, TF_NewBufferFromString, (const void*, size_t))                 \
  X(void, TF_DeleteBuffer, (TF_Buffer*))                                       \
  X(TF_Tensor*, TF_AllocateTensor, (TF_DataType, const int64_t*, int, size_t)) \
  X(TF_Tensor*, TF_NewTensor,                                                  \
    (TF_DataType, const int64_t*, int, void*, size_t,                          \
     void (*)(void*, size_t, void*), void*))                                   \
  X(TF_Tensor*, TF_TensorMaybeMove, (TF_Tensor*))                              \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                       \
  X(TF_DataType, TF_TensorType, (const TF_Tensor*))                            \
  X(int, TF_NumDims, (const TF_Tensor*))                                       \
  X(int64_t, TF_Dim, (const TF_Tensor*, int))                                  \
  X(size_t, TF_TensorByteSize, (const TF_Tensor*))                             \
  X(void*, TF_TensorData, (const TF_Tensor*))                                  \
  X(int64_t, TF_TensorElementCount, (const TF_Tensor*))                        \
  X(void, TF_StringInit, (TF_TString*))                                        \
  X(void, TF_StringCopy, (TF_TString*, const char*, size_t))                   \
  X(const char*, TF_StringGetDataPointer, (const TF_TString*))                 \
  X(size_t, TF_StringGetSize, (const TF_TString*))                             \
  X(void, TF_StringDealloc, (TF_TString*))                                     \
  X(TF_Graph*, TF_NewGraph, (void))                                            \
  X(void, TF_DeleteGraph, (TF_Graph*))                                         \
  X(TF_Operation*, TF_GraphOperationByName, (TF_Graph*, const char*))          \
  X(const char*, TF_OperationName, (TF_Operation*))                            \
  X(int, TF_OperationNumOutputs, (TF_Operation*))                              \
  X(TF_DataType, TF_OperationOutputType, (TF_Output))                          \
  X(TF_ImportGraphDefOptions*, TF_NewImportGraphDefOptions, (void))            \
  X(void, TF_DeleteImportGraphDefOptions, (TF_ImportGraphDefOptions*))         \
  X(void, TF_ImportGraphDefOptionsSetPrefix,                                   \
    (TF_ImportGraphDefOptions*, const char*))                                  \
  X(void, TF_GraphImportGraphDef,                                              \
    (TF_Graph*, const TF_Buffer*, const TF_ImportGraphDefOptions*,             \
     TF_Status*))                                                              \
  X(TF_SessionOptions*, TF_NewSessionOptions, (void))                          \
  X(void, TF_DeleteSessionOptions, (TF_SessionOptions*))                       \
  X(void, TF_SetConfig,                                                        \
    (TF_SessionOptions*, const void*, size_t, TF_Status*))                     \
  X(void, TF_SetTarget, (TF_SessionOptions*, const char*))                     \
  X(TF_Session*, TF_NewSession,                                                \
    (TF_Graph*, const TF_SessionOptions*, TF_Status*))                         \
  X(TF_Session*, TF_LoadSessionFromSavedModel,                                 \
    (const TF_SessionOptions*, const TF_Buffer*, const char*,                  \
     const char* const*, int, TF_Graph*, TF_Buffer*, TF_Status*))              \
  X(void, TF_CloseSession, (TF_Session*, TF_Status*))                          \
  X(void, TF_DeleteSession, (TF_Session*, TF_Status*))                         \
  X(void, TF_SessionRun,                                                       \
    (TF_Session*, const TF_Buffer*, const TF_Output*, TF_Tensor* const*, int,  \
     const TF_Output*, TF_Tensor**, int, const TF_Operation* const*, int,      \
     TF_Buffer*, TF_Status*))                                                  \
  X(TF_DeviceList*, TF_SessionListDevices, (TF_Session*, TF_Status*))          \
  X(int, TF_DeviceListCount, (const TF_DeviceList*))                           \
  X(const char*, TF_DeviceListName, (const TF_DeviceList*, int, TF_Status*))   \
  X(const char*, TF_DeviceListType, (const TF_DeviceList*, int, TF_Status*))   \
  X(int64_t, TF_DeviceListMemoryBytes,                                         \
    (const TF_DeviceList*, int, TF_Status*))                                   \
  X(void, TF_DeleteDeviceList, (TF_DeviceList*))                               \
  X(TF_Server*, TF_NewServer, (const void*, size_t, TF_Status*))               \
  X(void, TF_ServerStart, (TF_Server*, TF_Status*))                            \
  X(const char*, TF_ServerTarget, (TF_Server*))

#endif  // STEADYFIT_TFAPI_H_
