#!/usr/bin/env bash
# All C++ and CUDA files follow .clang-format (clang-format 19).
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh' '*.c' | xargs -r clang-format-19 --dry-run -Werror
echo "format: clean"
