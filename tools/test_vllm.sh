#!/usr/bin/env bash
# The vLLM plugin against the Inkling files of real vLLM wheels. Needs an environment with torch, triton, pytest and the
# installed package; downloads each wheel once (340 MB) and keeps its Inkling files only. Ends with pytest's line per version.
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
    mkdir -p "$files/vllm/models"
    mv build-python/unpacked/vllm/models/inkling "$files/vllm/models/"
    rm -rf build-python/unpacked build-python/wheels
  fi
  echo "vLLM $version"
  export FLASHREL_VLLM=$PWD/$files
  "$python" -m pytest -q tests/python/test_vllm.py
  if [ -n "${VLLM_SOURCES:-}" ]; then
    PYTHONPATH=$PWD/tests/python${PYTHONPATH:+:$PYTHONPATH} "$python" -m pytest -q -rs -p vllm_drop_in \
      "$VLLM_SOURCES/tests/models/inkling/test_fa4_rel_attention.py"
  fi
done
