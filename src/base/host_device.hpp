// One macro for functions that must mean the same on the host and on the device.
#pragma once

#if defined(__CUDACC__)
#define FLASHREL_HD __host__ __device__ __forceinline__
#elif defined(FLASHREL_ISA_UNIT)
// Objects built for one instruction set must not leave copies of shared functions for the linker to pick.
#define FLASHREL_HD inline __attribute__((always_inline))
#else
#define FLASHREL_HD inline
#endif
