// One macro for functions that must mean the same on the host and on the device.
#pragma once

#if defined(__CUDACC__)
#define FLASHREL_HD __host__ __device__ __forceinline__
#else
#define FLASHREL_HD inline
#endif
