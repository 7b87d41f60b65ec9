#!/usr/bin/env bash
# The Python package on a machine with a GPU and torch: tests (torch, CuPy, JAX, transformers, compile, graphs, the seed's
# matrix, vLLM's files when there), call cost, peers. Nothing is installed or built.
#   tools/gpu_python.sh LIBRARY_FOLDER [OUT_FOLDER]
# LIBRARY_FOLDER holds libflashrel.so with the GPU backends, and libflashrel_torch.so, the reader of torch tensors.
# FLASHREL_VLLM may name an unpacked vLLM wheel, or what tools/test_vllm.sh keeps of one, VLLM_SOURCES the sources of the same
# version (its own operator tests run over the drop-in then), FLASHREL_FA4 a folder of tools/fa4_peer.py.
set -uo pipefail
library=$(realpath "$1")
out=$(realpath "${2:-.}")
cd "$(dirname "$0")/.."
export FLASHREL_LIBRARY=$library/libflashrel.so PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=4
python3 - <<'END'
import importlib, json, platform
print("python", platform.python_version(), end="; ")
for name in ("torch", "transformers", "triton", "cupy", "jax", "numpy", "tvm_ffi", "pytest", "hypothesis", "ml_dtypes"):
    try:
        print(name, importlib.import_module(name).__version__, end="; ")
    except Exception as error:
        print(name, f"absent ({type(error).__name__})", end="; ")
import flashrel
print("\n" + json.dumps(flashrel.info()))
END
status=0
parallel=$(python3 -c "import xdist" 2> /dev/null && echo "-n 6")
timeout 300 python3 -m pytest -q -rs -p no:cacheprovider --durations=8 $parallel tests/python > "$out/python_tests.log" 2>&1 ||
  status=1
tail -n 60 "$out/python_tests.log"
if [ -n "${VLLM_SOURCES:-}" ]; then
  echo "== vLLM's own tests over the drop-in"
  PYTHONPATH=$PWD/tests/python:$PYTHONPATH timeout 60 python3 -m pytest -q -rs -p no:cacheprovider -p vllm_drop_in \
    "$VLLM_SOURCES/tests/models/inkling/test_fa4_rel_attention.py" || status=1
fi
echo "== memory of transformers"
timeout 60 python3 tools/transformers_memory.py --json "$out/transformers_memory.json" || status=1
echo "== call cost, and what CUDA takes of it"
if command -v nvcc > /dev/null; then
  nvcc -O2 -std=c++17 -arch=native tools/cuda_host_cost.cu -o "$out/cuda_host_cost" && "$out/cuda_host_cost" || status=1
fi
timeout 40 python3 -m flashrel.bench --device cuda --call-cost --json "$out/python_call_cost.json" || status=1
timeout 30 python3 -m flashrel.bench --device cpu --call-cost --json "$out/python_call_cost_cpu.json" || status=1
echo "== peers"
timeout 130 python3 -m flashrel.bench --device cuda --rounds 15 ${FLASHREL_FA4:+--fa4 "$FLASHREL_FA4"} ${FLASHREL_VLLM:+--vllm "$FLASHREL_VLLM"} \
  --json "$out/python_bench.json" --figure "$out/python_bench.png" || status=1
exit $status
