// torch tensors as flashrel_attention_args, read in C through torch's DLPack functions: a tenth of what reading them attribute
// by attribute costs the host. Two ways in, called by python/flashrel/_adapter.py and by nobody else:
//   flashrel_read_tensors   for ctypes: fills the 12 tensors of a struct; Python packs the scalars and calls the library
//   rel_attention           for apache-tvm-ffi: the whole call
//
// Anything this file does not understand (another memory or dtype) is answered with kUnread, and the caller reads the tensors
// in Python, where the sentences are. Needs neither Python's headers nor a symbol of libtvm_ffi: two struct layouts, one
// calling convention.
#include <tvm/ffi/c_api.h>

#include "flashrel/flashrel.h"

namespace {

constexpr int kUnread = -1;

// Arguments of rel_attention in order: 12 tensors or None as in the struct, then these, all integers but softmax_scale.
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

const DLTensor* dl_tensor(const TVMFFIAny& arg) {
  if (arg.type_index == kTVMFFIDLTensorPtr) return static_cast<const DLTensor*>(arg.v_ptr);
  if (arg.type_index == kTVMFFITensor)
    return reinterpret_cast<const DLTensor*>(reinterpret_cast<const char*>(arg.v_obj) + sizeof(TVMFFIObject));
  return nullptr;
}

int dtype_of(DLDataType type) {
  if (type.lanes != 1) return -1;
  if (type.code == kDLFloat && type.bits == 32) return FLASHREL_FLOAT32;
  if (type.code == kDLFloat && type.bits == 16) return FLASHREL_FLOAT16;
  if (type.code == kDLBfloat && type.bits == 16) return FLASHREL_BFLOAT16;
  if (type.code == kDLInt && type.bits == 32) return FLASHREL_INT32;
  return -1;
}

bool lives_on(const DLDevice& found, int64_t device) {
  return device < 0 ? found.device_type == kDLCPU : found.device_type == kDLCUDA && found.device_id == device;
}

bool read_dl_tensor(const DLTensor& dl, int64_t device, flashrel_tensor& tensor) {
  if (dl.ndim > FLASHREL_MAX_RANK || !lives_on(dl.device, device) || dl.strides == nullptr) return false;
  tensor.dtype = dtype_of(dl.dtype);
  if (tensor.dtype < 0) return false;
  tensor.data = dl.data == nullptr ? nullptr : static_cast<char*>(dl.data) + dl.byte_offset;
  tensor.rank = dl.ndim;
  for (int i = 0; i < dl.ndim; ++i) tensor.shape[i] = dl.shape[i], tensor.stride[i] = dl.strides[i];
  return true;
}

bool read_tensor(const TVMFFIAny& arg, int64_t device, flashrel_tensor& tensor) {
  if (arg.type_index == kTVMFFINone) return true;  // stays absent
  const DLTensor* dl = dl_tensor(arg);
  return dl != nullptr && read_dl_tensor(*dl, device, tensor);
}

bool read_scalars(const TVMFFIAny* args) {
  for (int i = kDevice; i < kCount; ++i)
    if (i != kSoftmaxScale && args[i].type_index != kTVMFFIInt && args[i].type_index != kTVMFFIBool) return false;
  return args[kSoftmaxScale].type_index == kTVMFFIFloat;
}

bool fits_int32(int64_t value) { return value == static_cast<int32_t>(value); }

bool read_args(const TVMFFIAny* args, flashrel_attention_args& a) {
  flashrel_attention_args_init(&a, sizeof a);
  if (!read_scalars(args) || !fits_int32(args[kNumSplits].v_int64)) return false;
  const int64_t device = args[kDevice].v_int64;
  a.memory = device < 0 ? FLASHREL_HOST : FLASHREL_CUDA;
  a.device = static_cast<int32_t>(device);
  flashrel_tensor* tensors[] = {&a.q,          &a.k_cache, &a.v_cache,  &a.block_table, &a.cache_seqlens, &a.cu_seqlens_q,
                                &a.rel_logits, &a.rel,     &a.rel_proj, &a.rel_scale,   &a.out,           &a.lse};
  for (int i = 0; i < kDevice; ++i)
    if (!read_tensor(args[i], device, *tensors[i])) return false;
  a.max_seqlen_q = args[kMaxSeqlenQ].v_int64;
  a.max_seqlen_k = args[kMaxSeqlenK].v_int64;
  a.softmax_scale = args[kSoftmaxScale].v_float64;
  a.causal = args[kCausal].v_int64 != 0;
  a.rel_edge = static_cast<int32_t>(args[kRelEdge].v_int64);
  a.window_left = args[kWindowLeft].v_int64;
  a.window_right = args[kWindowRight].v_int64;
  a.rel_zero = args[kRelZero].v_int64;
  a.num_splits = static_cast<int32_t>(args[kNumSplits].v_int64);
  a.deterministic = args[kDeterministic].v_int64 != 0;
  a.backend = reinterpret_cast<const char*>(args[kBackend].v_int64);
  a.route = reinterpret_cast<const char*>(args[kRoute].v_int64);
  a.schedule = reinterpret_cast<const flashrel_schedule_buffer*>(args[kSchedule].v_int64);
  return true;
}

}  // namespace

// Fills the tensors of *args, which start at q and end with lse. `objects` are torch.Tensor or `none`; `api` is what
// torch.Tensor.__dlpack_c_exchange_api__ holds. The caller has the interpreter's lock. Returns 0, or kUnread.
extern "C" FLASHREL_API int flashrel_read_tensors(const DLPackExchangeAPI* api, const void* none, int64_t device,
                                                  flashrel_attention_args* args, void* q, void* k_cache, void* v_cache,
                                                  void* block_table, void* cache_seqlens, void* cu_seqlens_q, void* rel_logits,
                                                  void* rel, void* rel_proj, void* rel_scale, void* out, void* lse) {
  void* const objects[] = {q,          k_cache, v_cache,  block_table, cache_seqlens, cu_seqlens_q,
                           rel_logits, rel,     rel_proj, rel_scale,   out,           lse};
  if (api->header.version.major != DLPACK_MAJOR_VERSION || api->dltensor_from_py_object_no_sync == nullptr) return kUnread;
  flashrel_tensor* tensor = &args->q;
  for (void* object : objects) {
    DLTensor dl;
    *tensor = {};
    if (object != none && (api->dltensor_from_py_object_no_sync(object, &dl) != 0 || !read_dl_tensor(dl, device, *tensor)))
      return kUnread;
    ++tensor;
  }
  return 0;
}

// Returns the flashrel_code, or kUnread. The sentence of an error is in flashrel_last_error of this thread.
extern "C" FLASHREL_API int __tvm_ffi_rel_attention(void*, const TVMFFIAny* args, int32_t n_args, TVMFFIAny* result) {
  flashrel_attention_args a;
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = kUnread;
  if (n_args == kCount && read_args(args, a))
    result->v_int64 =
        flashrel_attention(&a, reinterpret_cast<void*>(args[kWorkspace].v_int64),
                           static_cast<size_t>(args[kWorkspaceBytes].v_int64), reinterpret_cast<void*>(args[kStream].v_int64));
  return 0;
}
