// torch tensors as flashrel_attention_args, read in C through torch's DLPack functions: a tenth of what reading them attribute
// by attribute costs the host. Called by python/flashrel/_adapter.py and by nobody else, in two ways that take the same
// arguments:
//   flashrel_torch_attention   for ctypes: a tuple of Python objects
//   rel_attention              for apache-tvm-ffi: its own array of values
//
// Anything this file does not understand (another memory or dtype) is answered with kUnread, and the caller reads the tensors
// in Python, where the sentences are. Of Python it needs ten functions of the stable ABI, which the interpreter that loads it
// has; of tvm-ffi two struct layouts and one calling convention.
#include <tvm/ffi/c_api.h>

#include <cstddef>
#include <cstdint>

#include "flashrel/flashrel.h"

extern "C" {
struct PyObject;
PyObject* PyObject_Type(PyObject*);
void Py_DecRef(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, std::ptrdiff_t);
std::ptrdiff_t PyTuple_Size(PyObject*);
long long PyLong_AsLongLong(PyObject*);
double PyFloat_AsDouble(PyObject*);
PyObject* PyErr_Occurred();
void PyErr_Clear();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);

// What flashrel_torch_* know of torch; filled by _adapter.py.
struct flashrel_torch {
  const DLPackExchangeAPI* dlpack;            // what torch.Tensor.__dlpack_c_exchange_api__ holds
  const PyObject *none, *tensor, *parameter;  // None, torch.Tensor, torch.nn.Parameter
};
}

namespace {

constexpr int kUnread = -1;

// Arguments of a call in order: 12 tensors or None as in the struct, then these, all integers but softmax_scale.
enum Scalar : int {
  kDevice = 12,  // CUDA ordinal; -1 = host memory
  kMaxSeqlenQ,
  kMaxSeqlenK,
  kSoftmaxScale,
  kCausal,
  kRelEdge,
  kWindowLeft,
  kWindowRight,
  kRelZero,
  kNumSplits,
  kDeterministic,
  kBackend,  // addresses of C strings, 0 = automatic
  kRoute,
  kSchedule,  // address of a flashrel_schedule_buffer, 0 = the call makes its own
  kWorkspace,
  kWorkspaceBytes,
  kStream,
  kCount
};

int dtype_of(DLDataType type) {
  if (type.lanes != 1) return -1;
  if (type.code == kDLFloat && type.bits == 32) return FLASHREL_FLOAT32;
  if (type.code == kDLFloat && type.bits == 16) return FLASHREL_FLOAT16;
  if (type.code == kDLBfloat && type.bits == 16) return FLASHREL_BFLOAT16;
  if (type.code == kDLInt && type.bits == 32) return FLASHREL_INT32;
  return -1;
}

bool lives_on(const DLDevice& found, std::int64_t device) {
  return device < 0 ? found.device_type == kDLCPU : found.device_type == kDLCUDA && found.device_id == device;
}

bool read_dl_tensor(const DLTensor& dl, std::int64_t device, flashrel_tensor& tensor) {
  if (dl.ndim > FLASHREL_MAX_RANK || !lives_on(dl.device, device) || dl.strides == nullptr) return false;
  tensor.dtype = dtype_of(dl.dtype);
  if (tensor.dtype < 0) return false;
  tensor.data = dl.data == nullptr ? nullptr : static_cast<char*>(dl.data) + dl.byte_offset;
  tensor.rank = dl.ndim;
  for (int i = 0; i < dl.ndim; ++i) tensor.shape[i] = dl.shape[i], tensor.stride[i] = dl.strides[i];
  return true;
}

bool fits_int32(std::int64_t value) { return value == static_cast<std::int32_t>(value); }

// A caller's arguments: `tensor(i, device, out)` reads one tensor or leaves it absent, `integer(i, out)` and `number(i, out)`
// a scalar; false = not understood.
class TvmArguments {
 public:
  explicit TvmArguments(const TVMFFIAny* args) : args_(args) {}

  bool tensor(int i, std::int64_t device, flashrel_tensor& out) const {
    const TVMFFIAny& arg = args_[i];
    if (arg.type_index == kTVMFFINone) return true;
    if (arg.type_index == kTVMFFIDLTensorPtr) return read_dl_tensor(*static_cast<const DLTensor*>(arg.v_ptr), device, out);
    if (arg.type_index != kTVMFFITensor) return false;
    const char* object = reinterpret_cast<const char*>(arg.v_obj);
    return read_dl_tensor(*reinterpret_cast<const DLTensor*>(object + sizeof(TVMFFIObject)), device, out);
  }
  bool integer(int i, std::int64_t& out) const {
    out = args_[i].v_int64;
    return args_[i].type_index == kTVMFFIInt || args_[i].type_index == kTVMFFIBool;
  }
  bool number(int i, double& out) const {
    out = args_[i].v_float64;
    return args_[i].type_index == kTVMFFIFloat;
  }

 private:
  const TVMFFIAny* args_;
};

// The caller has the interpreter's lock.
class PythonArguments {
 public:
  PythonArguments(const flashrel_torch& torch, PyObject* tuple) : torch_(torch), tuple_(tuple) {}

  bool tensor(int i, std::int64_t device, flashrel_tensor& out) const {
    PyObject* object = PyTuple_GetItem(tuple_, i);
    if (object == torch_.none) return true;
    DLTensor dl;
    return is_torch(object) && torch_.dlpack->dltensor_from_py_object_no_sync(object, &dl) == 0 &&
           read_dl_tensor(dl, device, out);
  }
  bool integer(int i, std::int64_t& out) const {
    out = PyLong_AsLongLong(PyTuple_GetItem(tuple_, i));
    return out != -1 || PyErr_Occurred() == nullptr;
  }
  bool number(int i, double& out) const {
    out = PyFloat_AsDouble(PyTuple_GetItem(tuple_, i));
    return out != -1 || PyErr_Occurred() == nullptr;
  }

 private:
  // torch reads the memory of anything that it is given as a tensor.
  bool is_torch(PyObject* object) const {
    PyObject* type = PyObject_Type(object);
    Py_DecRef(type);  // the object keeps it
    return type == torch_.tensor || type == torch_.parameter;
  }

  const flashrel_torch& torch_;
  PyObject* tuple_;
};

struct Call {
  flashrel_attention_args args;
  std::int64_t workspace = 0, workspace_bytes = 0, stream = 0;

  int run() const {
    return flashrel_attention(&args, reinterpret_cast<void*>(workspace), static_cast<std::size_t>(workspace_bytes),
                              reinterpret_cast<void*>(stream));
  }
};

template <class Arguments>
bool read_scalars(const Arguments& from, flashrel_attention_args& a, Call& call) {
  std::int64_t causal, edge, num_splits, deterministic, backend, route, schedule;
  if (!from.integer(kMaxSeqlenQ, a.max_seqlen_q) || !from.integer(kMaxSeqlenK, a.max_seqlen_k) ||
      !from.number(kSoftmaxScale, a.softmax_scale) || !from.integer(kCausal, causal) || !from.integer(kRelEdge, edge) ||
      !from.integer(kWindowLeft, a.window_left) || !from.integer(kWindowRight, a.window_right) ||
      !from.integer(kRelZero, a.rel_zero) || !from.integer(kNumSplits, num_splits) ||
      !from.integer(kDeterministic, deterministic) || !from.integer(kBackend, backend) || !from.integer(kRoute, route) ||
      !from.integer(kSchedule, schedule) || !from.integer(kWorkspace, call.workspace) ||
      !from.integer(kWorkspaceBytes, call.workspace_bytes) || !from.integer(kStream, call.stream))
    return false;
  if (!fits_int32(num_splits)) return false;
  a.causal = causal != 0;
  a.rel_edge = static_cast<std::int32_t>(edge);
  a.num_splits = static_cast<std::int32_t>(num_splits);
  a.deterministic = deterministic != 0;
  a.backend = reinterpret_cast<const char*>(backend);
  a.route = reinterpret_cast<const char*>(route);
  a.schedule = reinterpret_cast<const flashrel_schedule_buffer*>(schedule);
  return true;
}

template <class Arguments>
bool read_call(const Arguments& from, Call& call) {
  flashrel_attention_args& a = call.args;
  flashrel_attention_args_init(&a, sizeof a);
  std::int64_t device;
  if (!from.integer(kDevice, device) || !fits_int32(device) || !read_scalars(from, a, call)) return false;
  a.memory = device < 0 ? FLASHREL_HOST : FLASHREL_CUDA;
  a.device = static_cast<std::int32_t>(device);
  flashrel_tensor* tensors[] = {&a.q,          &a.k_cache, &a.v_cache,  &a.block_table, &a.cache_seqlens, &a.cu_seqlens_q,
                                &a.rel_logits, &a.rel,     &a.rel_proj, &a.rel_scale,   &a.out,           &a.lse};
  for (int i = 0; i < kDevice; ++i)
    if (!from.tensor(i, device, *tensors[i])) return false;
  return true;
}

bool read_python(const flashrel_torch& torch, PyObject* tuple, Call& call) {
  const DLPackExchangeAPI& dlpack = *torch.dlpack;
  if (dlpack.header.version.major != DLPACK_MAJOR_VERSION || dlpack.dltensor_from_py_object_no_sync == nullptr) return false;
  if (PyTuple_Size(tuple) == kCount && read_call(PythonArguments(torch, tuple), call)) return true;
  PyErr_Clear();  // the caller finds out by itself, and says it better
  return false;
}

}  // namespace

// Fills *args. Returns 0, or kUnread. Called with the interpreter's lock.
extern "C" FLASHREL_API int flashrel_torch_read(const flashrel_torch* torch, PyObject* arguments,
                                                flashrel_attention_args* args) {
  Call call;
  if (!read_python(*torch, arguments, call)) return kUnread;
  *args = call.args;
  return 0;
}

// Returns the flashrel_code, or kUnread. Called with the interpreter's lock, which it gives away while the library runs. The
// sentence of an error is in flashrel_last_error of this thread.
extern "C" FLASHREL_API int flashrel_torch_attention(const flashrel_torch* torch, PyObject* arguments) {
  Call call;
  if (!read_python(*torch, arguments, call)) return kUnread;
  void* thread = PyEval_SaveThread();
  const int code = call.run();
  PyEval_RestoreThread(thread);
  return code;
}

// Likewise; tvm-ffi itself has given the lock away.
extern "C" FLASHREL_API int __tvm_ffi_rel_attention(void*, const TVMFFIAny* args, std::int32_t n_args, TVMFFIAny* result) {
  Call call;
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = n_args == kCount && read_call(TvmArguments(args), call) ? call.run() : kUnread;
  return 0;
}
