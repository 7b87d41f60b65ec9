"""FlashRel and its peers on one case: every function gives {name: call}, and a call gives (tokens, heads, head_dim).

A name that ends in "(no bias)" leaves the bias out: a bound where the peer has none.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ._bench_cases import HEAD_DIM, PAGE, Tensors
from ._core import rel_attention

DENSE_BIAS_LIMIT = 4 << 30  # bytes: above it SDPA with a dense bias is left out
Peers = dict[str, Callable[[], torch.Tensor]]


def flashrel_peers(t: Tensors) -> Peers:
    out = torch.empty_like(t.q)

    def fused() -> torch.Tensor:
        return rel_attention(t.q, t.k, t.v, **t.common, rel=t.rel, rel_proj=t.rel_proj, out=out)

    def logits() -> torch.Tensor:
        return rel_attention(t.q, t.k, t.v, **t.common, rel_logits=t.rel_logits, out=out)

    def none() -> torch.Tensor:
        return rel_attention(t.q, t.k, t.v, **t.common, out=out)

    return {"flashrel fused": fused, "flashrel logits": logits, "flashrel (no bias)": none}


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).flatten(0, 1)


def sdpa_peers(t: Tensors) -> Peers:
    c, peers = t.case, {}
    q, k, v = t.by_head()
    scale = 1 / HEAD_DIM
    if c.batch * c.n_q_heads * c.q_len * c.kv_len * 8 <= DENSE_BIAS_LIMIT:
        bias = t.dense_bias()
        peers["SDPA, dense bias"] = lambda: _flat(
            F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale, enable_gqa=True)
        )
    if t.device == "cuda" and c.q_len == c.kv_len and c.window < 0:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def cudnn() -> torch.Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return _flat(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True))

        peers["cuDNN SDPA (no bias)"] = cudnn
    return peers


def flex_peers(t: Tensors) -> Peers:
    if t.device != "cuda":
        return {}
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    c = t.case
    q, k, v = t.by_head()
    table = t.rel_logits.view(c.batch, c.q_len, c.n_q_heads, c.extent)
    ahead = c.kv_len - c.q_len

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        dist = q_idx + ahead - kv_idx
        bias = table[b, q_idx, h, dist.clamp(0, c.extent - 1)]
        return score + torch.where((dist >= 0) & (dist < c.extent), bias, 0.0)

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        dist = q_idx + ahead - kv_idx
        return (dist >= 0) & (dist < c.window) if c.window > 0 else dist >= 0

    logging.getLogger("torch._inductor").setLevel(logging.CRITICAL)  # a failure is reported once, not with its whole kernel
    blocks = create_block_mask(mask, None, None, c.q_len, c.kv_len, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    return {
        "FlexAttention": lambda: _flat(
            compiled(q, k, v, score_mod=score_mod, block_mask=blocks, scale=1 / HEAD_DIM, enable_gqa=True)
        )
    }


def fa4_peers(t: Tensors, folder: str | None) -> Peers:
    """What vLLM runs on Hopper, from kernels that tools/fa4_peer.py compiled; rel_logits are made outside of it."""
    if t.device != "cuda" or folder is None:
        return {}
    spec = importlib.util.spec_from_file_location("fa4_peer", f"{folder}/fa4_peer.py")
    fa4_peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fa4_peer)
    c, common = t.case, t.common
    run = fa4_peer.load(folder, c.n_q_heads, c.n_kv_heads, c.extent, max(0, c.window), PAGE, c.q_len)
    lengths = common["block_table"], common["cache_seqlens"], common["cu_seqlens_q"]
    out = torch.empty_like(t.q)
    return {
        "FA4 score_mod (vLLM)": lambda: run(t.q, t.k, t.v, *lengths, t.rel_logits, out, 1 / HEAD_DIM),
        "rel_logits by einsum": lambda: torch.einsum("thd,de->the", t.rel, t.rel_proj),
    }


def triton_peers(t: Tensors, folder: str | None) -> Peers:
    """vLLM's unified attention, which its Triton backend runs for every model; it has no relative bias."""
    if folder is None and importlib.util.find_spec("vllm") is None:
        return {}
    unified_attention = load_unified_attention(folder)
    c, common = t.case, t.common
    out = torch.empty_like(t.q)
    # Its split of the keys of a decode, as vllm/v1/attention/backends/triton_attn.py sets it up.
    segments = 16
    scratch = [torch.empty(c.batch * c.q_len, c.n_q_heads, segments, *more, device=t.device) for more in ((HEAD_DIM,), (), ())]

    def run() -> torch.Tensor:
        unified_attention(
            t.q, t.k, t.v, out, common["cu_seqlens_q"], c.q_len, common["cache_seqlens"], c.kv_len, 1 / HEAD_DIM, True,
            common["window_size"], common["block_table"], 0, None, None, None, 128 // c.n_kv_heads, segments, *scratch,
        )  # fmt: skip
        return out

    return {"vLLM Triton (no bias)": run}


def load_unified_attention(folder: str | None) -> Callable[..., None]:
    """From the vLLM that is installed, or from an unpacked wheel over stand-ins for the five small things that it imports."""
    operators = "vllm.v1.attention.ops"
    if folder is None:
        return importlib.import_module(f"{operators}.triton_unified_attention").unified_attention
    import triton
    import triton.language as tl

    def is_family(capability: int) -> bool:
        return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == capability // 10

    platform = types.SimpleNamespace(fp8_dtype=lambda: torch.float8_e4m3fn, is_device_capability_family=is_family)
    quantised = "FP8_PER_TENSOR INT8_PER_TOKEN_HEAD FP8_PER_TOKEN_HEAD INT4_PER_TOKEN_HEAD"
    stand_ins: dict[str, dict[str, Any]] = {
        "vllm": {}, "vllm.v1": {}, "vllm.v1.attention": {}, operators: {}, "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": logging.getLogger}, "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"tl": tl, "triton": triton},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": enum.IntEnum("KVQuantMode", "NONE " + quantised, start=0)},
    }  # fmt: skip
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm"}
    for name in before:
        del sys.modules[name]
    try:
        for name, values in stand_ins.items():
            module = sys.modules[name] = types.ModuleType(name)
            vars(module).update(values)
        for part in ("vllm", "vllm.v1"):  # "import vllm.envs as envs" reads attributes
            for name, module in list(sys.modules.items()):
                if name.rpartition(".")[0] == part:
                    setattr(sys.modules[part], name.rpartition(".")[2], module)
        for file in ("triton_attention_helpers", "triton_unified_attention"):
            path = f"{folder}/vllm/v1/attention/ops/{file}.py"
            spec = importlib.util.spec_from_file_location(f"{operators}.{file}", path)
            module = sys.modules[f"{operators}.{file}"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        return module.unified_attention
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]
        sys.modules.update(before)
