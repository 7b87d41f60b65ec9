#include <cuda_runtime_api.h>

#include <string>

#include "gpu/cuda_status.hpp"
#include "gpu/tensor_map.hpp"

namespace flashrel::gpu {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                                 const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// From the driver that is loaded, so that this library does not link against it.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
      pointer = nullptr;
    return reinterpret_cast<EncodeTiled>(pointer);
  }();
  return function;
}

CUtensorMapDataType map_type(DType dtype) {
  if (dtype == DType::kFloat32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return dtype == DType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

}  // namespace

Status make_tensor_map(const char* name, const void* data, DType dtype, std::initializer_list<MapDim> dims, Swizzle swizzle,
                       CUtensorMap& map, L2Fetch fetch) {
  const EncodeTiled encode = encode_tiled();
  if (encode == nullptr) return runtime_error("cuTensorMapEncodeTiled: the driver does not have it");
  if (reinterpret_cast<std::uintptr_t>(data) % kTmaAlignBytes != 0)
    return unsupported(std::string(name) +
                       ": got an address that is not a multiple of 16 bytes, sm90 needs one; mma accepts it");
  constexpr int kMaxRank = 5;
  cuuint64_t sizes[kMaxRank], strides[kMaxRank];
  cuuint32_t box[kMaxRank], steps[kMaxRank];
  int rank = 0;
  for (const MapDim& dim : dims) {
    sizes[rank] = static_cast<cuuint64_t>(dim.size);
    box[rank] = static_cast<cuuint32_t>(dim.box);
    steps[rank] = 1;
    // A dimension of size 1 may come with any stride: it is never used, but must look right.
    if (rank > 0)
      strides[rank - 1] = dim.size == 1 ? kTmaAlignBytes : static_cast<cuuint64_t>(dim.stride_elems) * size_of(dtype);
    ++rank;
  }
  const CUresult result = encode(
      &map, map_type(dtype), static_cast<cuuint32_t>(rank), const_cast<void*>(data), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle == Swizzle::k128Bytes ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      fetch == L2Fetch::k256Bytes ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    return runtime_error(std::string("cuTensorMapEncodeTiled(") + name + "): error " + std::to_string(result));
  return {};
}

}  // namespace flashrel::gpu
