#!/usr/bin/env python3
"""vLLM's Hopper path as a peer of the benchmarks: its own Inkling operator over FlashAttention-4, compiled without a GPU.

vLLM runs Inkling's attention on Hopper as FA4 (CuTe DSL) with a score_mod that gathers the bias from rel_logits. The DSL is
230 MB; the kernels it makes are 150 KB each and need torch and apache-tvm-ffi alone. So they are compiled where the DSL is:

    tools/fa4_peer.py build FOLDER --vllm UNPACKED        here; UNPACKED holds vllm/models/inkling and vllm/vllm_flash_attn/cute
                                                          of a vLLM wheel (python3 -m zipfile -e); needs torch, einops,
                                                          nvidia-cutlass-dsl[cu13], quack-kernels, apache-tvm-ffi, gcc and
                                                          the CUDA toolkit
    tools/bench_peers.py --fa4 FOLDER ...                 there; the folder also holds this file, which `load` is taken from
    python -m flashrel.bench --fa4 FOLDER ...

The compiler is called by vLLM's function itself, under torch's FakeTensorMode: what vLLM would compile is what is measured.
Written against vLLM 0.33.0 with nvidia-cutlass-dsl 4.8.0 and quack-kernels 0.6.5.
"""

import argparse
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

# heads, kv heads, extent, window, page size, max_seqlen_q, sequences: those of the two benchmarks.
SHAPES = [
    (64, 8, 1024, 0, 128, 8192, 1),
    (64, 8, 1024, 0, 64, 8192, 1),
    (64, 8, 1024, 0, 16, 8192, 1),
    (64, 16, 512, 512, 128, 8192, 1),
    (64, 16, 512, 512, 64, 8192, 1),
    (8, 1, 1024, 0, 128, 32768, 1),
    (8, 1, 1024, 0, 128, 2048, 1),
    (8, 1, 1024, 0, 64, 2048, 1),
    (8, 1, 1024, 0, 128, 512, 1),
    (64, 8, 1024, 0, 128, 4096, 64),
    (64, 8, 1024, 0, 128, 1, 1),
    (64, 8, 1024, 0, 64, 1, 1),
    (64, 8, 1024, 0, 16, 1, 1),
    (8, 1, 1024, 0, 128, 1, 1),
    (8, 1, 1024, 0, 64, 1, 1),
    (4, 1, 1024, 0, 128, 1, 1),
    (64, 16, 512, 512, 128, 1, 1),
    (64, 16, 512, 512, 64, 1, 1),
]

# The generated code reports CUDA errors through this one function of the DSL's 44 MB run-time library.
RUNTIME = r"""
#include <stdint.h>
void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);
const char* cudaGetErrorString(int code);
void CuteDSLRT_TVMFFISetRaisedCudaError(void* set_error, int32_t code) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", cudaGetErrorString(code));
}
"""


def _bucket(n):
    """vLLM's bucket_max_seqlen_q: the scheduling bound that it compiles for and passes."""
    return 1 << max(0, n - 1).bit_length()


def _stem(n_q_heads, n_kv_heads, extent, window, page_size, max_seqlen_q):
    rows = "decode" if max_seqlen_q == 1 else f"q{_bucket(max_seqlen_q)}"
    return f"h{n_q_heads}_kv{n_kv_heads}_extent{extent}_window{window}_page{page_size}_{rows}"


# ---------------------------------------------------------------- there: run


def load(folder, n_q_heads, n_kv_heads, extent, window, page_size, max_seqlen_q):
    """The compiled operator: f(q, k_cache, v_cache, block_table, cache_seqlens, cu_seqlens_q, rel_logits, out, scale).

    rel_logits is (n_tokens, n_q_heads, extent), contiguous, as vLLM has it. LookupError where this shape was not built.
    """
    import tvm_ffi

    folder = pathlib.Path(folder)
    stem = _stem(n_q_heads, n_kv_heads, extent, window, page_size, max_seqlen_q)
    path = folder / json.loads((folder / "index.json").read_text())["kernels"].get(stem, "absent")
    if not path.exists():
        raise LookupError(f"{folder}: no kernel for {stem}")
    kernel = tvm_ffi.load_module(str(path))["func"]
    left, right = (window - 1, 0) if window else (None, None)

    def run(q, k_cache, v_cache, block_table, cache_seqlens, cu_seqlens_q, rel_logits, out, scale):
        # In the order of FlashAttentionForwardSm90.__call__; None = lse, three more lengths, sink, sparsity, fp8, tile hints.
        kernel(
            q, k_cache, v_cache, out, None, scale, cu_seqlens_q, None, None, cache_seqlens, None, block_table, left, right,
            None, None, ([rel_logits], None), None, None, None, None,
        )  # fmt: skip
        return out

    return run


# ---------------------------------------------------------------- here: build


def _stand_in(name, **values):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(values)
    return module


def _vllms_operator(unpacked):
    """vLLM's operator and its FA4 from the unpacked files, over stand-ins for the four engine modules they import."""
    root = pathlib.Path(unpacked).resolve() / "vllm"
    packages = ("vllm", "vllm.vllm_flash_attn", "vllm.models", "vllm.models.inkling", "vllm.models.inkling.nvidia")
    for name in (*packages, "vllm.models.inkling.nvidia.ops"):
        _stand_in(name, __path__=[str(root.joinpath(*name.split(".")[1:]))])
    for name in ("vllm.model_executor", "vllm.model_executor.warmup", "vllm.utils"):
        _stand_in(name, __path__=[])
    hopper = types.SimpleNamespace(get_device_capability=lambda: types.SimpleNamespace(major=9, minor=0))
    kernel_base = type("VllmJitKernel", (), {"__class_getitem__": classmethod(lambda cls, _: cls)})
    _stand_in("vllm.distributed", get_tensor_model_parallel_world_size=lambda: 1)
    _stand_in("vllm.platforms", current_platform=hopper)
    _stand_in("vllm.utils.torch_utils", kv_cache_dtype_str_to_dtype=None)
    _stand_in(
        "vllm.model_executor.warmup.jit_warmup", VllmJitKernel=kernel_base, WarmupIntRange=None, zip_inputs=None
    )  # fmt: skip
    operator = importlib.import_module("vllm.models.inkling.nvidia.ops.fa4_rel_attention")
    fa4 = importlib.import_module("vllm.vllm_flash_attn.cute.interface")
    return operator.InklingFA4RelAttentionKernel.kernel, fa4._flash_attn_fwd.compile_cache.cache


def _compile(operator, shape):
    """Asks vLLM's operator for its kernel: fake tensors of this shape, packed K and V as in vLLM's cache."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    n_q_heads, n_kv_heads, extent, window, page_size, max_seqlen_q, n_seqs = shape
    n_tokens, max_pages = n_seqs * max_seqlen_q, 8
    with FakeTensorMode():

        def empty(*sizes, dtype=torch.bfloat16):
            return torch.empty(sizes, dtype=dtype, device="cuda")

        operator(
            empty(n_tokens, n_q_heads, 128), *(empty(n_seqs * max_pages, page_size, n_kv_heads, 128) for _ in "kv"),
            block_table=empty(n_seqs, max_pages, dtype=torch.int32), cache_seqlens=empty(n_seqs, dtype=torch.int32),
            cu_seqlens_q=empty(n_seqs + 1, dtype=torch.int32), max_seqlen_q=_bucket(max_seqlen_q), softmax_scale=1 / 128,
            causal=True, window_size=(window - 1, 0) if window else (-1, -1), rel_extent=extent,
            rel_logits=empty(n_tokens, n_q_heads, extent), num_splits=1, out=empty(n_tokens, n_q_heads, 128),
        )  # fmt: skip


def _link(compiled, target, cuda):
    from tvm_ffi import libinfo

    dsl = pathlib.Path(importlib.import_module("nvidia_cutlass_dsl").__path__[0], "cu13", "lib")
    with tempfile.TemporaryDirectory() as work:
        compiled.export_to_c(object_file_path=f"{work}/kernel.o", function_name="func")
        pathlib.Path(work, "runtime.c").write_text(RUNTIME)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-s", "-o", str(target), f"{work}/kernel.o", f"{work}/runtime.c",
             str(dsl / "libcuda_dialect_runtime_static.a"), f"-L{cuda}/lib64", "-lcudart", libinfo.find_libtvm_ffi()],
            check=True,
        )  # fmt: skip


def build(folder, unpacked, cuda, n_sm):
    os.environ.update(FLASH_ATTENTION_ARCH="sm_90", CUTE_DSL_ARCH="sm_90a", FLASH_ATTENTION_NUM_SMS=str(n_sm))
    operator, cache = _vllms_operator(unpacked)
    import cutlass

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files, kernels = {}, {}
    for shape in SHAPES:
        before = set(cache)
        _compile(operator, shape)
        new = set(cache) - before
        # Shapes share kernels: the cache's key says which. Asking again for a known one adds nothing.
        key = new.pop() if new else _compile_again(operator, cache, shape)
        if key not in files:
            files[key] = f"fa4_{len(files)}.so"
            _link(cache[key], folder / files[key], cuda)
        kernels[_stem(*shape[:6])] = files[key]
    index = {"cutlass_dsl": cutlass.__version__, "n_sm": n_sm, "kernels": kernels}
    (folder / "index.json").write_text(json.dumps(index, indent=1))
    shutil.copy(__file__, folder / "fa4_peer.py")
    print(f"{folder}: {len(files)} kernels for {len(kernels)} shapes")


def _compile_again(operator, cache, shape):
    """The key of a shape whose kernel is in the cache already."""
    known = dict(cache)
    cache.clear()
    _compile(operator, shape)
    (key,) = cache
    cache.update(known)
    return key


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build"])
    parser.add_argument("folder")
    parser.add_argument("--vllm", required=True, help="folder that holds vllm/ with the two subfolders of a wheel")
    parser.add_argument("--cuda", default="/usr/local/cuda", help="CUDA toolkit")
    parser.add_argument("--n-sm", type=int, default=132, help="SMs of the GPU, which FA4 plans with (132: H100 SXM, H200)")
    options = parser.parse_args()
    build(options.folder, options.vllm, options.cuda, options.n_sm)


if __name__ == "__main__":
    main()
