#!/usr/bin/env bash
# Builds the library for AArch64 and runs the CPU backend's unit tests under qemu: the NEON unit against the float64 definition.
# Needs g++-aarch64-linux-gnu, qemu-user, nlohmann-json3-dev and googletest (its sources: libgtest-dev).
#   tools/test_neon.sh [BUILD_DIR] [GTEST_FILTER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-neon}
filter=${2:-*CpuTest*/neon:CpuIsa*:MergeCpu*:ParallelTest*}
gtest=/usr/src/googletest/googletest
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  ${CXX_LAUNCHER:+-DCMAKE_CXX_COMPILER_LAUNCHER=$CXX_LAUNCHER} \
  -DFLASHREL_CUDA=OFF -DFLASHREL_BUILD_CLI=OFF -DFLASHREL_BUILD_TESTS=OFF -DFLASHREL_BUILD_EXAMPLES=OFF > /dev/null
ninja -C "$build" -j"${JOBS:-2}" flashrel_static | tail -n 1
NM=aarch64-linux-gnu-nm tools/check_symbols.sh "$build"

mkdir -p "$build/neon"
objects=()
for source in "$gtest"/src/gtest-all.cc "$gtest"/src/gtest_main.cc src/backend/cpu/cpu_test.cpp src/combine/combine_cpu_test.cpp \
  src/base/parallel_test.cpp $(ls src/check/*.cpp | grep -v _test.cpp); do
  object="$build/neon/$(basename "$source").o"
  [ "$object" -nt "$source" ] || ${CXX_LAUNCHER:-} aarch64-linux-gnu-g++ -std=c++20 -O2 -Isrc -Iinclude -isystem "$gtest/include" \
    -I"$gtest" -idirafter /usr/include -c "$source" -o "$object"
  objects+=("$object")
done
aarch64-linux-gnu-g++ "${objects[@]}" "$build/libflashrel_static.a" -pthread -o "$build/neon_tests"
qemu-aarch64 -L /usr/aarch64-linux-gnu "$build/neon_tests" --gtest_filter="$filter"
