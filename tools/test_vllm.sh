#!/usr/bin/env bash
# The vLLM plugin against the Inkling files of real vLLM wheels. Needs an environment with torch, triton, pytest and the
# installed package; downloads each wheel once (340 MB) and keeps its Inkling files and its Triton attention. Ends with pytest's line per version.
#   tools/test_vllm.sh [VERSION...]       PYTHON names the interpreter (python3)
# VLLM_SOURCES names vLLM's sources of that version (a wheel has no tests): its own operator tests run over the drop-in then.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export OMP_NUM_THREADS=1
for version in "${@:-0.33.0}"; do
  files=build-python/vllm-$version
  if [ ! -d "$files" ]; then
    mkdir -p build-python/wheels
    "$python" -m pip download -q --no-deps --disable-pip-version-check -d build-python/wheels "vllm==$version"
    "$python" -m zipfile -e build-python/wheels/vllm-"$version"-*.whl build-python/unpacked
    mkdir -p "$files/vllm/models" "$files/vllm/v1/attention/ops"
    mv build-python/unpacked/vllm/models/inkling "$files/vllm/models/"
    mv build-python/unpacked/vllm/v1/attention/ops/triton_{attention_helpers,unified_attention}.py "$files/vllm/v1/attention/ops/" ||
      echo "vLLM $version has no such Triton attention"
    rm -rf build-python/unpacked build-python/wheels
  fi
  echo "vLLM $version"
  export FLASHREL_VLLM=$PWD/$files
  "$python" -m pytest -q tests/python/test_vllm.py tests/python/test_bench.py
  if [ -n "${VLLM_SOURCES:-}" ]; then
    PYTHONPATH=$PWD/tests/python${PYTHONPATH:+:$PYTHONPATH} "$python" -m pytest -q -rs -p vllm_drop_in \
      "$VLLM_SOURCES/tests/models/inkling/test_fa4_rel_attention.py"
  fi
done
