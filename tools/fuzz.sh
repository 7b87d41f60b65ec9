#!/usr/bin/env bash
# Fuzzes the reader of problem files for SECONDS (60) with libFuzzer, ASan and UBSan: tools/fuzz.sh [SECONDS]
# Exits non-zero on the first finding and leaves its input in build-fuzz/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
compiler=${CLANGXX:-clang++-14}
mkdir -p build-fuzz/found
sources="tests/fuzz/problem_file_fuzz.cpp src/check/problem_file.cpp src/check/safetensors.cpp src/check/host_problem.cpp
  src/check/judge.cpp src/check/naive.cpp src/core/definition.cpp src/api/validate.cpp src/api/tensor_check.cpp src/api/args.cpp"
objects=()
for source in $sources; do
  object=build-fuzz/$(basename "$source" .cpp).o
  objects+=("$object")
  "$compiler" -std=c++20 -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -Isrc -Iinclude \
    -c "$source" -o "$object"
done
"$compiler" -fsanitize=fuzzer,address,undefined -pthread "${objects[@]}" -o build-fuzz/problem_file_fuzz
# found/ grows; corpus/ holds the seeds: a few whole problem files and the same as header text, newline, data.
build-fuzz/problem_file_fuzz -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
  -artifact_prefix=build-fuzz/ build-fuzz/found tests/fuzz/corpus
