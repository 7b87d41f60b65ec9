#!/usr/bin/env bash
# The vLLM plugin against the Inkling files of real vLLM wheels. Needs an environment with torch, triton, pytest and the
# installed package; downloads each wheel once (340 MB) and keeps its Inkling files and two more. Ends with pytest's line per version.
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
    for kept in models/inkling compilation/breakable_cudagraph.py \
      v1/attention/ops/triton_{attention_helpers,unified_attention}.py; do
      mkdir -p "$(dirname "$files/vllm/$kept")"
      mv "build-python/unpacked/vllm/$kept" "$files/vllm/$kept" || echo "vLLM $version has no $kept: its tests are skipped"
    done
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
